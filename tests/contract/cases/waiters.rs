//! Many waiters, each with its own sessions, for one lock of a SQL server whose holder is cut off
//! permanently.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    time::{Duration, Instant},
};

use dlock::{
    backends::{mysql, postgres, sql::SqlServer},
    lease::{self, BootClock, Limits, Outcome, Released, WaitPolicy},
    lock::{Busy, Fence, Scope},
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::task::{LocalSet, spawn_local};

use super::{Case, cases};
use crate::{
    lab::{Client, LONG, Lab, key, request, short, waiting},
    support::{
        self, mariadb,
        postgres::{Options as PostgresOptions, Postgres},
        procfs,
        proxy::{Mode as Network, Proxy},
    },
};

pub fn all() -> Vec<Case> {
    cases![|kind| kind.speaks_mysql() || kind.is_postgres() => many_waiters_survive_a_holder_that_vanished]
}

/// The holder's TTL.
const TTL: Duration = Duration::from_secs(4);
/// The time limit for all waiters, on a slow machine too.
const LIMIT: Duration = Duration::from_secs(300);
/// One thread runs all waiters, hence the long limits.
const LIMITS: Limits<'static> = Limits::of(Duration::from_secs(20));

/// A server of this case alone that accepts enough sessions.
enum OwnServer {
    MariaDb(mariadb::MariaDb),
    Postgres(Postgres),
}

/// The options of the server's clients.
#[derive(Clone)]
enum Clients {
    MariaDb(mysql::MysqlOptions),
    Postgres(postgres::PostgresOptions),
}

impl Clients {
    /// Returns a client that reaches the server through this port.
    fn at(&self, port: u16) -> Client {
        let server = SqlServer::Tcp {
            host: "127.0.0.1".into(),
            port,
        };
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

impl OwnServer {
    fn make(lab: &Lab) -> (Self, Clients) {
        // One session for each waiter. With mode=row a few have a second one to count fences; and
        // the test has one to inspect.
        let most = support::many_waiters() + 50;
        if lab.kind.speaks_mysql() {
            let settings = vec![format!("--max-connections={most}")];
            let server = mariadb::MariaDb::with(mariadb::Options {
                settings,
                ..Default::default()
            });
            server.sql("mysql", "CREATE DATABASE app");
            let mut options = lab.mysql_options("dlock");
            options.sql.database = Some("app".into());
            (Self::MariaDb(server), Clients::MariaDb(options))
        } else {
            let settings = vec![format!("max_connections={most}")];
            let server = Postgres::with(PostgresOptions {
                settings,
                ..Default::default()
            });
            let mut options = lab.postgres_options("dlock");
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

    /// Returns the number of client sessions.
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

/// Stands for another process: a thread that takes the lock, and renews it until `vanish` cuts the
/// thread off.
struct Holder {
    vanish: std::sync::mpsc::Sender<()>,
    thread: std::thread::JoinHandle<Instant>,
}

impl Holder {
    /// Starts the thread, and returns once it holds the lock.
    fn start(clients: &Clients, line: Proxy) -> Self {
        let (vanish, vanishing) = std::sync::mpsc::channel();
        let (has, had) = std::sync::mpsc::channel();
        let (clients, mut line) = (clients.clone(), line);
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime");
            runtime.block_on(async {
                let mut client = clients.at(line.port);
                let held = request(&key("job"), TTL);
                client.take(&held).await;
                has.send(()).expect("the case");
                while vanishing.try_recv().is_err() {
                    client.renewed(&held, None).await;
                    tokio::time::sleep(TTL / 10).await;
                }
                let last = Instant::now();
                client.renewed(&held, None).await;
                line.set(Network::BlackHole);
                // The connection is cut off but not closed, so the server notices nothing.
                std::thread::sleep(TTL + short() * 2);
                last
            })
        });
        had.recv().expect("the lock");
        Self { vanish, thread }
    }
}

/// The grants that the waiters got.
#[derive(Default)]
struct Grants {
    joined: Cell<u32>,
    inside: Cell<u32>,
    taken: RefCell<Vec<(Instant, Fence)>>,
}

/// Waits as `dlock run` does, gets the lock, and releases it.
async fn wait_and_release(mut client: Client, grants: Rc<Grants>) {
    let (never, wanted) = (std::future::pending::<()>(), waiting(&key("job"), LONG));
    let mut first = true;
    let busy = |_: &Busy| {
        grants
            .joined
            .set(grants.joined.get() + u32::from(std::mem::take(&mut first)));
    };
    let outcome = lease::acquire(
        &mut *client.0,
        &BootClock,
        wanted,
        WaitPolicy::Forever,
        LIMITS,
        never,
        busy,
    )
    .await;
    let Ok(Outcome::Granted(lease)) = outcome else {
        panic!("{outcome:?}")
    };
    grants
        .taken
        .borrow_mut()
        .push((Instant::now(), lease.fence));
    assert_eq!(
        grants.inside.replace(1),
        0,
        "two waiters hold the lock at once"
    );
    tokio::task::yield_now().await;
    grants.inside.set(0);
    let released = lease::release(
        &mut *client.0,
        &BootClock,
        &lease.key,
        &lease.token,
        &Scope::Tree.into(),
        LIMITS,
    )
    .await;
    assert!(matches!(released, Released::Free), "{released:?}");
}

async fn many_waiters_survive_a_holder_that_vanished(lab: &Lab) {
    let files = getrlimit(Resource::Nofile);
    let _ = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: files.maximum,
            ..files
        },
    );
    // Each session needs a socket and a copy of it, at both ends.
    if files.maximum.is_some_and(|most| most < 12_000) {
        return support::skip(
            "many_waiters_survive_a_holder_that_vanished",
            "too few files may be open",
        );
    }
    let (server, clients) = OwnServer::make(lab);
    clients.at(server.port()).0.init().await.expect("init");
    let set = LocalSet::new();
    let run = set.run_until(run_waiters(lab, &server, &clients));
    tokio::time::timeout(LIMIT, run)
        .await
        .expect("all waiters got the lock");
}

async fn run_waiters(lab: &Lab, server: &OwnServer, clients: &Clients) {
    let holder = Holder::start(clients, Proxy::to(server.port()));
    let (began, memory) = (Instant::now(), procfs::rss_kib(std::process::id()));
    let grants = Rc::new(Grants::default());
    let (count, mut waiting) = (
        u32::try_from(support::many_waiters()).expect("few"),
        Vec::new(),
    );
    for n in 0..count {
        waiting.push(spawn_local(wait_and_release(
            clients.at(server.port()),
            Rc::clone(&grants),
        )));
        // Connections are made one at a time: no waiter may time out while it connects.
        while grants.joined.get() + 8 < n {
            lab.pass(Duration::from_millis(1)).await;
        }
    }
    while grants.joined.get() < count {
        lab.pass(Duration::from_millis(20)).await;
    }
    let gathered = began.elapsed();
    let each = procfs::rss_kib(std::process::id()).saturating_sub(memory) / u64::from(count);
    assert!(grants.taken.borrow().is_empty(), "the lock is still held");
    holder.vanish.send(()).expect("the holder");
    for waiter in waiting {
        waiter.await.expect("a grant");
    }
    let last = holder.thread.join().expect("the holder");
    let grants = grants.taken.borrow();
    assert_eq!(grants.len(), count as usize);
    assert!(
        grants.windows(2).all(|two| two[0].1 < two[1].1),
        "fences rise"
    );
    let (first, drained) = (grants[0].0 - last, grants[grants.len() - 1].0 - grants[0].0);
    support::say(&format!(
        "{}: {count} waiters gathered in {gathered:.1?}, {each} KiB each; the holder vanished with a lease of {TTL:?}: the first grant \
         came after {first:.2?}, the last one {drained:.1?} later",
        lab.kind.name()
    ));
    // A session's lock has a drain delay of half a second after a vanished holder.
    let drain_delay = if lab.kind.held_by_session() {
        Duration::from_millis(500)
    } else {
        Duration::ZERO
    };
    assert!(
        first >= TTL && first < TTL + short() + drain_delay,
        "{first:?}"
    );
    assert!(each < 512, "{each} KiB for each waiter");
    let state = clients.at(server.port()).inspect(&key("job")).await;
    assert!(
        state.holders.is_empty() && state.waiters.is_empty(),
        "{state:?}"
    );
    // Connections end some time after their clients are dropped.
    let until = Instant::now() + Duration::from_secs(20);
    while server.sessions() > 0 {
        assert!(
            Instant::now() < until,
            "{} sessions are left",
            server.sessions()
        );
        lab.pass(Duration::from_millis(50)).await;
    }
}
