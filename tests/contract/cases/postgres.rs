//! Cases of PostgreSQL only: locked rows, clock changes, waits in the server, poolers.

use std::time::{Duration, Instant};

use dlock::{
    backends::{
        postgres::{AdvisoryKey, PostgresOptions, backend},
        sql::{SqlMode, SqlServer},
    },
    lease::{self, BootClock, Limits, Outcome, WaitPolicy},
    lock::{Effect, Kind as ErrorKind, Release, Renewal, Request, Scope},
};

use super::{Case, cases};
use crate::{
    lab::{Client, LONG, Lab, SLACK, key, nested, request, soon, waiting},
    support::{self, postgres, proxy::Proxy},
    targets::Kind,
};

pub fn all() -> Vec<Case> {
    let mut all = cases![|kind| kind == Kind::PostgresLease =>
        a_row_locked_by_another_session_gives_no_answer,
        a_read_only_server_is_a_configuration_error,
        a_clock_that_is_set_back_repeats_no_fence,
        a_clock_that_is_set_forward_ends_leases_and_is_reported,
        a_released_lock_is_free_whatever_the_clock,
        an_uncontended_acquire_is_one_round_trip_on_postgres,
        an_undone_acquire_is_not_granted_later,
        odd_metadata_comes_back_unchanged,
        a_foreign_row_without_an_end_is_read,
    ];
    all.extend(
        cases![|kind| kind.is_postgres() && kind.held_by_session() =>
            a_wait_is_given_up_even_if_the_cancel_arrives_late,
        ],
    );
    all.extend(
        cases![|kind| kind == Kind::PostgresRow => a_row_that_another_program_locked_is_listed],
    );
    all.extend(cases![|kind| kind == Kind::PostgresAdvisory => other_clients_can_take_the_same_advisory_lock]);
    all.extend(cases![Kind::is_postgres =>
        vanished_waiters_leave_no_blocked_session,
        a_pooler_is_noticed,
    ]);
    all
}

async fn a_row_locked_by_another_session_gives_no_answer(lab: &Lab) {
    let mut a = lab.client().await;
    let job = key("job");
    let held = a.hold(&job).await;
    let blocker = lab
        .postgres()
        .keep("BEGIN; SELECT 1 FROM dlock WHERE name = 'dlock:job' FOR UPDATE");
    let renewal = tokio::time::timeout(
        Duration::from_millis(300),
        a.0.renew(&job, &held.token, None.into()),
    )
    .await;
    assert!(renewal.is_err(), "{renewal:?}");
    drop(blocker);
    a.renewed(&held, None).await;
    a.free(&held).await;
}

/// A row that somebody wrote by hand, to keep a job from running, hides no other lock.
async fn a_foreign_row_without_an_end_is_read(lab: &Lab) {
    let mut a = lab.client().await;
    for (until, held) in [("infinity", true), ("-infinity", false)] {
        let job = key("job");
        lab.postgres().sql(&format!(
            "INSERT INTO dlock (name, lock_until, locked_at, locked_by) \
             VALUES ('dlock:job', '{until}', timezone('utc', now()), 'web7') \
             ON CONFLICT (name) DO UPDATE SET lock_until = excluded.lock_until"
        ));
        let other = a.hold(&key("other")).await;
        assert_eq!(a.inspect(&job).await.holders.len(), usize::from(held));
        assert_eq!(a.keys("").await.len(), 1 + usize::from(held));
        let ours = waiting(&job, LONG);
        if held {
            a.refused(&ours).await;
            a.wait(&ours, Duration::from_millis(50)).await;
            a.leave_queue(&ours).await;
        } else {
            a.take(&ours).await;
            a.free(&ours).await;
        }
        a.free(&other).await;
    }
}

async fn a_read_only_server_is_a_configuration_error(lab: &Lab) {
    lab.postgres().sql(&format!(
        "ALTER DATABASE {} SET default_transaction_read_only = on",
        lab.postgres().name
    ));
    let mut a = lab.client().await;
    let error =
        a.0.try_acquire(&request(&key("job"), LONG))
            .await
            .expect_err("read only");
    assert_eq!(
        (error.kind, error.effect),
        (ErrorKind::Config, Effect::NotApplied),
        "{error:?}"
    );
    assert!(error.message.contains("standby"), "{error}");
    assert!(
        a.0.inspect(&key("job")).await.is_ok(),
        "an inspection writes nothing"
    );
}

