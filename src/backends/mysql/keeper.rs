//! What keeps a lock in `mode=row` and `mode=advisory`: one session for each hold, and its statements.
//!
//! The session says nothing but renewals while it has the lock, so that the server's timeout for idle sessions, set to
//! the TTL, ends it about when the lease of a vanished holder ends.

mod holding;
mod waiting;

use std::time::Duration;

use tokio::time::sleep;

use super::{
    connection::{Answer, Answers, Connection, Refusal as Refused},
    failure, history,
    life::Life,
    names::Tables,
    options::{Mode, Options},
    readers,
    reading::Fields,
    starts::{self, Granting},
    statement::{Value, literal},
    table::json,
};
use crate::{
    backends::sql::{Begin, ms, other_mode},
    lock::{Break, Error, Fence, Intent, Kind, Record, Refusal, Request, Result},
};

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
    /// The lock was seen to be ours.
    pub has: bool,
    /// After how long of silence the server ends the session.
    pub patience: Duration,
    /// Attempts without an answer since the last one that had one.
    pub unanswered: u32,
    /// It blocks in the server, or was left blocking there.
    pub blocked: bool,
    /// What [`Keeper::begin`] would be told, if the attempt did its work already.
    begun: Option<Counted>,
    /// What became of the holder before can't be remembered.
    forgets: bool,
    /// For how long nobody may have it, though no session has it.
    pub rests: Option<Duration>,
}

/// What a renewal is told of who is breaking the hold.
#[derive(Debug, Default)]
pub(super) struct Heard {
    /// Who is.
    pub mark: Option<Break>,
    /// That the holder knows was noted.
    pub noted: bool,
}

/// The fence of a hold that was just taken, the server's time in µs, and whether the holder before vanished.
type Begun = (Fence, i64, bool);
/// `None` if something may be in the way, and nothing was done.
type Counted = Option<Begun>;

/// What came of a lock that a session has.
pub(super) enum Beginning {
    /// It is held.
    Begun(Begun),
    /// A run before keeps it from this one.
    Refused(Box<Refusal>),
    /// The lease of a hold may not be over whose server is gone.
    Left,
}

