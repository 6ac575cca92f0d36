//! Many who wait for one lock of a SQL server, each with sessions of its own, while its holder is cut off for good.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    time::{Duration, Instant},
};

use dlock::{
    backends::{mysql, postgres, sql::Server},
    lease::{self, BootClock, Limits, Outcome, Released, WaitPolicy},
    lock::{Busy, Fence, Scope},
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::task::{LocalSet, spawn_local};

use super::{Case, cases};
use crate::{
    lab::{Client, LONG, Lab, SHORT, key, request, waiting},
    support::{
        self, mariadb,
        postgres::{Options as PostgresOptions, Postgres},
        procfs,
        proxy::{Mode as Network, Proxy},
    },
};

pub fn all() -> Vec<Case> {
    cases![|kind| kind.is_mariadb() || kind.is_postgres() => a_crowd_outlives_a_holder_that_vanished]
}

/// That of the holder.
const TTL: Duration = SHORT.saturating_mul(4);
/// By then all have come and gone, however slow the machine.
const LIMIT: Duration = Duration::from_secs(300);
/// One thread plays all of the waiters.
const LIMITS: Limits<'static> = Limits::of(Duration::from_secs(20));

/// A server that takes so many sessions, and no other case's.
enum Place {
    MariaDb(mariadb::MariaDb),
    Postgres(Postgres),
}

/// How its clients are made.
#[derive(Clone)]
enum Clients {
    MariaDb(mysql::MysqlOptions),
    Postgres(postgres::PostgresOptions),
}

impl Clients {
    /// One that reaches the server by this port.
    fn at(&self, port: u16) -> Client {
        let server = Server::Tcp { host: "127.0.0.1".into(), port };
        Client(match self.clone() {
            Self::MariaDb(mut options) => {
                options.sql.server = server;
                mysql::backend(options)
            }
            Self::Postgres(mut options) => {
                options.sql.server = server;
                postgres::backend(options)
            }
        })
    }
}

impl Place {
    fn make(lab: &Lab) -> (Self, Clients) {
        // One each; with mode=row a few have another one to count fences over; and ours to look.
        let most = support::crowd() + 50;
        if lab.kind.is_mariadb() {
            let settings = vec![format!("--max-connections={most}")];
            let server = mariadb::MariaDb::with(mariadb::Options { settings, ..Default::default() });
            server.sql("mysql", "CREATE DATABASE app");
            let mut options = lab.mariadb().options("dlock");
            options.sql.database = Some("app".into());
            (Self::MariaDb(server), Clients::MariaDb(options))
        } else {
            let settings = vec![format!("max_connections={most}")];
            let server = Postgres::with(PostgresOptions { settings, ..Default::default() });
            let mut options = lab.postgres().options("dlock");
            options.sql.database = Some("postgres".into());
            (Self::Postgres(server), Clients::Postgres(options))
        }
    }

    fn port(&self) -> u16 {
        match self {
            Self::MariaDb(server) => server.port,
            Self::Postgres(server) => server.port,
        }
    }

    /// How many sessions clients have.
    fn sessions(&self) -> usize {
        match self {
            Self::MariaDb(server) => {
                server.text("mysql", "SELECT COUNT(*) FROM information_schema.processlist WHERE id <> CONNECTION_ID() AND db = 'app'")
            }
            Self::Postgres(server) => {
                let sql = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()";
                server.text("postgres", sql)
            }
        }
        .parse()
        .expect("a number")
    }
}

/// Somebody else's process, as good as: a thread that takes the lock and renews it until it is told to go on without.
struct Holder {
    vanish: std::sync::mpsc::Sender<()>,
    thread: std::thread::JoinHandle<Instant>,
}

impl Holder {
    /// Has the lock when this returns.
    fn start(clients: &Clients, line: Proxy) -> Self {
        let (vanish, told) = std::sync::mpsc::channel();
        let (has, had) = std::sync::mpsc::channel();
        let (clients, mut line) = (clients.clone(), line);
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let mut client = clients.at(line.port);
                let held = request(&key("job"), TTL);
                client.take(&held).await;
                has.send(()).expect("the case");
                while told.try_recv().is_err() {
                    client.renewed(&held, None).await;
                    tokio::time::sleep(TTL / 10).await;
                }
                let last = Instant::now();
                client.renewed(&held, None).await;
                line.set(Network::BlackHole);
                // Cut off, but not closed: nobody is told.
                std::thread::sleep(TTL + SHORT * 2);
                last
            })
        });
        had.recv().expect("the lock");
        Self { vanish, thread }
    }
}

