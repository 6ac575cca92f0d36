//! The lock table in PostgreSQL's SQL: each statement by itself, in autocommit, one round trip each.
//!
//! All of them judge by `clock_timestamp()`, since `now()` stands still in a transaction, as UTC without a time zone, which is
//! what ShedLock compares with. Nothing here waits but for another statement on the same row.

use std::{fmt::Write as _, time::Duration};

use async_trait::async_trait;
use sqlx::{Row as _, postgres::PgRow};

use super::{connection::Session, failure, history, names::Tables, starts, statement::Value};
use crate::{
    backends::sql::{self, Begin, Change, Plain, Record, SHARED_BY, locked_by, micros},
    lock::{Break, Effect, End, Error, Fence, Intent, Kind, Metadata, Parting, Request, Result, Token, Ttl, Waiter},
};

/// A lock table over a session.
pub(super) struct LockTable<'a> {
    pub session: &'a mut Session,
    pub tables: &'a Tables,
    /// The session has the gate, which a grant gives up.
    pub gate: bool,
    /// Who was granted the lock is out of the queue, and has no gate any more.
    pub left: bool,
}

#[async_trait(?Send)]
impl sql::Table for LockTable<'_> {
    async fn grant(&mut self, name: &str, request: &Request, judged: Option<&Record>) -> Result<Option<Fence>> {
        let (by, root, ttl) = (locked_by(&request.token), request.token.hold_text(), sql::ms(request.ttl));
        let metadata = json(request.metadata.as_ref())?;
        let begin = Begin::of(request, judged.map(|record| (&record.starts, record.now_ms())));
        let sql = format!("{}{}", self.session.look_for_client(), self.tables.fill(include_str!("sql/grant.sql")));
        let sql = starts::granting(&sql, &begin, judged.map(|_| "AND l.revision = $16"), "excluded.locked_at", "$3");
        // While there is a document, its rules are asked before.
        let sql = sql.replace("{nobody_first}", if judged.is_some() { "" } else { "AND l.document IS NULL" });
        let [place, guard, at_least, window, tries, who, revision] =
            starts::values(&begin, metadata.as_deref(), judged.map(|record| record.revision));
        // An acquire that is given up must not arrive when nobody waits for its answer any more; a release may.
        self.session.drop_unsent = true;
        let values = |remember| {
            [
                Value::Text(name),
                Value::Text(&by),
                Value::Text(&root),
                Value::Int(ttl),
                Value::Bool(request.detached),
                Value::Maybe(metadata.as_deref()),
                Value::Bool(request.waiting),
                Value::Bool(self.gate),
                Value::Bool(remember),
                place,
                guard,
                at_least,
                window,
                tries,
                who,
                revision,
                Value::Maybe(judged.and_then(|record| record.document.as_deref())),
            ]
        };
        let mut rows = self.session.query(&sql, &values(true)).await;
        if self.may_be_the_history(&rows) {
            rows = self.session.query(&sql, &values(false)).await;
        }
        self.session.drop_unsent = false;
        let rows = rows?;
        self.left = !rows.is_empty();
        let Some(row) = rows.first() else { return Ok(None) };
        let read = || Ok((fence(row)?, row.try_get::<bool, _>("vanished")?));
        let (fence, vanished) = read().map_err(failure::malformed)?;
        if vanished {
            history::trim_at_times(self.session, self.tables, name, fence).await;
        }
        Ok(Some(fence))
    }

    async fn extend(&mut self, name: &str, token: &Token, intent: Intent) -> Result<Option<(Ttl, Fence)>> {
        let (by, root, ttl) = (locked_by(token), token.hold_text(), intent.ttl().map(sql::ms));
        let sql = self.tables.fill(include_str!("sql/extend.sql"));
        let stopping = Value::Bool(intent == Intent::Drain);
        let values = [Value::Text(name), Value::Text(&by), Value::Text(&root), Value::MaybeInt(ttl), stopping];
        let rows = self.session.query(&sql, &values).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let read = || Ok((row.try_get::<i64, _>("ttl_ms")?, fence(row)?));
        let (ttl, fence) = read().map_err(failure::malformed)?;
        Ok(Some((Ttl::new(micros(ttl * 1000)).unwrap_or(Ttl::DEFAULT), fence)))
    }

    async fn free(&mut self, name: &str, token: &Token, parting: &Parting) -> Result<bool> {
        let (by, root, channel) = (locked_by(token), token.hold_text(), self.tables.channel(name));
        let sql = self.tables.fill(include_str!("sql/free.sql")).replace("{became}", &starts::became(parting.became, "l.fence"));
        let sql = sql.replace("{kept}", starts::kept(parting.became));
        let how = parting.end.as_ref().map(ToString::to_string);
        let why = parting.why.as_deref().map(|why| self.session.words(why).into_owned());
        let values = |how| {
            [
                Value::Text(name),
                Value::Text(&by),
                Value::Text(&root),
                Value::Text(&channel),
                Value::Maybe(how),
                Value::Maybe(why.as_deref()),
            ]
        };
        let mut rows = self.session.query(&sql, &values(how.as_deref())).await;
        if how.is_some() && self.may_be_the_history(&rows) {
            rows = self.session.query(&sql, &values(None)).await;
        }
        let rows = rows?;
        Ok(!rows.is_empty())
    }

    async fn read(&mut self, name: &str, pause: Duration) -> Result<Option<Record>> {
        let first = if pause.is_zero() { String::new() } else { format!("SELECT pg_sleep({:.4});\n", pause.as_secs_f64()) };
        let sql = first + &self.tables.fill(include_str!("sql/read.sql"));
        let rows = self.session.query(&sql, &[Value::Text(name)]).await?;
        rows.first().map(|row| record(row).map_err(failure::malformed)).transpose()
    }

    async fn create(&mut self, name: &str) -> Result<()> {
        self.session
            .query(&self.tables.fill(include_str!("sql/create.sql")), &[Value::Text(name), Value::Text(SHARED_BY)])
            .await
            .map(|_| ())
    }

    async fn plain_waiters(&mut self, name: &str) -> Result<Vec<Plain>> {
        let rows = self.session.query(&self.tables.fill(include_str!("sql/plain_waiters.sql")), &[Value::Text(name)]).await?;
        let read = |row: &PgRow| {
            let ms = |column| Ok::<_, sqlx::Error>(u64::try_from(row.try_get::<i64, _>(column)?).unwrap_or_default());
            Ok(Plain { hold: row.try_get("hold")?, since_ms: ms("since_ms")?, seen_ms: ms("seen_ms")?, metadata: row.try_get("metadata")? })
        };
        rows.iter().map(|row| read(row).map_err(failure::malformed)).collect()
    }

    async fn write(&mut self, change: &Change<'_>) -> Result<bool> {
        let Change { was, is, .. } = change;
        let mut channels: Vec<_> = change.wake.iter().map(|hold| self.tables.waiter(&was.name, hold)).collect();
        if change.wake_plain {
            channels.push(self.tables.channel(&was.name));
        }
        let past = history::json(self.session, change.past)?;
        let document = is.document.as_deref().map(ascii);
        let sql = self.tables.fill(include_str!("sql/write.sql")).replace("{became}", &starts::became(change.became, "l.fence"));
        let values = |past| {
            [
                Value::Text(&was.name),
                Value::Text(&was.locked_by),
                Value::Int(was.revision),
                Value::Int(was.lock_until_us),
                Value::MaybeInt(change.by_us),
                Value::Int(is.lock_until_us),
                Value::Int(is.locked_at_us),
                Value::Text(&is.locked_by),
                Value::Maybe(is.root.as_deref()),
                Value::Int(is.ttl_ms),
                Value::Maybe(is.holds.as_deref()),
                Value::Int(is.fence),
                Value::Int(is.renewed_us),
                Value::Maybe(document.as_deref()),
                Value::Text(past),
                Value::Texts(&channels),
                Value::Texts(change.absorbed),
            ]
        };
        // As with `grant`: a share that is given up must not be taken when nobody waits for the answer any more.
        self.session.drop_unsent = is.fence != was.fence;
        let mut rows = self.session.query(&sql, &values(&past)).await;
        if !change.past.is_empty() && self.may_be_the_history(&rows) {
            rows = self.session.query(&sql, &values("[]")).await;
        }
        self.session.drop_unsent = false;
        Ok(!rows?.is_empty())
    }

    async fn mark(&mut self, name: &str, fence: Fence, mark: &Break) -> Result<bool> {
        let (_, broken): (End, _) = mark.into();
        let mark = serde_json::to_string(mark).map_err(|error| Error::new(Kind::Internal, "the mark can't be written").source(error))?;
        let (mark, broken) = (ascii(&mark), self.session.words(broken.as_deref().unwrap_or_default()).into_owned());
        let fence = i64::try_from(fence.0).unwrap_or(i64::MAX);
        let values = [Value::Text(name), Value::Int(fence), Value::Text(&mark), Value::Text(&broken)];
        let rows = self.session.query(&self.tables.fill(include_str!("sql/mark.sql")), &values).await?;
        Ok(!rows.is_empty())
    }

    async fn see(&mut self, name: &str, fence: Fence) -> Result<()> {
        let fence = i64::try_from(fence.0).unwrap_or(i64::MAX);
        let sql = self.tables.fill("UPDATE {marks} SET seen = true WHERE name = $1 AND fence = $2");
        self.session.query(&sql, &[Value::Text(name), Value::Int(fence)]).await.map(|_| ())
    }
}

