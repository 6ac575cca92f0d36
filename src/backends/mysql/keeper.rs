//! What keeps a lock in `mode=row` and `mode=advisory`: one session for each hold, and its statements.
//!
//! The session says nothing but renewals while it has the lock, so that the server's timeout for idle sessions, set to
//! the TTL, ends it about when the lease of a vanished holder ends.

use std::time::Duration;

use tokio::time::sleep;

use super::{
    connection::{Answer, Answers, Connection},
    failure,
    names::Tables,
    options::{Mode, Options},
    reading::Fields,
    statement::Value,
    table::json,
};
use crate::{
    backends::sql::ms,
    lock::{Error, Fence, Kind, Request, Result, Ttl, random},
};

/// Who waits is not to keep the lock for longer than this if he is frozen when he gets it.
const UNCLAIMED: Duration = Duration::from_secs(10);
/// The number of the error that a row stayed locked for too long.
const LOCKED: u16 = 1205;

/// A session that asks for a lock, waits for it or has it.
pub(super) struct Keeper {
    pub session: Connection,
    mode: Mode,
    /// The lock's name in the tables.
    name: String,
    /// What `GET_LOCK` takes, as SQL.
    lock: String,
    tables: Tables,
    /// The session's number in the server.
    pub number: i64,
    /// The lock was seen to be ours.
    pub has: bool,
    /// After how long of silence the server ends the session.
    pub patience: Duration,
    /// Attempts without an answer since the last one that had one.
    pub unanswered: u32,
    /// It blocks in the server, or was left blocking there.
    pub blocked: bool,
    /// What [`Keeper::begin`] would be told, if the attempt did its work already.
    begun: Option<Begun>,
}

/// The fence of a hold that was just taken, the server's time in µs, and whether the holder before vanished.
type Begun = (Fence, i64, bool);

impl Keeper {
    pub(super) async fn open(options: &Options, tables: &Tables, name: String, lock: String) -> Result<Self> {
        let session = Connection::open(options).await?;
        session.server.check_sessions(options.mode)?;
        // To hand the socket on is what a session lock needs to outlive a killed dlock; without it there is to be none.
        session.lifeline().map_err(|error| {
            Error::new(Kind::Config, "the connection's socket is not to be found").hint("is /proc mounted?").source(error)
        })?;
        Ok(Self {
            session,
            mode: options.mode,
            name,
            lock,
            tables: tables.clone(),
            number: 0,
            has: false,
            patience: Duration::ZERO,
            unanswered: 0,
            blocked: false,
            begun: None,
        })
    }

    /// The statement after which the server ends the session once it has been silent for so long; both ends find out
    /// about as soon that the other's machine is gone.
    fn set_patience(&mut self, patience: Duration) -> String {
        self.session.keep_alive(patience);
        self.patience = patience;
        let seconds = patience.as_millis().div_ceil(1000).clamp(1, 31_536_000);
        format!("SET SESSION wait_timeout = {seconds};\n")
    }

    /// Asks for the lock, once. True if it is ours, asked for again too.
    pub(super) async fn attempt(&mut self, request: &Request) -> Result<bool> {
        self.unanswered += 1;
        let first = self.set_patience(request.ttl.get());
        self.has = if self.mode == Mode::Row { self.lock_row(&first).await? } else { self.get_lock(&first, request).await? };
        self.unanswered = 0;
        Ok(self.has)
    }

    /// Counts the fence in the same round trip, if the lock is ours.
    async fn get_lock(&mut self, first: &str, request: &Request) -> Result<bool> {
        let (lock, begin) = (&self.lock, self.begin_sql(request, "CONNECTION_ID()")?);
        let batch = format!(
            "{first}SELECT CONNECTION_ID(), @dlock = CONNECTION_ID(), IF(IS_USED_LOCK({lock}) = CONNECTION_ID(), 1, GET_LOCK({lock}, 0));\n{begin}"
        );
        let Answers { answers, refusal } = self.session.try_ask(&batch).await?;
        let Ok(mut fields) = only(&answers, 1) else {
            return Err(refusal.map_or_else(failure::unreadable, |refusal| failure::refused(&refusal, false)));
        };
        self.number = fields.int()?;
        one_session(fields.int_or_null()?)?;
        let got = fields.int_or_null()? == Some(1);
        if got {
            self.unanswered = 0;
            if let Some(refusal) = refusal {
                return Err(failure::refused(&refusal, true));
            }
            self.begun = Some(begun(&answers, 2)?);
        }
        Ok(got)
    }

