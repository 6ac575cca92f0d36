//! The lock table in MySQL's SQL: each step one round trip, each statement a transaction of its own.
//!
//! All of them judge by `UTC_TIMESTAMP(6)`, which is what ShedLock compares with and no time zone changes. Assignments are
//! in an order in which none reads a column that was assigned before it, since MySQL sees the new value then.

use std::time::Duration;

use async_trait::async_trait;

use super::{
    bell,
    connection::{Answer, Answers, Connection, Row},
    failure, history,
    names::Tables,
    reading::{Fields, RECORD},
    starts::{self, Granting},
    statement::Value,
};
use crate::{
    backends::sql::{self, Begin, Change, Plain, Record, SHARED_BY, locked_by, micros},
    lock::{Break, End, Error, Fence, Intent, Kind, Metadata, Parting, Request, Result, Token, Ttl, Waiter},
};

/// The end of what was given back, as SQL: before any clock's now, and in the range of each type that ShedLock's column may have.
const ENDED: &str = "'2000-01-01 00:00:00.000000'";

/// The answer to what writes a row that says whether it was written.
const WRITTEN: usize = 2;

/// A lock table over a session.
pub(super) struct LockTable<'a> {
    pub session: &'a mut Connection,
    pub tables: &'a Tables,
    /// Whether a holder keeps a gate beside its row.
    pub gated: bool,
    /// What was seen of a row by the step before, for the next one that would read it.
    pub seen: Seen,
    /// The place in the queue that was found out on the way.
    pub place: Option<u32>,
    /// What the bell of the row said that was read last, or written.
    pub bell: i64,
    /// What its document was then, and the hold that has the lock for itself alone.
    pub document: (Option<String>, Option<String>),
    /// Whose rope is to be taken and let go with a share.
    pub share: Option<String>,
    /// Nobody has the lock any more who had it for itself alone.
    pub freed: bool,
}

/// What was seen of a row.
pub(super) enum Seen {
    /// Nothing yet.
    No,
    /// That it isn't there.
    Nothing,
    /// The row.
    Row(Box<Record>),
}

impl Seen {
    fn of(record: Option<Record>) -> Self {
        record.map_or(Self::Nothing, |record| Self::Row(Box::new(record)))
    }
}

