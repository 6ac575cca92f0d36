//! The keeper of a lock in `mode=row` and `mode=advisory`: one session for each hold, and its statements.
//!
//! The session sends nothing but renewals while it has the lock. So the server's timeout for idle sessions, set to
//! the TTL, ends it about when the lease of a vanished holder ends.

mod beginning;
mod holding;
mod waiting;

use std::time::Duration;

use tokio::time::sleep;

use super::{
    connection::{Answer, Answers, Connection},
    failure,
    names::Tables,
    options::{Mode, Options},
    reading::Fields,
    statement::Value,
};
use crate::lock::{Break, Denial, Error, Fence, Intent, Kind, Request, Result};

/// A waiter that is frozen when it gets the lock keeps it for at most this long.
const UNCLAIMED: Duration = Duration::from_secs(10);
/// The number of the error that a row stayed locked for too long.
const LOCKED: u16 = 1205;

/// A session that asks for a lock, waits for it or has it.
#[allow(clippy::struct_excessive_bools)] // what is known of it, each by itself
pub(super) struct Keeper {
    pub session: Connection,
    mode: Mode,
    /// It is to share a row.
    pub shared: bool,
    /// The lock's name in the tables.
    name: String,
    /// What `GET_LOCK` takes, as SQL: for the lock itself, or for the lamp of one who shares a row.
    lock: String,
    tables: Tables,
    /// The session's number in the server.
    pub number: i64,
    /// The session was seen to have the lock.
    pub has: bool,
    /// The silence after which the server ends the session.
    pub patience: Duration,
    /// Attempts without an answer since the last answered one.
    pub unanswered: u32,
    /// It blocks in the server, or was left blocking there.
    pub blocked: bool,
    /// What [`Keeper::begin`] would be told, if the attempt did its work already.
    begun: Option<Counted>,
    /// What became of the holder before can't be remembered.
    forgets: bool,
    /// For how long it stays busy, though no session has it.
    pub rests: Option<Duration>,
}

/// What a renewal reads about a break.
#[derive(Debug, Default)]
pub(super) struct Heard {
    /// The mark of the break.
    pub mark: Option<Break>,
    /// The store has noted that the holder knows of the break.
    pub noted: bool,
}

/// The fence of a hold that was just taken, the server's time in µs, and whether the holder before vanished.
type Begun = (Fence, i64, bool);
/// `None` if something may be in the way, and nothing was done.
type Counted = Option<Begun>;

/// The outcome for a lock that a session has.
pub(super) enum Beginning {
    /// The lock is held.
    Begun(Begun),
    /// An earlier run denies this one.
    Denied(Box<Denial>),
    /// The server of an earlier hold is gone, and that hold's lease may not be over.
    Left,
}