    /// In a transaction of its own, which is over if the row is somebody else's.
    async fn lock_row(&mut self, first: &str) -> Result<bool> {
        for _ in 0..2 {
            let begin = if self.has { "" } else { "START TRANSACTION;\n" };
            let batch = self.tables.fill(
                "SELECT CONNECTION_ID(), @dlock = CONNECTION_ID();\nSELECT 1 FROM :rows WHERE name = :name FOR UPDATE SKIP LOCKED;\nSELECT 1 FROM :rows WHERE name = :name;",
                &[("name", Value::Bytes(&self.name))],
            );
            let at = 1 + usize::from(!self.has);
            let Answers { answers, refusal } = self.session.try_ask(&format!("{first}{begin}{batch}")).await?;
            if let Some(refusal) = refusal {
                let error = failure::refused(&refusal, false);
                self.roll_back().await?;
                return Err(error);
            }
            let mut fields = only(&answers, at)?;
            self.number = fields.int()?;
            one_session(fields.int_or_null()?)?;
            if found(&answers, at + 1) {
                return Ok(true);
            }
            self.roll_back().await?;
            if found(&answers, at + 2) {
                return Ok(false);
            }
            // Nobody ever took this lock: it is made, and asked for once more.
            let insert = self.tables.fill("INSERT INTO :rows (name) VALUES (:name);", &[("name", Value::Bytes(&self.name))]);
            match self.session.try_ask(&insert).await?.refusal {
                Some(refusal) if refusal.number != failure::DUPLICATE => return Err(failure::refused(&refusal, false)),
                _ => {}
            }
        }
        Ok(false)
    }

    async fn roll_back(&mut self) -> Result<()> {
        self.has = false;
        self.session.ask("ROLLBACK").await.map(|_| ())
    }

    /// Counts the fence of a lock that is ours, over `side` if this session is in a transaction.
    pub(super) async fn begin(&mut self, request: &Request, side: Option<&mut Connection>) -> Result<Begun> {
        if let Some(begun) = self.begun.take() {
            return Ok(begun);
        }
        let batch = self.begin_sql(request, &self.number.to_string())?;
        let answers = match side {
            Some(side) => side.ask(&batch).await?,
            None => self.session.ask(&batch).await?,
        };
        begun(&answers, 0)
    }

    /// What counts it, for the session with this number as SQL.
    fn begin_sql(&self, request: &Request, number: &str) -> Result<String> {
        let (root, metadata) = (request.token.hold_text(), json(request.metadata.as_ref())?);
        let has = match self.mode {
            Mode::Row => "1".to_owned(),
            _ => format!("IS_USED_LOCK({}) = CONNECTION_ID()", self.lock),
        };
        let values = [
            ("name", Value::Bytes(&self.name)),
            ("session", Value::Sql(number)),
            ("root", Value::Text(&root)),
            ("ttl", Value::Int(ms(request.ttl))),
            ("metadata", Value::text_or_null(metadata.as_deref())),
            ("has", Value::Sql(&has)),
        ];
        Ok(self.tables.fill(include_str!("sql/begin_hold.sql"), &values))
    }

    /// Waits in the server for the lock, at most for so long. True if it may be ours then.
    pub(super) async fn wait(&mut self, ttl: Ttl, at_most: Duration) -> Result<bool> {
        self.blocked = true;
        let first = self.set_patience(ttl.get().min(UNCLAIMED));
        let mut rest = at_most;
        // MariaDB's GET_LOCK alone waits for parts of a second.
        let blocks = match self.mode {
            Mode::Advisory if self.session.server.mariadb => at_most.as_secs_f64(),
            _ => Duration::from_secs(at_most.as_secs()).as_secs_f64(),
        };
        if blocks > 0.0 {
            if self.block(&first, blocks).await? {
                self.blocked = false;
                return Ok(true);
            }
            rest = at_most.saturating_sub(Duration::from_secs_f64(blocks));
        }
        while !rest.is_zero() {
            let slice = rest.min(Duration::from_millis(30 + random() % 20));
            pause(slice).await;
            rest = rest.saturating_sub(slice);
            self.has = if self.mode == Mode::Row { self.lock_row(&first).await? } else { self.block(&first, 0.0).await? };
            if self.has {
                self.blocked = false;
                return Ok(true);
            }
        }
        self.blocked = false;
        Ok(false)
    }

    async fn block(&mut self, first: &str, seconds: f64) -> Result<bool> {
        if self.mode == Mode::Advisory {
            let batch = format!("{first}SELECT GET_LOCK({}, {seconds:.3});", self.lock);
            let answers = self.session.ask(&batch).await?;
            self.has = only(&answers, 1)?.int_or_null()? == Some(1);
            return Ok(self.has);
        }
        let wait = self
            .tables
            .fill("START TRANSACTION; SELECT 1 FROM :rows WHERE name = :name FOR UPDATE;", &[("name", Value::Bytes(&self.name))]);
        let usual = "SET SESSION innodb_lock_wait_timeout = 1";
        let batch = format!("{first}SET SESSION innodb_lock_wait_timeout = {seconds:.0};\n{wait}{usual}");
        let answers = self.session.try_ask(&batch).await?;
        let got = answers.refusal.is_none() && found(&answers.answers, 3);
        if !got {
            self.session.ask(&format!("ROLLBACK; {usual}")).await?;
        }
        self.has = got;
        match answers.refusal {
            Some(refusal) if refusal.number != LOCKED => Err(failure::refused(&refusal, false)),
            _ => Ok(got),
        }
    }