impl LockTable<'_> {
    /// Reads a row, and takes its gate if it is held by `owner`.
    fn read_with_gate(&self, name: &str, owner: Option<&str>) -> String {
        let gate = match owner {
            Some(owner) if self.gated && !self.has_gate(name) => {
                let gate = self.tables.gate(name);
                format!(
                    "IF(owner = '{owner}' AND locked_by = '{owner}' AND detached = 0 AND lock_until > UTC_TIMESTAMP(6), GET_LOCK({gate}, 0), 0)"
                )
            }
            _ => "0".to_owned(),
        };
        let record = self.tables.fill(RECORD, &[]);
        let values = [("record", Value::Sql(&record)), ("gate", Value::Sql(&gate)), ("name", Value::Bytes(name))];
        self.tables.fill(include_str!("sql/read.sql"), &values)
    }

    /// What [`LockTable::read_with_gate`] was answered.
    fn noted(&mut self, name: &str, answer: Option<&Answer>) -> Result<Option<Record>> {
        let Some(row) = answer.and_then(|answer| answer.rows.first()) else { return Ok(None) };
        let mut fields = Fields::of(row);
        let record = fields.record()?;
        if fields.int_or_null()? == Some(1) {
            self.session.gates.push(name.to_owned());
        }
        self.bell = fields.int()?;
        self.document = (record.document.clone(), record.root.clone());
        Ok(Some(record))
    }

    pub(super) fn has_gate(&self, name: &str) -> bool {
        self.session.gates.iter().any(|gate| gate == name)
    }

    /// Lets the next one through the gate, as SQL.
    fn open_gate(&self, name: &str) -> String {
        if self.has_gate(name) { format!("RELEASE_LOCK({})", self.tables.gate(name)) } else { "0".into() }
    }

    fn gate_is_open(&mut self, name: &str) {
        self.session.gates.retain(|gate| gate != name);
    }

    /// The session that has a lock's gate, if another one has.
    pub(super) async fn gate_keeper(&mut self, name: &str) -> Result<Option<i64>> {
        if !self.gated || self.has_gate(name) {
            return Ok(None);
        }
        let answers = self.session.ask(&format!("SELECT IS_USED_LOCK({})", self.tables.gate(name))).await?;
        Ok(rows(&answers, 0)?.first().map(|row| Fields::of(row).int_or_null()).transpose()?.flatten())
    }

    /// Every held lock whose name starts with `start`, by name, and who waits for those.
    pub(super) async fn list(&mut self, start: &str) -> Result<(Vec<Record>, Vec<(String, Waiter)>)> {
        let record = self.tables.fill(RECORD, &[]);
        let values = [("record", Value::Sql(&record)), ("start", Value::Bytes(start)), ("whole", Value::Int(0))];
        let batch = self.tables.fill(include_str!("sql/list.sql"), &values) + &self.tables.fill(include_str!("sql/queue.sql"), &values);
        let answers = self.session.ask(&batch).await?;
        let records = rows(&answers, 0)?.iter().map(|row| Fields::of(row).record()).collect::<Result<_>>()?;
        Ok((records, waiters(&answers)?))
    }

    /// One lock, and who waits for it.
    pub(super) async fn look(&mut self, name: &str) -> Result<(Option<Record>, Vec<Waiter>)> {
        let values = [("start", Value::Bytes(name)), ("whole", Value::Int(1))];
        let batch = self.read_with_gate(name, None) + &self.tables.fill(include_str!("sql/queue.sql"), &values);
        let answers = self.session.ask(&batch).await?;
        let record = self.noted(name, answers.first())?;
        Ok((record, waiters(&answers)?.into_iter().map(|(_, waiter)| waiter).collect()))
    }

    /// Lets the next one through the gate, of a row that is somebody else's.
    pub(super) async fn pass_on(&mut self, name: &str) -> Result<()> {
        if self.has_gate(name) {
            let open = format!("DO {}", self.open_gate(name));
            self.session.ask(&open).await?;
            self.gate_is_open(name);
        }
        Ok(())
    }

    /// Takes a waiter out of the queue, and opens its gate if it has that. Whether there is a document where it may wait as well.
    pub(super) async fn leave(&mut self, name: &str, token: &Token, gate: bool) -> Result<bool> {
        let mut batch = if gate { format!("DO {};\n", self.open_gate(name)) } else { String::new() };
        let rope = self.tables.rope(name, &token.hold_text());
        if gate && self.session.ropes.contains(&rope) {
            batch.extend([format!("DO RELEASE_LOCK({rope});\n")]);
        }
        let document = "SELECT 1 FROM :table WHERE name = :name AND document IS NOT NULL;";
        batch += &self.tables.fill(document, &[("name", Value::Bytes(name))]);
        let first = batch.lines().count() - 1;
        let answers = self.session.ask(&(batch + &leaving(self.tables, name, token))).await?;
        if gate {
            self.gate_is_open(name);
            self.session.ropes.retain(|other| *other != rope);
        }
        Ok(!rows(&answers, first)?.is_empty())
    }

    /// Runs a batch that changes a row by its second statement, and remembers something at its end. What can't be remembered is no
    /// failure of the rest.
    async fn freed(&mut self, batch: &str) -> Result<bool> {
        let Answers { answers, refusal } = self.session.try_ask(batch).await?;
        match (refusal, answers.get(1)) {
            (Some(refusal), None) => Err(failure::refused(&refusal, false)),
            (_, row) => Ok(row.is_some_and(|row| row.matched > 0)),
        }
    }

    fn before(&mut self, seconds: u32) -> String {
        if self.session.idle_limit == Some(seconds) { String::new() } else { format!("SET SESSION wait_timeout = {seconds};\n") }
    }
}