impl<'a> LockTable<'a> {
    /// Over a session without a gate.
    pub(super) fn over(session: &'a mut Session, tables: &'a Tables) -> Self {
        Self { session, tables, gate: false, left: false }
    }

    /// Whether a statement failed that may not if it remembers nothing: for want of room, or of a right. A history is no reason to
    /// fail.
    fn may_be_the_history<T>(&self, rows: &Result<T>) -> bool {
        rows.as_ref().is_err_and(|error| error.effect == Effect::NotApplied) && self.session.is_open()
    }

    /// Every held lock whose name starts with `start`, by name.
    pub(super) async fn list(&mut self, start: &str) -> Result<Vec<Record>> {
        let rows = self.session.query(&self.tables.fill(include_str!("sql/list.sql")), &[Value::Text(start)]).await?;
        rows.iter().map(|row| record(row).map_err(failure::malformed)).collect()
    }

    /// Puts a waiter into the queue; its place.
    pub(super) async fn join_queue(&mut self, name: &str, request: &Request) -> Result<u32> {
        let (hold, metadata) = (request.token.hold_text(), json(request.metadata.as_ref())?);
        let sql = self.tables.fill(include_str!("sql/join.sql"));
        let row = self.session.query_one(&sql, &[Value::Text(name), Value::Text(&hold), Value::Maybe(metadata.as_deref())]).await?;
        let place: i64 = row.try_get("position").map_err(failure::malformed)?;
        Ok(u32::try_from(place).unwrap_or(u32::MAX))
    }