async fn an_uncontended_acquire_is_one_round_trip_on_postgres(lab: &Lab) {
    let proxy = Proxy::to(lab.store().port());
    let mut a = lab.through(proxy.port);
    let held = a.hold(&key("job")).await;
    // The login, and one statement that inserts the missing row.
    assert!(proxy.requests() <= 2, "{} requests", proxy.requests());
    a.free(&held).await;
    let before = proxy.requests();
    let held = a.hold(&key("job")).await;
    a.renewed(&held, None).await;
    a.free(&held).await;
    assert_eq!(proxy.requests() - before, 3);
}

/// A slow server may run the release before the acquire.
async fn an_undone_acquire_is_not_granted_later(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let job = key("job");
    let held = a.hold(&job).await;
    a.free(&held).await;
    let blocker = lab
        .postgres()
        .keep("BEGIN; SELECT 1 FROM dlock WHERE name = 'dlock:job' FOR UPDATE");
    let wanted = request(&job, LONG);
    let attempt = tokio::time::timeout(SLACK, a.0.try_acquire(&wanted)).await;
    assert!(attempt.is_err(), "{attempt:?}");
    assert_eq!(a.release(&wanted, Scope::Hold).await, Release::NotHeld);
    drop(blocker);
    b.hold(&job).await;
}

async fn odd_metadata_comes_back_unchanged(lab: &Lab) {
    let mut a = lab.client().await;
    let odd = "it's \\ $1 $$; -- \u{e9}\u{1f512} \"x\" E'\\x41' \t{table}";
    let held = Request {
        metadata: Some(crate::lab::runner(odd)),
        ..request(&key("job"), LONG)
    };
    a.take(&held).await;
    let holder = a.inspect(&held.key).await.holders.remove(0);
    assert_eq!(holder.metadata, held.metadata);
    a.renewed(&held, None).await;
    a.free(&held).await;
}

/// The server must not start to wait after the cancel.
async fn a_wait_is_given_up_even_if_the_cancel_arrives_late(lab: &Lab) {
    let proxy = Proxy::to(lab.store().port());
    let (mut a, mut b) = (lab.client().await, lab.through(proxy.port));
    let job = key("job");
    let held = a.hold(&job).await;
    let wanted = waiting(&job, LONG);
    b.refused(&wanted).await;
    proxy.trap("lock_timeout", support::proxy::Fault::Late(SLACK));
    let wait = tokio::time::timeout(SLACK / 2, b.0.wait(&wanted, LONG)).await;
    assert!(wait.is_err(), "{wait:?}");
    tokio::time::timeout(soon(), b.leave_queue(&wanted))
        .await
        .expect("the wait is given up");
    let blocked = lab.postgres().sql(BLOCKED);
    assert!(blocked.is_empty(), "{blocked:?}");
    a.free(&held).await;
    b.hold(&job).await;
}

/// Lists our sessions in the case's database that wait for a lock.
const BLOCKED: &str = "SELECT query FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'dlock %' \
                       AND wait_event_type = 'Lock'";

async fn vanished_waiters_leave_no_blocked_session(lab: &Lab) {
    let mut a = lab.client().await;
    let job = key("job");
    let held = a.hold(&job).await;
    let mut waiters = Vec::new();
    for _ in 0..3 {
        let (mut b, wanted) = (lab.client().await, waiting(&job, LONG));
        b.refused(&wanted).await;
        let wait = tokio::time::timeout(SLACK, b.0.wait(&wanted, LONG)).await;
        assert!(wait.is_err(), "{wait:?}");
        waiters.push(b);
    }
    drop(waiters);
    assert!(
        !lab.postgres().sql(BLOCKED).is_empty(),
        "no session is blocked"
    );
    let began = Instant::now();
    while !lab.postgres().sql(BLOCKED).is_empty() {
        assert!(
            began.elapsed() < soon() * 2,
            "the server did not notice that the waiter is gone"
        );
        lab.pass(Duration::from_millis(20)).await;
    }
    a.free(&held).await;
}

