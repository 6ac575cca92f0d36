//! The keeper of a lock in `mode=row` and `mode=advisory`: one session for each hold, and its statements.
//!
//! The session sends nothing but renewals while it has the lock. So the server's timeout for idle sessions, set to
//! the TTL, ends it about when the lease of a vanished holder ends.

use std::time::Duration;

use sqlx::{Row as _, postgres::PgRow};

use super::{
    connection::Session,
    failure,
    gate::{stand_and_leave, stand_in},
    names::Tables,
    options::{AdvisoryKey, Mode, Options},
    session_look::broken,
    starts,
    statement::{Value, fill},
    table::part,
};
use crate::lock::{Break, Error, Fence, Holder, Kind, Mode as How, ReleaseInfo, Result, Ttl};

/// From this version on the server can end a session that is idle outside of a transaction.
pub(super) const IDLE_SESSION_TIMEOUT: u32 = 140_000;
/// From this version on a role's settings can bound a transaction as a whole.
const TRANSACTION_TIMEOUT: u32 = 170_000;
/// A waiter that is frozen when it gets the lock keeps it for at most this long.
const UNCLAIMED: Duration = Duration::from_secs(5);

/// Begins the transaction that keeps the row locked. Sent with each attempt: a dropped call may have ended the transaction or not,
/// and outside of one, a row is locked for no longer than its statement. Within one it changes nothing.
const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;";

/// What is locked.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub name: String,
    pub how: How,
}

/// A session that asks for a lock, waits for it or has it.
#[allow(clippy::struct_excessive_bools)] // what is known of it, each by itself
pub(super) struct Keeper {
    pub session: Session,
    pub target: Target,
    mode: Mode,
    key: Option<AdvisoryKey>,
    tables: Tables,
    /// The server's process.
    pub pid: i32,
    /// The session was seen to have the lock.
    pub has: bool,
    /// The silence after which the server ends the session.
    pub patience: Duration,
    /// Attempts without an answer since the last answered one.
    pub unanswered: u32,
    /// It blocks in the server, or was left blocking there.
    pub blocked: bool,
    /// The server counts the silence from an attempt that had the lock, not from the wait before.
    attempted: bool,
    /// The holders at the last look.
    pub found: Option<Vec<Holder>>,
    /// For how long the lock stays refused, though no session has it.
    pub rests: Option<Duration>,
}

impl Keeper {
    pub(super) async fn open(options: &Options, tables: &Tables, target: Target) -> Result<Self> {
        let session = Session::open(&options.sql).await?;
        let (mode, key, tables) = (options.mode, options.advisory_key, tables.clone());
        Ok(Self {
            session,
            target,
            mode,
            key,
            tables,
            pid: 0,
            has: false,
            patience: Duration::ZERO,
            unanswered: 0,
            blocked: false,
            attempted: false,
            found: None,
            rests: None,
        })
    }

    /// The statements after which the server ends the session once it has been silent for so long; both ends find out
    /// about as soon that the other's machine is gone.
    fn set_patience(&mut self, patience: Duration) -> String {
        self.session.keep_alive(patience);
        self.patience = patience;
        let ms = patience.as_millis();
        let seconds = |part: Duration| part.as_secs().max(1);
        let idle = match self.mode {
            Mode::Row => format!("SET idle_in_transaction_session_timeout = '{ms}ms';"),
            _ if self.session.version >= IDLE_SESSION_TIMEOUT => format!("SET idle_session_timeout = '{ms}ms';"),
            _ => String::new(),
        };
        let user_timeout = if self.session.version >= 120_000 { format!("SET tcp_user_timeout = '{ms}ms';") } else { String::new() };
        // A transaction that has a lock lasts as long as that.
        let whole = if self.session.version >= TRANSACTION_TIMEOUT { "SET transaction_timeout = 0;" } else { "" };
        format!(
            "{idle} {whole} {user_timeout} SET tcp_keepalives_idle = {}; SET tcp_keepalives_interval = {}; SET tcp_keepalives_count = 3;",
            seconds(patience / 3),
            seconds(patience / 6)
        )
    }

    /// Asks for the lock. True if the session has the lock, also on a repeated request.
    pub(super) async fn attempt(&mut self, ttl: Ttl) -> Result<bool> {
        self.unanswered += 1;
        let mut first = self.set_patience(ttl.get());
        self.has = if self.mode == Mode::Row {
            first.push_str(BEGIN);
            self.lock_row(&first).await?
        } else {
            self.lock_key(&first).await?
        };
        self.unanswered = 0;
        self.attempted = self.has;
        Ok(self.has)
    }