impl Keeper {
    pub(super) async fn open(options: &Options, tables: &Tables, name: String, lock: String, shared: bool) -> Result<Self> {
        let session = Connection::open(options).await?;
        session.server.check_sessions(options.mode, shared)?;
        // To hand the socket on is what a session lock needs to outlive a killed dlock; without it there is to be none.
        session.lifeline().map_err(|error| {
            // One that the server has ended already is connected with nobody any more.
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
        let (lock, begin) = (&self.lock, self.begin_sql(request, "CONNECTION_ID()", true, None)?);
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
            self.begun = self.begun_remembering(&answers, refusal.as_ref(), 3)?;
        }
        Ok(got)
    }

    /// In a transaction of its own, which is over if the row is somebody else's. Who is to share it has its lamp from now on.
    async fn lock_row(&mut self, first: &str) -> Result<bool> {
        for _ in 0..2 {
            let mut begin = if self.has { String::new() } else { "START TRANSACTION;\n".to_owned() };
            if self.shared {
                begin.extend([format!("DO IF(IS_USED_LOCK({0}) <=> CONNECTION_ID(), 1, GET_LOCK({0}, 0));\n", self.lock)]);
            }
            // The server lets nobody share the row while somebody waits to have it alone.
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

    /// How many answers there are to what remembers the holders before.
    fn remembering(&self) -> usize {
        if self.mode == Mode::Row { 4 } else { 2 }
    }

    /// How many answers there are to what counts the fence, the last of which says it.
    fn beginning(&self) -> usize {
        if self.shared { 6 } else { 5 }
    }

    /// Counts the fence of a lock that is ours, over `side` if this session is in a transaction. Who has the lock is alone with the
    /// starts of its runs.
    pub(super) async fn begin(&mut self, request: &Request, mut side: Option<&mut Connection>) -> Result<Beginning> {
        if let Some(begun) = self.count(request, None, side.as_deref_mut()).await? {
            return Ok(Beginning::Begun(begun));
        }
        if self.is_left(request, side.as_deref_mut()).await? {
            return Ok(Beginning::Left);
        }
        let look = self.tables.fill(include_str!("sql/session_starts.sql"), &[("name", Value::Bytes(&self.name))]);
        let answers = side.as_deref_mut().unwrap_or(&mut self.session).ask(&look).await?;
        let mut fields = only(&answers, 0)?;
        let (known, now_ms) = (starts::read(&mut fields)?, u64::try_from(fields.int()?).unwrap_or_default());
        if let Some(refusal) = known.judge(request.terms.as_ref(), &request.token, now_ms) {
            return Ok(Beginning::Refused(Box::new(refusal)));
        }
        self.count(request, Some((&known, now_ms)), side).await?.map(Beginning::Begun).ok_or_else(failure::unreadable)
    }

    /// Whether a hold was left by a server that was restarted, or is another one by now, and its lease is not over.
    ///
    /// # Errors
    /// The lock is kept in another mode, which does not exclude this one.
    async fn is_left(&mut self, request: &Request, side: Option<&mut Connection>) -> Result<bool> {
        let (root, life) = (request.token.hold_text(), Life::of(&self.session.server));
        let values = [
            ("name", Value::Bytes(&self.name)),
            ("root", Value::Text(&root)),
            ("mode", Value::Text(self.mode.name())),
            ("alone", Value::Int((!self.shared).into())),
        ];
        let clear = self.tables.fill(include_str!("sql/clear_hold.sql"), &[&values[..], &life.values()].concat());
        let answers = side.unwrap_or(&mut self.session).ask(&clear).await?;
        let mut fields = only(&answers, 3)?;
        match fields.text_or_null()? {
            Some(kept) if kept != self.mode.name() => Err(other_mode(&kept)),
            _ => Ok(fields.int()? != 0),
        }
    }

    async fn count(&mut self, request: &Request, judged: Option<(&Record, u64)>, side: Option<&mut Connection>) -> Result<Counted> {
        if let Some(begun) = self.begun.take() {
            return Ok(begun);
        }
        let number = self.number.to_string();
        let (whole, bare) = (self.begin_sql(request, &number, true, judged)?, self.begin_sql(request, &number, false, judged)?);
        let mut over = side;
        if !std::mem::take(&mut self.forgets) {
            let Answers { answers, refusal } = over.as_deref_mut().unwrap_or(&mut self.session).try_ask(&whole).await?;
            if let Some(begun) = self.begun_remembering(&answers, refusal.as_ref(), 1)? {
                return Ok(begun);
            }
            self.forgets = false;
        }
        begun(&over.unwrap_or(&mut self.session).ask(&bare).await?, 1, self.beginning())
    }

    /// What was answered from this answer on; `None` if the holder before can't be remembered, so that nothing was done.
    fn begun_remembering(&mut self, answers: &[Answer], refusal: Option<&Refused>, at: usize) -> Result<Option<Counted>> {
        self.forgets = refusal.is_some() && answers.len() == at;
        match refusal {
            _ if self.forgets => Ok(None),
            // What comes after it only forgets.
            Some(refusal) if answers.len() < at + self.remembering() + self.beginning() => Err(failure::refused(refusal, true)),
            _ => begun(answers, at + self.remembering(), self.beginning()).map(Some),
        }
    }

    /// What counts it, for the session with this number as SQL, and may also remember the holder before if that one vanished; after one
    /// statement that answers nothing.
    fn begin_sql(&self, request: &Request, number: &str, remembering: bool, judged: Option<(&Record, u64)>) -> Result<String> {
        let (root, metadata) = (request.token.hold_text(), json(request.metadata.as_ref())?);
        let (note, life) = Life::noted(&self.session.server);
        let starts = Granting::of(&Begin::of(request, judged), &root, metadata.as_deref());
        let clear = if judged.is_some() { "1" } else { &starts.clear };
        let has = match self.mode {
            Mode::Row if self.shared => {
                format!("IS_USED_LOCK({}) = {number}", readers::lamp(&self.tables, &self.name, number, &literal(Value::Text(&root))))
            }
            Mode::Row => "1".to_owned(),
            _ => format!("IS_USED_LOCK({}) = CONNECTION_ID()", self.lock),
        };
        // Whoever read before vanished, where somebody has the row alone.
        let read = match self.mode {
            Mode::Row => self.tables.fill("(SELECT COUNT(*) FROM :readers WHERE name = :name)", &[("name", Value::Bytes(&self.name))]),
            _ => "0".to_owned(),
        };
        let reads = readers::reads(&self.tables, &self.name);
        let over = if self.shared { format!("NOT {reads}") } else { "1".to_owned() };
        let values = [
            ("name", Value::Bytes(&self.name)),
            ("session", Value::Sql(number)),
            ("root", Value::Text(&root)),
            ("ttl", Value::Int(ms(request.ttl))),
            ("metadata", Value::text_or_null(metadata.as_deref())),
            ("has", Value::Sql(&has)),
            ("start_set", Value::Sql(&starts.set)),
            ("clear", Value::Sql(clear)),
            ("read", Value::Sql(read.trim_end())),
            ("reads", Value::Sql(&reads)),
            ("over", Value::Sql(&over)),
            ("mode", Value::Text(self.mode.name())),
        ];
        let values = [&values[..], &life.values()].concat();
        let fill = |template: &str| self.tables.fill(template, &values);
        let mut begin = fill(if self.shared { include_str!("sql/begin_reading.sql") } else { include_str!("sql/begin_hold.sql") });
        if self.mode == Mode::Row && !self.shared {
            begin += &fill(include_str!("sql/forget_readers.sql"));
        }
        if !remembering {
            return Ok(note + &begin);
        }
        let mut before = fill(include_str!("sql/vanished.sql"));
        if self.mode == Mode::Row {
            before += &fill(include_str!("sql/vanished_readers.sql"));
        }
        Ok(note + &before + &begin + &history::trim(&self.tables, &self.name, "@dlock_vanished > 0"))
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

/// What was answered to [`Keeper::begin_sql`], from this answer on.
fn begun(answers: &[Answer], at: usize, length: usize) -> Result<Counted> {
    let vanished = only(answers, at)?.int()? > 0;
    let Some(row) = answers.get(at + length - 1).ok_or_else(failure::unreadable)?.rows.first() else { return Ok(None) };
    let mut fields = Fields::of(row);
    let (fence, layout, now) = (fields.int()?, fields.int()?, fields.int()?);
    failure::check_layout(layout)?;
    Ok(Some((Fence(u64::try_from(fence).unwrap_or_default()), now, vanished)))
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