async fn other_clients_can_take_the_same_advisory_lock(lab: &Lab) {
    let mut a = lab.client().await;
    let held = a.hold(&key("job")).await;
    let theirs = "SELECT pg_try_advisory_lock(hashtextextended('dlock:job', 0))";
    assert_eq!(lab.postgres().sql(theirs)[0][0].as_deref(), Some("f"));
    a.free(&held).await;
    let keeps = lab
        .postgres()
        .keep("SELECT pg_advisory_lock(hashtextextended('dlock:job', 0))");
    let busy = a.refused(&request(&key("job"), LONG)).await;
    assert!(
        busy.holders[0].foreign && busy.holders[0].fence.is_none(),
        "{busy:?}"
    );
    let over = a.hold(&key("over")).await;
    a.free(&over).await;
    // dlock can't know the names of other advisory locks, only of its own.
    assert_eq!(a.keys("").await, ["job"]);
    drop(keeps);
    for (key_of, sql) in [
        (AdvisoryKey::One(-7), "-7"),
        (AdvisoryKey::Two(7, -8), "7, -8"),
    ] {
        let mut options = lab.postgres_options("dlock");
        options.advisory_key = Some(key_of);
        let mut b = Client(backend(options));
        let held = Request {
            metadata: Some(crate::lab::runner("web1")),
            ..request(&key("job"), LONG)
        };
        b.take(&held).await;
        assert_eq!(
            lab.postgres()
                .sql(&format!("SELECT pg_try_advisory_lock({sql})"))[0][0]
                .as_deref(),
            Some("f")
        );
        assert_eq!(
            b.inspect(&key("job")).await.holders[0].metadata,
            Some(crate::lab::runner("web1"))
        );
        b.free(&held).await;
        assert!(b.keys("").await.is_empty());
        let _keeps = lab
            .postgres()
            .keep(&format!("SELECT pg_advisory_lock({sql})"));
        b.refused(&request(&key("job"), LONG)).await;
        assert!(b.keys("").await.contains(&"job".to_owned()));
    }
    assert_eq!(lab.postgres_options("dlock").sql.mode, SqlMode::Advisory);
}

async fn a_row_that_another_program_locked_is_listed(lab: &Lab) {
    let mut a = lab.client().await;
    for job in ["job", "over"] {
        let held = a.hold(&key(job)).await;
        a.free(&held).await;
    }
    let _keeps = lab
        .postgres()
        .keep("BEGIN; SELECT 1 FROM dlock_rows WHERE name = 'dlock:job' FOR UPDATE");
    let busy = a.refused(&request(&key("job"), LONG)).await;
    assert!(busy.holders[0].foreign, "{busy:?}");
    assert_eq!(a.keys("").await, ["job"]);
}

/// A server whose clock follows a file, and how to reach it.
struct Stepped {
    _server: postgres::Postgres,
    offset: std::path::PathBuf,
    _folder: tempfile::TempDir,
    options: PostgresOptions,
}

impl Stepped {
    fn start(lab: &Lab, test: &str) -> Option<Self> {
        use std::os::unix::fs::PermissionsExt as _;
        let library = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1";
        if !std::path::Path::new(library).exists() {
            support::skip(test, "faketime is not installed");
            return None;
        }
        let folder = support::folder();
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755))
            .expect("the folder's mode");
        let offset = folder.path().join("offset");
        std::fs::write(&offset, "+0").expect("offset");
        let environment = vec![
            ("LD_PRELOAD", library.to_owned()),
            ("FAKETIME_TIMESTAMP_FILE", offset.display().to_string()),
            ("FAKETIME_NO_CACHE", "1".to_owned()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
        ];
        let server = postgres::Postgres::with(postgres::Options {
            environment,
            ..Default::default()
        });
        let mut options = lab.postgres_options("dlock");
        options.sql.server = SqlServer::Tcp {
            host: "127.0.0.1".into(),
            port: server.port,
        };
        options.sql.database = Some("postgres".into());
        Some(Self {
            _server: server,
            offset,
            _folder: folder,
            options,
        })
    }

    fn step(&self, offset: &str) {
        std::fs::write(&self.offset, offset).expect("offset");
    }

    async fn client(&self) -> Client {
        let mut client = Client(backend(self.options.clone()));
        client.0.init().await.expect("init");
        client
    }
}

/// A free lock must not look held until the clock has caught up, to ShedLock neither.
async fn a_released_lock_is_free_whatever_the_clock(lab: &Lab) {
    let Some(stepped) = Stepped::start(lab, "a_released_lock_is_free_whatever_the_clock") else {
        return;
    };
    let (mut a, mut b) = (stepped.client().await, stepped.client().await);
    let (job, tree) = (key("job"), key("tree"));
    let held = a.hold(&job).await;
    a.free(&held).await;
    let outer = a.hold(&tree).await;
    b.take(&nested(&outer)).await;
    assert_eq!(a.release(&outer, Scope::Tree).await, Release::Released);
    stepped.step("-3600");
    for job in [&job, &tree] {
        assert!(b.inspect(job).await.holders.is_empty());
        b.hold(job).await;
    }
}