#[async_trait(?Send)]
impl sql::Table for LockTable<'_> {
    async fn grant(&mut self, name: &str, request: &Request, judged: Option<&Record>) -> Result<Option<Fence>> {
        let (owner, root, metadata) = (locked_by(&request.token), request.token.hold_text(), json(request.metadata.as_ref())?);
        let idle = idle_limit(request.ttl);
        let begin = Begin::of(request, judged.map(|record| (&record.starts, record.now_ms())));
        let starts = Granting::of(&begin, &root, metadata.as_deref());
        let clear = judged.map_or(starts.clear, |record| format!("revision = {}", record.revision));
        let values = [
            ("name", Value::Bytes(name)),
            ("owner", Value::Text(&owner)),
            ("root", Value::Text(&root)),
            ("ttl", Value::Int(sql::ms(request.ttl))),
            ("detached", Value::Int(request.detached.into())),
            ("start_set", Value::Sql(&starts.set)),
            ("start_columns", Value::Sql(&starts.columns)),
            ("start_values", Value::Sql(&starts.values)),
            ("clear", Value::Sql(&clear)),
            ("document", Value::text_or_null(judged.and_then(|record| record.document.as_deref()))),
            // While there is a document, its rules are asked before.
            ("nobody_first", Value::Sql(if judged.is_some() { "1" } else { "document IS NULL" })),
            ("metadata", Value::text_or_null(metadata.as_deref())),
        ];
        let mut batch = self.before(idle);
        let first = usize::from(!batch.is_empty());
        batch += &self.tables.fill(include_str!("sql/grant.sql"), &values);
        let read = self.read_with_gate(name, Some(&owner));
        batch += &read;
        if request.waiting {
            batch += &join(self.tables, name, request, true)?;
            batch += &place(self.tables, name, request);
        }
        batch += &history::trim(self.tables, name, "@dlock_gone > 0");
        // An acquire that is given up must not arrive when nobody waits for its answer any more; a release may.
        self.session.drop_unsent_on_close(true);
        let answers = self.session.ask(&batch).await?;
        self.session.idle_limit = Some(idle);
        // The first two statements remember who was there before.
        let first = first + 2;
        let record = self.noted(name, answers.get(first + 1))?;
        let granted = if let (Some(record), Some(answer)) = (record, answers.get(first)) {
            let granted = (answer.matched > 0 && record.is_held_by(&request.token)).then(|| record.fence());
            self.seen = Seen::Row(Box::new(record));
            granted
        } else {
            let batch = self.tables.fill(include_str!("sql/insert.sql"), &values) + &read;
            let Answers { answers, refusal } = self.session.try_ask(&batch).await?;
            match refusal {
                // Somebody else was quicker.
                Some(refusal) if refusal.number == failure::DUPLICATE => None,
                Some(refusal) => return Err(failure::refused(&refusal, !answers.is_empty())),
                None => {
                    let record = self.noted(name, answers.get(1))?;
                    let fence = record.as_ref().filter(|record| record.is_held_by(&request.token)).map(Record::fence);
                    self.seen = Seen::of(record);
                    fence
                }
            }
        };
        if granted.is_none() && request.waiting {
            let place = rows(&answers, first + 3)?.first().map(|row| Fields::of(row).int()).transpose()?;
            self.place = place.and_then(|place| u32::try_from(place).ok()).filter(|place| *place > 0);
        }
        self.session.drop_unsent_on_close(false);
        Ok(granted)
    }

    async fn extend(&mut self, name: &str, token: &Token, intent: Intent) -> Result<Option<(Ttl, Fence)>> {
        let (owner, root, ttl) = (locked_by(token), token.hold_text(), intent.ttl());
        let stopping = intent == Intent::Drain;
        let values = [
            ("name", Value::Bytes(name)),
            ("owner", Value::Text(&owner)),
            ("root", Value::Text(&root)),
            ("stopping", Value::Int(stopping.into())),
            ("ttl", ttl.map_or(Value::Null, |ttl| Value::Int(sql::ms(ttl)))),
        ];
        let mut batch = self.tables.fill(include_str!("sql/extend.sql"), &values) + &self.read_with_gate(name, Some(&owner));
        if stopping {
            batch += &self.tables.fill(include_str!("sql/see.sql"), &values);
        }
        let answers = self.session.ask(&batch).await?;
        let record = self.noted(name, answers.get(1))?;
        let matched = answers.first().is_some_and(|answer| answer.matched > 0);
        let extended = record.as_ref().filter(|record| matched && record.is_held_by(token)).map(|record| {
            let own = Ttl::new(micros(record.ttl_ms.saturating_mul(1000))).unwrap_or(Ttl::DEFAULT);
            (ttl.unwrap_or(own), record.fence())
        });
        self.seen = Seen::of(record);
        Ok(extended)
    }

    async fn free(&mut self, name: &str, token: &Token, parting: &Parting) -> Result<bool> {
        let (owner, root, open) = (locked_by(token), token.hold_text(), self.open_gate(name));
        let became = starts::became(parting.became);
        let values = [
            ("name", Value::Bytes(name)),
            ("owner", Value::Text(&owner)),
            ("root", Value::Text(&root)),
            ("ended", Value::Sql(ENDED)),
            ("became", Value::Sql(&became)),
            ("open", Value::Sql(&open)),
        ];
        let batch = self.tables.fill(include_str!("sql/free.sql"), &values) + &history::remember(self.tables, name, Some(parting));
        let freed = self.freed(&batch).await?;
        if freed {
            self.gate_is_open(name);
        }
        Ok(freed)
    }

    async fn read(&mut self, name: &str, _: Duration) -> Result<Option<Record>> {
        match std::mem::replace(&mut self.seen, Seen::No) {
            Seen::Row(record) => return Ok(Some(*record)),
            Seen::Nothing => return Ok(None),
            Seen::No => {}
        }
        let answers = self.session.ask(&self.read_with_gate(name, None)).await?;
        self.noted(name, answers.first())
    }

    async fn create(&mut self, name: &str) -> Result<()> {
        let values = [("name", Value::Bytes(name)), ("shared", Value::Text(SHARED_BY))];
        self.session.ask(&self.tables.fill(include_str!("sql/create.sql"), &values)).await.map(|_| ())
    }

    async fn plain_waiters(&mut self, name: &str) -> Result<Vec<Plain>> {
        let answers = self.session.ask(&self.tables.fill(include_str!("sql/plain_waiters.sql"), &[("name", Value::Bytes(name))])).await?;
        let read = |row| {
            let mut fields = Fields::of(row);
            let (hold, since, seen) = (fields.text()?, fields.int()?, fields.int()?);
            let ms = |at| u64::try_from(at).unwrap_or_default();
            Ok(Plain { hold, since_ms: ms(since), seen_ms: ms(seen), metadata: fields.text_or_null()? })
        };
        rows(&answers, 0)?.iter().map(read).collect()
    }

    async fn write(&mut self, change: &Change<'_>) -> Result<bool> {
        let Change { was, is, .. } = change;
        let name = &*was.name;
        let time = |us: i64| format!("TIMESTAMPADD(MICROSECOND, {us}, '1970-01-01 00:00:00.000000')");
        let freed = was.is_held() && !is.is_held();
        let open = if freed { self.open_gate(name) } else { "0".into() };
        let wake: Vec<_> = change.wake.iter().chain(&change.plain).collect();
        let ring = i64::from(!wake.is_empty());
        let (tables, gated) = (self.tables, self.gated);
        let mut bells = wake.into_iter().filter(|_| gated).map(|hold| bell::ring(tables, name, hold));
        let (is_at, is_until, was_until) = (time(is.locked_at_us), time(is.lock_until_us), time(was.lock_until_us));
        let (renewed, became) = (time(is.renewed_us), starts::became(change.became));
        let in_time = change.by_us.map_or("1".into(), |by| format!("UTC_TIMESTAMP(6) < {}", time(by)));
        let values = [
            ("name", Value::Bytes(name)),
            ("was_by", Value::Text(&was.locked_by)),
            ("was_until", Value::Sql(&was_until)),
            ("revision", Value::Int(was.revision)),
            ("in_time", Value::Sql(&in_time)),
            ("is_by", Value::Text(&is.locked_by)),
            ("is_at", Value::Sql(&is_at)),
            ("is_until", Value::Sql(&is_until)),
            ("root", Value::text_or_null(is.root.as_deref())),
            ("ttl", Value::Int(is.ttl_ms)),
            ("holds", Value::text_or_null(is.holds.as_deref())),
            ("fence", Value::Int(is.fence)),
            ("renewed", Value::Sql(&renewed)),
            ("document", Value::text_or_null(is.document.as_deref())),
            ("became", Value::Sql(&became)),
            ("ring", Value::Int(ring)),
            ("open", Value::Sql(&open)),
        ];
        let fill = |template: &str| self.tables.fill(template, &values);
        let grants = is.fence != was.fence;
        let mut rest = fill("SELECT @dlock_written;\nDO IF(@dlock_written > 0, :open, 0);\n");
        rest += &history::ended(self.tables, name, change.past)?;
        for hold in change.absorbed {
            let values = [("name", Value::Bytes(name)), ("hold", Value::Text(hold))];
            rest += &self.tables.fill("DELETE FROM :waiters WHERE name = :name AND hold = :hold AND @dlock_written > 0;", &values);
        }
        // As with `grant`: a share that is given up must not be taken when nobody waits for the answer any more.
        self.session.drop_unsent_on_close(grants);
        let share = self.share.clone().filter(|_| self.gated).map(|hold| {
            let (shares, rope) = (is.document.as_ref().is_some_and(|document| document.contains(&hold)), self.tables.rope(name, &hold));
            let has = self.session.ropes.contains(&rope);
            (rope, has, if grants { true } else { has && shares })
        });
        if let Some((rope, has, keeps)) = &share
            && has != keeps
        {
            let function = if *keeps { format!("GET_LOCK({rope}, 0)") } else { format!("RELEASE_LOCK({rope})") };
            rest.extend([format!("DO IF(@dlock_written > 0, {function}, 0);\n")]);
        }
        rest.extend(bells.next());
        let mut answered = self.session.try_ask(&(fill(include_str!("sql/write.sql")) + &rest)).await?;
        if answered.answers.get(WRITTEN).is_none() && self.session.interrupted {
            answered = self.session.try_ask(&(fill(include_str!("sql/written.sql")) + &rest)).await?;
        }
        if grants {
            self.session.drop_unsent_on_close(false);
        }
        let Answers { answers, refusal } = answered;
        let Some(row) = answers.get(WRITTEN).and_then(|answer| answer.rows.first()) else {
            let begun = !answers.is_empty();
            return Err(refusal.map_or_else(failure::unreadable, |refusal| failure::refused(&refusal, begun)));
        };
        // What comes after it is remembered, forgotten and woken, which is no failure of the rest.
        if Fields::of(row).int()? <= 0 {
            return Ok(false);
        }
        if let Some((rope, has, keeps)) = share
            && has != keeps
        {
            self.session.ropes.retain(|other| *other != rope);
            self.session.ropes.extend(keeps.then_some(rope));
        }
        self.bell += ring;
        self.document = (is.document.clone(), is.root.clone());
        self.freed |= freed && was.locked_by != SHARED_BY;
        if freed {
            self.gate_is_open(name);
        }
        for bell in bells {
            // Done is what was asked for, whatever becomes of this.
            let _ = self.session.try_ask(&bell).await;
        }
        Ok(true)
    }

    async fn mark(&mut self, name: &str, fence: Fence, mark: &Break) -> Result<bool> {
        let (_, broken): (End, _) = mark.into();
        let mark = serde_json::to_string(mark).map_err(|error| Error::new(Kind::Internal, "the mark can't be written").source(error))?;
        let values = [
            ("name", Value::Bytes(name)),
            ("fence", Value::Int(i64::try_from(fence.0).unwrap_or(i64::MAX))),
            ("mark", Value::Text(&mark)),
            ("broken", Value::Text(broken.as_deref().unwrap_or_default())),
        ];
        let answers = self.session.ask(&self.tables.fill(include_str!("sql/mark.sql"), &values)).await?;
        let there = rows(&answers, 2)?.first().map(|row| Fields::of(row).int()).transpose()?;
        Ok(there.is_some_and(|there| there > 0))
    }

    async fn see(&mut self, name: &str, fence: Fence) -> Result<()> {
        let fence = i64::try_from(fence.0).unwrap_or(i64::MAX);
        let values = [("name", Value::Bytes(name)), ("fence", Value::Int(fence))];
        let batch = self.tables.fill("UPDATE :marks SET seen = 1 WHERE name = :name AND fence = :fence;", &values);
        self.session.ask(&batch).await.map(|_| ())
    }
}