    /// Runs what counts the fence of a lock that is ours: over `side`, if this session is in a transaction.
    pub(super) async fn count(&mut self, ttl: Ttl, fence: &str, side: Option<&mut Session>) -> Result<Vec<PgRow>> {
        self.unanswered += 1;
        let first = if std::mem::take(&mut self.attempted) { String::new() } else { self.set_patience(ttl.get()) };
        let rows = match side {
            Some(side) if first.is_empty() => side.run(fence).await?,
            Some(side) => {
                // At once: a number that was counted for a session that is over is skipped.
                let (ours, rows) = tokio::join!(self.session.run(&first), side.run(fence));
                if let Err(error) = ours {
                    self.give_back().await?;
                    return Err(error);
                }
                rows?
            }
            None => self.session.run(&format!("{first}{fence}")).await?,
        };
        self.unanswered = 0;
        Ok(rows)
    }

    fn reads_row(&self) -> bool {
        self.mode == Mode::Row && self.target.how == How::Shared
    }

    /// Of the functions of advisory locks.
    fn suffix(&self) -> &'static str {
        if self.target.how == How::Shared { "_shared" } else { "" }
    }

    async fn lock_key(&mut self, first: &str) -> Result<bool> {
        let sql = format!("SELECT pg_backend_pid(), pg_try_advisory_lock{}({})", self.suffix(), self.arguments());
        let rows = self.session.run(&format!("{first}{}", self.of_name(&sql))).await?;
        self.read(&rows)
    }

    /// Which process of the server asked, and whether the lock is ours.
    fn read(&mut self, rows: &[PgRow]) -> Result<bool> {
        let row = rows.first().ok_or_else(no_row)?;
        self.pid = row.try_get(0).map_err(failure::malformed)?;
        row.try_get(1).map_err(failure::malformed)
    }

    /// In a transaction of its own, which ends if another session has the row. A reader ends it too if a writer waits.
    async fn lock_row(&mut self, first: &str) -> Result<bool> {
        let how = match self.target.how {
            How::Shared => format!("AND pg_try_advisory_xact_lock_shared({}) FOR SHARE", self.tables.turn(&self.target.name)),
            _ => "FOR UPDATE".to_owned(),
        };
        let lock = self.tables.fill(&format!(
            "SELECT pg_backend_pid(), locked.name IS NOT NULL FROM (SELECT 1) AS one
               LEFT JOIN (SELECT name FROM {{rows}} WHERE name = $1 {how} SKIP LOCKED) AS locked ON true",
        ));
        let rows = self.session.run(&format!("{first}{}", self.of_name(&lock))).await;
        let rows = match rows {
            Ok(rows) => rows,
            Err(error) => {
                // The statement failed and the transaction with it.
                self.give_back().await?;
                return Err(error);
            }
        };
        if self.read(&rows)? {
            return Ok(true);
        }
        self.give_back().await?;
        Ok(false)
    }

    /// Makes the row to lock, if it isn't there. True if it was made.
    pub(super) async fn make_row(&mut self) -> Result<bool> {
        if self.mode != Mode::Row {
            return Ok(false);
        }
        let sql = self.tables.fill("INSERT INTO {rows} (name) VALUES ($1) ON CONFLICT DO NOTHING RETURNING 1");
        self.unanswered += 1;
        let made = !self.session.query(&sql, &[Value::Text(&self.target.name)]).await?.is_empty();
        self.unanswered = 0;
        Ok(made)
    }

    /// Waits in the server for the lock, at most for the given time. True if the session has the lock then.
    pub(super) async fn wait(&mut self, ttl: Ttl, at_most: Duration) -> Result<bool> {
        (self.blocked, self.attempted) = (true, false);
        let mut first = self.set_patience(ttl.get().min(UNCLAIMED));
        let version = self.session.version;
        if self.mode == Mode::Row {
            first.push_str(BEGIN);
        }
        let what = match self.mode {
            Mode::Row => {
                let lock = if self.target.how == How::Shared { "SHARE" } else { "UPDATE" };
                let turn = format!("PERFORM pg_advisory_xact_lock{}({});", self.suffix(), self.tables.turn(&self.target.name));
                self.tables.fill(&format!("{turn} PERFORM 1 FROM {{rows}} WHERE name = $1 FOR {lock};"))
            }
            Mode::Lease | Mode::Advisory => format!("PERFORM pg_advisory_lock{}({});", self.suffix(), self.arguments()),
        };
        let line = self.tables.line(&self.target.name, self.session.pid());
        // Of readers all are to go on as soon as one can.
        let waiting = if self.reads_row() { stand_and_leave } else { stand_in };
        first.push_str(&waiting(line, &self.of_name(&what), at_most, version));
        let waited = if self.mode == Mode::Row { self.lock_row(&first).await } else { self.lock_key(&first).await };
        self.has = match waited {
            // Nothing is left of a transaction; what a session has got in that instant it is asked for below.
            Err(error) if failure::is_cancelled(&error) && self.mode == Mode::Row => false,
            Err(error) if failure::is_cancelled(&error) => self.lock_key("").await?,
            waited => waited?,
        };
        self.blocked = false;
        Ok(self.has)
    }

    /// The server's time in µs, and the break of the hold with this fence, if there is one; asking keeps the session for as long as its
    /// patience says, or a new one.
    pub(super) async fn renew(&mut self, fence: Fence, patience: Option<Duration>) -> Result<(i64, Option<Break>)> {
        let first = patience.map(|patience| self.set_patience(patience)).unwrap_or_default();
        let sql = self.tables.fill(
            "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now_us, m.mark, m.seen
               FROM (SELECT 1) AS one LEFT JOIN {marks} AS m ON m.name = $1 AND m.fence = $2",
        );
        let fence = i64::try_from(fence.0).unwrap_or(i64::MAX);
        let sql = fill(&sql, &[Value::Text(&self.target.name), Value::Int(fence)]);
        let rows = self.session.run(&format!("{first}{sql}")).await?;
        let row = rows.first().ok_or_else(no_row)?;
        let read = || Ok((row.try_get("now_us")?, broken(row)?));
        read().map_err(failure::malformed)
    }

    /// Gives back whatever the session has.
    pub(super) async fn give_back(&mut self) -> Result<()> {
        self.has = false;
        match self.mode {
            Mode::Row => {
                let line = if self.reads_row() { "; SELECT pg_advisory_unlock_all()" } else { "" };
                self.session.run(&format!("ROLLBACK{line}")).await?;
            }
            Mode::Lease | Mode::Advisory => {
                self.session.run("SELECT pg_advisory_unlock_all()").await?;
            }
        }
        Ok(())
    }

    /// Gives the lock back. Says before how this hold and its start ended, `durable` if a later run may depend on that. If it can't be said, the
    /// next holder waits a moment for nothing: no reason to keep the lock.
    pub(super) async fn end(&mut self, (hold, fence): (&str, Fence), info: &ReleaseInfo, durable: bool) -> Result<()> {
        self.has = false;
        let how = info.end.as_ref().map(ToString::to_string);
        let became = match info.run_state {
            Some(_) => format!(
                ", became AS (UPDATE {{fences}} AS l SET fence = l.fence{} FROM freed AS f \
                 WHERE l.name = $1 AND f.fence IN (l.start_fence, l.paced_fence))",
                starts::became(info.run_state, "f.fence")
            ),
            None => String::new(),
        };
        let why = info.why.as_deref().map(|why| self.session.words(why).into_owned());
        let say = |remembers: bool| {
            let sql = include_str!("sql/end_hold.sql")
                .replace("{remembered}", &part(remembers, include_str!("sql/remember.sql")))
                .replace("{trimmed}", &part(remembers && fence.0.is_multiple_of(4), include_str!("sql/trimmed.sql")))
                .replace("{became}", &became);
            let values = [
                Value::Text(&self.target.name),
                Value::Pid(self.pid),
                Value::Text(hold),
                Value::Maybe(how.as_deref()),
                Value::Maybe(why.as_deref()),
            ];
            fill(&self.tables.fill(&sql), &values)
        };
        // Unless later runs depend on it, nothing in it is worth waiting for the server's disk.
        let lazily = if durable { "" } else { "SET LOCAL synchronous_commit = off;" };
        let (begin, again, end) = match self.mode {
            // In the transaction that has the lock: all is seen at once.
            Mode::Row => ("SAVEPOINT had;", "ROLLBACK TO had;", "COMMIT"),
            Mode::Lease | Mode::Advisory => ("BEGIN;", "ROLLBACK; BEGIN;", "COMMIT; SELECT pg_advisory_unlock_all()"),
        };
        let mut ways = vec![format!("{begin} {lazily} {}; {end}", say(how.is_some()))];
        if how.is_some() {
            // It can't be remembered.
            ways.push(format!("{again} {lazily} {}; {end}", say(false)));
        }
        ways.push("ROLLBACK; SELECT pg_advisory_unlock_all()".into());
        let mut done = Ok(Vec::new());
        for way in ways {
            done = self.session.run(&way).await;
            if done.is_ok() || !self.session.is_open() {
                break;
            }
        }
        done.map(|_| ())
    }

    /// A statement with the name in the place of `$1`.
    fn of_name(&self, sql: &str) -> String {
        fill(sql, &[Value::Text(&self.target.name)])
    }

    /// What the functions of advisory locks take, `$1` being the name.
    fn arguments(&self) -> String {
        match self.key {
            None => "hashtextextended($1, 0)".into(),
            Some(AdvisoryKey::One(key)) => format!("'{key}'::bigint"),
            Some(AdvisoryKey::Two(first, second)) => format!("'{first}'::int, '{second}'::int"),
        }
    }
}

pub(super) fn no_row() -> Error {
    Error::new(Kind::Data, "the server's answer has no row")
}