    /// Claims a warning of what is kept in `of`.
    pub(super) async fn warn(&mut self, of: &str, name: &str, fence: Fence, level: u32) -> Result<bool> {
        let sql = self.tables.fill(&include_str!("sql/warn.sql").replace("{warned}", of));
        let fence = i64::try_from(fence.0).unwrap_or(i64::MAX);
        Ok(!self.session.query(&sql, &[Value::Text(name), Value::Int(fence), Value::Int(level.into())]).await?.is_empty())
    }

    /// Takes a waiter out of the queue, after what `first` does; whether there is a document that it may be in.
    pub(super) async fn leave_queue(&mut self, first: &str, name: &str, token: &Token) -> Result<bool> {
        let sql = format!("{first}\n{}", self.tables.fill(include_str!("sql/leave.sql")));
        Ok(!self.session.query(&sql, &[Value::Text(name), Value::Text(&token.hold_text())]).await?.is_empty())
    }

    /// Returns the waiters for the lock `name`, or for all whose names start with it, longest first.
    pub(super) async fn queue(&mut self, name: &str, whole: bool) -> Result<Vec<(String, Waiter)>> {
        let sql = self.tables.fill(include_str!("sql/queue.sql"));
        let rows = self.session.query(&sql, &[Value::Text(name), Value::Bool(whole)]).await?;
        let read = |row: &PgRow| {
            let metadata: Option<String> = row.try_get("metadata")?;
            let waiter = Waiter {
                metadata: metadata.and_then(|json| serde_json::from_str(&json).ok()),
                waiting_for: Some(micros(row.try_get("waited_us")?)),
            };
            Ok((row.try_get("name")?, waiter))
        };
        rows.iter().map(|row| read(row).map_err(failure::malformed)).collect()
    }
}

/// What people say of themselves, as columns have it.
pub(super) fn json(metadata: Option<&Metadata>) -> Result<Option<String>> {
    let write = |metadata| serde_json::to_string(metadata).map(|json| ascii(&json));
    metadata.map(write).transpose().map_err(|error| Error::new(Kind::Internal, "the metadata can't be written").source(error))
}

/// JSON in ASCII, which every encoding has.
pub(super) fn ascii(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        if c.is_ascii() {
            out.push(c);
            continue;
        }
        for unit in c.encode_utf16(&mut [0; 2]) {
            // Writing to a String can't fail.
            let _ = write!(out, "\\u{unit:04x}");
        }
    }
    out
}

fn fence(row: &PgRow) -> Result<Fence, sqlx::Error> {
    let fence: i64 = row.try_get("fence")?;
    Ok(Fence(u64::try_from(fence).unwrap_or_default()))
}

fn record(row: &PgRow) -> Result<Record, sqlx::Error> {
    Ok(Record {
        name: row.try_get("name")?,
        now_us: row.try_get("now_us")?,
        lock_until_us: row.try_get("lock_until_us")?,
        locked_at_us: row.try_get("locked_at_us")?,
        locked_by: row.try_get("locked_by")?,
        layout: row.try_get("layout")?,
        owner: row.try_get("owner")?,
        root: row.try_get("root")?,
        ttl_ms: row.try_get("ttl_ms")?,
        holds: row.try_get("holds")?,
        fence: row.try_get("fence")?,
        detached: row.try_get("detached")?,
        renewed_us: row.try_get("renewed_us")?,
        metadata: row.try_get("metadata")?,
        mark: row.try_get("mark")?,
        seen: row.try_get("seen")?,
        document: row.try_get("document")?,
        mode: row.try_get("mode")?,
        waited: row.try_get("waited")?,
        revision: row.try_get("revision")?,
        starts: starts::read(row)?,
    })
}