/// Puts a waiter into the queue: with `leased`, only if the lease is somebody else's.
pub(super) fn join(tables: &Tables, name: &str, request: &Request, leased: bool) -> Result<String> {
    let (owner, root, metadata) = (locked_by(&request.token), request.token.hold_text(), json(request.metadata.as_ref())?);
    let values = [
        ("name", Value::Bytes(name)),
        ("owner", Value::Text(&owner)),
        ("root", Value::Text(&root)),
        ("metadata", Value::text_or_null(metadata.as_deref())),
        ("leased", Value::Int(leased.into())),
    ];
    Ok(tables.fill(include_str!("sql/join.sql"), &values))
}

/// Asks for a waiter's place in the queue.
pub(super) fn place(tables: &Tables, name: &str, request: &Request) -> String {
    let root = request.token.hold_text();
    tables.fill(include_str!("sql/place.sql"), &[("name", Value::Bytes(name)), ("root", Value::Text(&root))])
}

/// Takes a waiter out of the queue.
pub(super) fn leaving(tables: &Tables, name: &str, token: &Token) -> String {
    tables.fill(include_str!("sql/leave.sql"), &[("name", Value::Bytes(name)), ("root", Value::Text(&token.hold_text()))])
}

/// After how many seconds of silence the server ends a session: twice the lease, so that a frozen client doesn't keep
/// a gate for much longer than its lock.
fn idle_limit(ttl: Ttl) -> u32 {
    u32::try_from(ttl.get().as_secs().saturating_mul(2).saturating_add(1)).unwrap_or(u32::MAX).clamp(2, 31_536_000)
}

/// What people say of themselves, as columns have it.
pub(super) fn json(metadata: Option<&Metadata>) -> Result<Option<String>> {
    let write = |metadata| serde_json::to_string(metadata);
    metadata.map(write).transpose().map_err(|error| Error::new(Kind::Internal, "the metadata can't be written").source(error))
}

fn rows(answers: &[Answer], nth: usize) -> Result<&[Row]> {
    answers.get(nth).map(|answer| &*answer.rows).ok_or_else(failure::unreadable)
}

fn waiters(answers: &[Answer]) -> Result<Vec<(String, Waiter)>> {
    let read = |row| {
        let mut fields = Fields::of(row);
        Ok((fields.text()?, fields.waiter()?))
    };
    rows(answers, 1)?.iter().map(read).collect()
}