    /// The server's time in µs if the lock is still ours; asking for it keeps the session for as long as its patience says,
    /// or a new one.
    pub(super) async fn renew(&mut self, patience: Option<Duration>, root: &str) -> Result<Option<i64>> {
        let first = patience.map(|patience| self.set_patience(patience)).unwrap_or_default();
        let (has, touch) = match self.mode {
            // A proxy may set another session up like the one that it lost.
            Mode::Row => (format!("CONNECTION_ID() = {}", self.number), String::new()),
            _ => (format!("IS_USED_LOCK({}) = CONNECTION_ID()", self.lock), self.touch(root, self.patience)),
        };
        let at = usize::from(!first.is_empty());
        let batch = format!(
            "{first}SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), @dlock = CONNECTION_ID() AND {has};\n{touch}"
        );
        let Answers { answers, refusal } = self.session.try_ask(&batch).await?;
        match (answers.len() > at, refusal) {
            // What came after it is for people only.
            (true, _) => {
                let mut fields = only(&answers, at)?;
                let now = fields.int()?;
                Ok((fields.int_or_null()? == Some(1)).then_some(now))
            }
            (false, Some(refusal)) => Err(failure::refused(&refusal, false)),
            (false, None) => Err(failure::unreadable()),
        }
    }

    /// Says that the hold was extended, for people who look.
    pub(super) fn touch(&self, root: &str, length: Duration) -> String {
        let ttl = i64::try_from(length.as_millis()).unwrap_or(i64::MAX);
        let values = [
            ("name", Value::Bytes(&self.name)),
            ("session", Value::Int(self.number)),
            ("root", Value::Text(root)),
            ("ttl", Value::Int(ttl)),
        ];
        self.tables.fill(include_str!("sql/touch_hold.sql"), &values)
    }

    /// Gives back whatever the session has, having said so. Whether the lock was still ours.
    pub(super) async fn give_back(&mut self, root: &str) -> Result<bool> {
        self.has = false;
        let values = [("name", Value::Bytes(&self.name)), ("session", Value::Int(self.number)), ("root", Value::Text(root))];
        let end = self.tables.fill(include_str!("sql/end_hold.sql"), &values);
        let (ours, free) = match self.mode {
            // In the transaction that has the lock: both are seen at once.
            Mode::Row => (format!("@dlock = CONNECTION_ID() AND CONNECTION_ID() = {}", self.number), "COMMIT".to_owned()),
            _ => (format!("IS_USED_LOCK({}) = CONNECTION_ID()", self.lock), format!("DO RELEASE_LOCK({})", self.lock)),
        };
        let Answers { answers, refusal } = self.session.try_ask(&format!("SELECT {ours};\n{end}{free};")).await?;
        if let Some(refusal) = refusal {
            if answers.is_empty() {
                return Err(failure::refused(&refusal, false));
            }
            // It could not be said: the next holder waits a moment for nothing.
            self.session.ask(&free).await?;
        }
        Ok(only(&answers, 0)?.int_or_null()? == Some(1))
    }
}

/// Statements must reach the session that has the lock.
fn one_session(same: Option<i64>) -> Result<()> {
    if same == Some(1) {
        return Ok(());
    }
    Err(Error::new(Kind::Config, "something between here and the server shares its sessions among clients")
        .hint("connect to the server itself; ?mode=lease works with any"))
}

/// What was answered to [`Keeper::begin_sql`], from this answer on.
fn begun(answers: &[Answer], at: usize) -> Result<Begun> {
    let vanished = only(answers, at)?.int()? > 0;
    let mut fields = only(answers, at + 2)?;
    let (fence, layout, now) = (fields.int()?, fields.int()?, fields.int()?);
    failure::check_layout(layout)?;
    Ok((Fence(u64::try_from(fence).unwrap_or_default()), now, vanished))
}

/// The first row of an answer.
fn only(answers: &[Answer], nth: usize) -> Result<Fields<'_>> {
    answers.get(nth).and_then(|answer| answer.rows.first()).map(Fields::of).ok_or_else(failure::unreadable)
}

fn found(answers: &[Answer], nth: usize) -> bool {
    answers.get(nth).is_some_and(|answer| !answer.rows.is_empty())
}

/// Waiting is what a backend's `wait` is for.
#[allow(clippy::disallowed_methods)]
async fn pause(length: Duration) {
    sleep(length).await;
}