impl Keeper {
    pub(super) async fn open(options: &Options, tables: &Tables, name: String, lock: String, shared: bool) -> Result<Self> {
        let session = Connection::open(options).await?;
        session.server.check_sessions(options.mode, shared)?;
        // To hand the socket on is what a session lock needs to outlive a killed dlock; without it there is to be none.
        session.lifeline().map_err(|error| {
            // One that the server has ended already has no connection any more.
            let kind = if super::socket::has_proc() { Kind::Unavailable } else { Kind::Config };
            Error::new(kind, "the connection's socket is not to be found").hint("is /proc mounted? is the server up?").source(error)
        })?;
        Ok(Self {
            session,
            mode: options.mode,
            shared,
            name,
            lock,
            tables: tables.clone(),
            number: 0,
            has: false,
            patience: Duration::ZERO,
            unanswered: 0,
            blocked: false,
            begun: None,
            forgets: false,
            rests: None,
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

    /// Asks for the lock once. True if the session has the lock, also on a repeated request.
    pub(super) async fn attempt(&mut self, request: &Request) -> Result<bool> {
        self.unanswered += 1;
        let first = self.set_patience(request.ttl.get());
        self.has = if self.mode == Mode::Row { self.lock_row(&first).await? } else { self.get_lock(&first, request).await? };
        self.unanswered = 0;
        Ok(self.has)
    }

    /// Counts the fence in the same round trip, if the lock is ours.
    async fn get_lock(&mut self, first: &str, request: &Request) -> Result<bool> {
        let (lock, begin) = (&self.lock, self.begin_sql(request, "CONNECTION_ID()", beginning::Extent::Alone, None)?);
        let batch = format!(
            "{first}SELECT CONNECTION_ID(), @dlock = CONNECTION_ID(), IF(IS_USED_LOCK({lock}) = CONNECTION_ID(), 1, GET_LOCK({lock}, 0));\n{begin}"
        );
        let Answers { answers, server_error } = self.session.try_ask(&batch).await?;
        let Ok(mut fields) = only(&answers, 1) else {
            return Err(server_error.map_or_else(failure::unreadable, |server_error| failure::refused(&server_error, false)));
        };
        self.number = fields.int()?;
        one_session(fields.int_or_null()?)?;
        let got = fields.int_or_null()? == Some(1);
        if got {
            self.unanswered = 0;
            self.begun = Self::begun_alone(&answers, server_error.as_ref(), 2)?;
        }
        Ok(got)
    }

    /// In a transaction of its own, which is over if another session has the row. A reader has its lamp from now on.
    async fn lock_row(&mut self, first: &str) -> Result<bool> {
        for _ in 0..2 {
            let mut begin = if self.has { String::new() } else { "START TRANSACTION;\n".to_owned() };
            if self.shared {
                begin.extend([format!("DO IF(IS_USED_LOCK({0}) <=> CONNECTION_ID(), 1, GET_LOCK({0}, 0));\n", self.lock)]);
            }
            // The server lets no session share the row while another one waits to have it alone.
            let how = match (self.shared, self.session.server.mariadb) {
                (false, _) => "FOR UPDATE",
                (true, true) => "LOCK IN SHARE MODE",
                (true, false) => "FOR SHARE",
            };
            let batch = self.tables.fill(
                "SELECT CONNECTION_ID(), @dlock = CONNECTION_ID();\nSELECT 1 FROM :rows WHERE name = :name :how SKIP LOCKED;\nSELECT 1 FROM :rows WHERE name = :name;",
                &[("name", Value::Bytes(&self.name)), ("how", Value::Sql(how))],
            );
            let at = 1 + usize::from(!self.has) + usize::from(self.shared);
            let Answers { answers, server_error } = self.session.try_ask(&format!("{first}{begin}{batch}")).await?;
            if let Some(server_error) = server_error {
                let error = failure::refused(&server_error, false);
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
            // This lock was never taken: its row is made, and asked for once more.
            let insert = self.tables.fill("INSERT INTO :rows (name) VALUES (:name);", &[("name", Value::Bytes(&self.name))]);
            match self.session.try_ask(&insert).await?.server_error {
                Some(server_error) if server_error.number != failure::DUPLICATE => return Err(failure::refused(&server_error, false)),
                _ => {}
            }
        }
        Ok(false)
    }

    async fn roll_back(&mut self) -> Result<()> {
        self.has = false;
        self.session.ask("ROLLBACK").await.map(|_| ())
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

/// What was answered to [`Keeper::touch`], from this answer on. What can't be read says nothing.
pub(super) fn heard(answers: &[Answer], at: usize, intent: Option<Intent>) -> Heard {
    let noted = intent == Some(Intent::Drain) && answers.len() > at;
    let read = |mut fields: Fields<'_>| {
        let (mark, seen) = (fields.text().ok()?, fields.int().ok()? != 0);
        Some(Break { seen, ..serde_json::from_str(&mark).ok()? })
    };
    let mark = intent.and_then(|_| only(answers, at + usize::from(intent == Some(Intent::Drain))).ok()).and_then(read);
    Heard { mark, noted }
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