/// What the waiters saw of their turns.
#[derive(Default)]
struct Turns {
    joined: Cell<u32>,
    inside: Cell<u32>,
    taken: RefCell<Vec<(Instant, Fence)>>,
}

/// Waits as `dlock run` does, has its turn, and gives the lock back.
async fn have_a_turn(mut client: Client, turns: Rc<Turns>) {
    let (never, wanted) = (std::future::pending::<()>(), waiting(&key("job"), LONG));
    let mut first = true;
    let busy = |_: &Busy| turns.joined.set(turns.joined.get() + u32::from(std::mem::take(&mut first)));
    let outcome = lease::acquire(&mut *client.0, &BootClock, wanted, WaitPolicy::Forever, LIMITS, never, busy).await;
    let Ok(Outcome::Granted(lease)) = outcome else { panic!("{outcome:?}") };
    turns.taken.borrow_mut().push((Instant::now(), lease.fence));
    assert_eq!(turns.inside.replace(1), 0, "two have it at once");
    tokio::task::yield_now().await;
    turns.inside.set(0);
    let released = lease::give_back(&mut *client.0, &BootClock, &lease.key, &lease.token, &Scope::Tree.into(), LIMITS).await;
    assert!(matches!(released, Released::Free), "{released:?}");
}

async fn a_crowd_outlives_a_holder_that_vanished(lab: &Lab) {
    let files = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: files.maximum, ..files });
    // A socket and a copy of it for each session, at this end and at the server's.
    if files.maximum.is_some_and(|most| most < 12_000) {
        return support::skip("a_crowd_outlives_a_holder_that_vanished", "too few files may be open");
    }
    let (place, clients) = Place::make(lab);
    clients.at(place.port()).0.init().await.expect("init");
    let set = LocalSet::new();
    let crowd = set.run_until(crowd(lab, &place, &clients));
    tokio::time::timeout(LIMIT, crowd).await.expect("all have had their turns");
}

async fn crowd(lab: &Lab, place: &Place, clients: &Clients) {
    let holder = Holder::start(clients, Proxy::to(place.port()));
    let (began, memory) = (Instant::now(), procfs::rss_kib(std::process::id()));
    let turns = Rc::new(Turns::default());
    let (count, mut waiting) = (u32::try_from(support::crowd()).expect("few"), Vec::new());
    for n in 0..count {
        waiting.push(spawn_local(have_a_turn(clients.at(place.port()), Rc::clone(&turns))));
        // Connections are made one at a time: nobody is to wait for that in vain.
        while turns.joined.get() + 8 < n {
            lab.pass(Duration::from_millis(1)).await;
        }
    }
    while turns.joined.get() < count {
        lab.pass(Duration::from_millis(20)).await;
    }
    let gathered = began.elapsed();
    let each = procfs::rss_kib(std::process::id()).saturating_sub(memory) / u64::from(count);
    assert!(turns.taken.borrow().is_empty(), "it is held");
    holder.vanish.send(()).expect("the holder");
    for waiter in waiting {
        waiter.await.expect("its turn");
    }
    let last = holder.thread.join().expect("the holder");
    let turns = turns.taken.borrow();
    assert_eq!(turns.len(), count as usize);
    assert!(turns.windows(2).all(|two| two[0].1 < two[1].1), "fences rise");
    let (first, drained) = (turns[0].0 - last, turns[turns.len() - 1].0 - turns[0].0);
    support::say(&format!(
        "{}: {count} waiters gathered in {gathered:.1?}, {each} KiB each; the holder vanished with a lease of {TTL:?}: the first turn \
         came after {first:.2?}, all were through {drained:.1?} later",
        lab.kind.name()
    ));
    // Whoever takes a session's lock waits half a second for what the one before may still run.
    let drain_delay = if lab.kind.is_a_session() { Duration::from_millis(500) } else { Duration::ZERO };
    assert!(first >= TTL && first < TTL + SHORT + drain_delay, "{first:?}");
    assert!(each < 512, "{each} KiB for each waiter");
    let state = clients.at(place.port()).inspect(&key("job")).await;
    assert!(state.holders.is_empty() && state.waiters.is_empty(), "{state:?}");
    // Connections end when the runtime comes to it.
    let until = Instant::now() + Duration::from_secs(20);
    while place.sessions() > 0 {
        assert!(Instant::now() < until, "{} sessions are left", place.sessions());
        lab.pass(Duration::from_millis(50)).await;
    }
}