async fn a_clock_that_is_set_back_repeats_no_fence(lab: &Lab) {
    let Some(stepped) = Stepped::start(lab, "a_clock_that_is_set_back_repeats_no_fence") else {
        return;
    };
    let (mut a, mut b) = (stepped.client().await, stepped.client().await);
    let job = key("job");
    let held = request(&job, LONG);
    let first = a.take(&held).await.fence;
    stepped.step("-3600");
    // The lease lasts longer, and no other client gets the lock.
    b.refused(&request(&job, LONG)).await;
    assert!(a.left(&job).await > LONG * 50);
    assert!(matches!(a.renew(&held, None).await, Renewal::Kept { .. }));
    a.free(&held).await;
    let next = request(&job, LONG);
    let second = b.take(&next).await.fence;
    assert!(second > first, "{second} after {first}");
}

async fn a_clock_that_is_set_forward_ends_leases_and_is_reported(lab: &Lab) {
    let Some(stepped) = Stepped::start(
        lab,
        "a_clock_that_is_set_forward_ends_leases_and_is_reported",
    ) else {
        return;
    };
    let (mut a, mut b) = (stepped.client().await, stepped.client().await);
    let job = key("job");
    let held = request(&job, LONG);
    let first = a.take(&held).await.fence;
    stepped.step("+3600");
    // The early end breaks no promise: the resource has to check the fence.
    let second = b.take(&request(&job, LONG)).await.fence;
    assert!(second > first, "{second} after {first}");
    assert_eq!(a.renew(&held, None).await, Renewal::NotHeld);
    assert_eq!(a.release(&held, Scope::Tree).await, Release::NotHeld);
}

/// Starts pgbouncer in transaction mode, and returns it with its port; `None` where pgbouncer isn't
/// installed.
pub fn start_pooler(lab: &Lab) -> Option<((support::process::Process, tempfile::TempDir), u16)> {
    let program = support::find_program("pgbouncer")?;
    let folder = support::folder();
    let port = support::ports::free();
    let settings = format!(
        "[databases]\n* = host=127.0.0.1 port={} user={}\n[pgbouncer]\nlisten_addr=127.0.0.1\nlisten_port={port}\nunix_socket_dir=\n\
         auth_type=any\npool_mode=transaction\n",
        lab.store().port(),
        postgres::USER
    );
    let file = folder.path().join("pgbouncer.ini");
    std::fs::write(&file, settings).expect("settings");
    postgres::give(folder.path());
    let mut command = postgres::as_user(&program);
    command
        .arg(&file)
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null());
    let pooler = support::process::Process::start(command);
    support::must("pgbouncer listens", Duration::from_secs(5), || {
        std::net::TcpStream::connect(("127.0.0.1", port)).is_ok()
    });
    Some(((pooler, folder), port))
}

async fn a_pooler_is_noticed(lab: &Lab) {
    let Some((_pooler, port)) = start_pooler(lab) else {
        return support::skip("a_pooler_is_noticed", "pgbouncer is not installed");
    };
    let through = || {
        let mut options = lab.postgres_options("dlock");
        options.sql.server = SqlServer::Tcp {
            host: "127.0.0.1".into(),
            port,
        };
        Client(backend(options))
    };
    let (mut a, mut b) = (through(), through());
    let job = key("job");
    if lab.kind.held_by_session() {
        let error =
            a.0.try_acquire(&request(&job, LONG))
                .await
                .expect_err("the lock would end with the transaction");
        assert_eq!(
            (error.kind, error.effect),
            (ErrorKind::Config, Effect::NotApplied),
            "{error:?}"
        );
        assert!(lab.client().await.inspect(&job).await.holders.is_empty());
        return;
    }
    let plain = waiting(&job, LONG);
    for wanted in [
        plain.clone(),
        Request {
            mode: dlock::lock::Mode::Shared,
            ..plain.clone()
        },
        Request {
            fair: true,
            ..plain
        },
    ] {
        let wanted = Request {
            token: dlock::lock::Token::random(),
            ..wanted
        };
        let held = a.hold(&job).await;
        a.renewed(&held, None).await;
        let never = std::future::pending::<()>();
        let next = lease::acquire(
            &mut *b.0,
            &BootClock,
            wanted.clone(),
            WaitPolicy::For(LONG),
            Limits::DEFAULT,
            never,
            |_| {},
        );
        let release = async {
            lab.pass(Duration::from_millis(400)).await;
            a.free(&held).await;
            Instant::now()
        };
        let (outcome, released) = tokio::join!(next, release);
        assert!(matches!(outcome, Ok(Outcome::Granted(_))), "{outcome:?}");
        assert!(released.elapsed() < soon(), "{:?}", released.elapsed());
        b.free(&wanted).await;
    }
    assert!(
        b.0.notices()
            .iter()
            .any(|notice| notice.text.contains("pooler")),
        "the pooler was not reported"
    );
    let locks = lab.postgres().sql("SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())");
    assert!(
        locks.is_empty(),
        "an advisory lock was left in a session of the pool"
    );
}
