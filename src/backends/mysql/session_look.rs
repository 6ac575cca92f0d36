//! The holders of locks that sessions keep: the server's view of its locks, and the holders' own records.
//!
//! Read only, except that reading in `mode=row` share-locks the row for an instant.

use std::time::Duration;

use super::{
    checks::ServerCheck,
    connection::Answer,
    failure, history,
    life::Life,
    readers::reads,
    sessions::MysqlSessions,
    starts,
    statement::{Value, literal},
};
use crate::{
    backends::sql::{Fields, SessionReads, as_fence, foreign_holder, micros},
    lock::{Fence, History, Holder, Key, LockState, Mode, Renewal, Result, Token, Waiter, Which},
};

impl MysqlSessions {
    /// Returns the statements for a lock's holders, which [`read_holders`] reads.
    pub(super) fn look_sql(&self, key: &Key, server: &ServerCheck) -> String {
        let name = self.name_of(key);
        let holder = if self.is_row() { "0".to_owned() } else { format!("IS_USED_LOCK({})", self.lock_of(key)) };
        let values = [("name", Value::Bytes(&name)), ("holder", Value::Sql(&holder))];
        let look = self.client.tables.fill(include_str!("sql/look_session.sql"), &values);
        let life = Life::of(server);
        let left = self.client.tables.fill(include_str!("sql/left_holds.sql"), &[&values[..], &life.values()].concat());
        if !self.is_row() {
            return look + &left;
        }
        // If this reader can't lock the row, a holder has it locked. This reader releases the row at once.
        let share = if server.mariadb { "LOCK IN SHARE MODE" } else { "FOR SHARE" };
        let template = format!("SELECT 1 FROM :rows WHERE name = :name;\nSELECT 1 FROM :rows WHERE name = :name {share} SKIP LOCKED;");
        let reads = reads(&self.client.tables, &name);
        let readers = [("name", Value::Bytes(&name)), ("reads", Value::Sql(&reads))];
        look + &self.client.tables.fill(&template, &values)
            + &self.client.tables.fill(include_str!("sql/look_readers.sql"), &readers)
            + &left
    }
}

impl SessionReads for MysqlSessions {
    const HELD_NAMES: &'static str = "SELECT name FROM :sessions WHERE LEFT(name, LENGTH(:start)) = :start AND name >= :start AND (session IS NOT NULL OR name IN (SELECT name FROM :readers)) ORDER BY name;";

    fn known_names(which: Which) -> String {
        starts::known(":sessions", which)
    }

    async fn names(&mut self, sql: &str, start: &str) -> Result<Vec<String>> {
        let answers = self.aside(&self.client.tables.fill(sql, &[("start", Value::Bytes(start))])).await?;
        answers.iter().flat_map(|answer| &answer.rows).map(|row| Fields::of(row).text()).collect()
    }

    async fn look(&mut self, key: &Key) -> Result<LockState> {
        let name = self.name_of(key);
        let mut session = self.client.take().await?;
        let values = [("start", Value::Bytes(&name)), ("whole", Value::Int(1))];
        let queue = self.client.tables.fill(include_str!("sql/queue.sql"), &values);
        let stored = if self.is_row() { literal(Value::Text(&name)) } else { self.lock_of(key) };
        let answers = session.ask(&format!("{}SELECT {stored};\n{queue}", self.look_sql(key, &session.server))).await;
        self.client.session = Some(session);
        let answers = answers?;
        let (holders, last_fence) = read_holders(&answers, 0)?;
        let rows = answers.last().map(|answer| &*answer.rows).unwrap_or_default();
        let waiters = rows.iter().map(|row| Ok(Fields::of(row).plain()?.waiter())).collect::<Result<Vec<Waiter>>>()?;
        let stored = answers.len().checked_sub(2).and_then(|nth| answers[nth].rows.first());
        let stored_as = stored.map(|row| Fields::of(row).text()).transpose()?.unwrap_or(name);
        Ok(LockState { key: key.clone(), stored_as, holders, waiters, last_fence, nodes: Vec::new() })
    }

    async fn probe(&mut self, key: &Key, token: &Token) -> Result<Renewal> {
        let name = self.name_of(key);
        let mut session = self.client.take().await?;
        // Read last: a hold that is listed first and has a record afterwards lasted all the time.
        let root = token.hold_text();
        let hold = self.client.tables.fill(
            "SELECT fence FROM :sessions WHERE name = :name AND root = :root UNION ALL SELECT fence FROM :readers WHERE name = :name AND root = :root;",
            &[("name", Value::Bytes(&name)), ("root", Value::Text(&root))],
        );
        let answers = session.ask(&(self.look_sql(key, &session.server) + &hold)).await;
        self.client.session = Some(session);
        let answers = answers?;
        let (holders, _) = read_holders(&answers, 0)?;
        let fence = answers.last().and_then(|answer| answer.rows.first()).map(|row| Fields::of(row).int()).transpose()?;
        let fence = fence.map(as_fence);
        Ok(match holders.into_iter().find(|holder| !holder.foreign && fence.is_some() && holder.fence == fence) {
            Some(holder) => Renewal::Kept { expires_in: holder.expires_in },
            None => Renewal::NotHeld,
        })
    }

    /// Reads the holds' records first, then the holders, then the history: a hold that ends meanwhile has its history entry.
    async fn history(&mut self, key: &Key) -> Result<History> {
        let name = self.name_of(key);
        let mut session = self.client.take().await?;
        let fill = |template: &str| self.client.tables.fill(template, &[("name", Value::Bytes(&name))]);
        let left = fill(include_str!("sql/left_hold.sql"));
        let starts = fill("SELECT :starts FROM :sessions AS l WHERE l.name = :name;");
        let answers = session.ask(&(left + &self.look_sql(key, &session.server) + &starts)).await?;
        let (mut past, skips) = history::read(&mut session, &self.client.tables, &name).await?;
        self.client.session = Some(session);
        let (holders, _) = read_holders(&answers, 1)?;
        for row in answers.first().map(|answer| &*answer.rows).unwrap_or_default() {
            let left = Fields::of(row).history_entry()?;
            if holders.iter().all(|holder| holder.fence != left.fence) {
                past.push(left);
            }
        }
        let record = answers.last().and_then(|answer| answer.rows.first()).map(|row| Fields::of(row).run_record()).transpose()?;
        Ok(History { record: record.unwrap_or_default(), ..History::new(past, skips) })
    }
}

/// Returns how long the lock stays busy because of holds whose server is gone: of all others it is known when they renewed.
pub(super) fn left_for(holders: &[Holder]) -> Option<Duration> {
    holders.iter().filter(|holder| !holder.foreign && holder.renewed_ago.is_none()).filter_map(|holder| holder.expires_in).max()
}

/// Returns the holders of the lock, and the last fence given out, from the answers to [`MysqlSessions::look_sql`].
pub(super) fn read_holders(answers: &[Answer], at: usize) -> Result<(Vec<Holder>, Option<Fence>)> {
    let (mut holders, fence, looked) = read_present(answers, at)?;
    for row in answers.get(at + looked).map(|answer| &*answer.rows).unwrap_or_default() {
        let mut fields = Fields::of(row);
        let mode = if fields.flag()? { Mode::Shared } else { Mode::Exclusive };
        holders.push(Holder {
            fence: Some(as_fence(fields.int()?)),
            foreign: false,
            held_for: Some(micros(fields.int()?)),
            expires_in: Some(micros(fields.int()?)),
            metadata: fields.json()?,
            ..foreign_holder(mode)
        });
    }
    Ok((holders, fence))
}

/// Returns the holders whose sessions have the lock, the last fence, and the number of answers read.
fn read_present(answers: &[Answer], at: usize) -> Result<(Vec<Holder>, Option<Fence>, usize)> {
    let row = answers.get(at).and_then(|answer| answer.rows.first()).ok_or_else(failure::unreadable)?;
    let mut fields = Fields::of(row);
    let (holder, fence, layout) = (fields.int_or_null()?, fields.int_or_null()?, fields.int_or_null()?);
    let (session, held, silent) = (fields.int_or_null()?, fields.int_or_null()?, fields.int_or_null()?);
    let (ttl, metadata, mark) = (fields.int_or_null()?, fields.text_or_null()?, fields.mark()?);
    failure::check_layout(layout.unwrap_or_default())?;
    // A hold may have been undone before it counted a fence.
    let fence = fence.filter(|fence| *fence > 0).map(as_fence);
    // mode=row: if readers are known, no other session has the row. No more readers can lock it while a writer waits.
    let looked = if holder == Some(0) { 4 } else { 1 };
    let readers = answers.get(at + 3).filter(|_| holder == Some(0)).map(|answer| &*answer.rows).unwrap_or_default();
    if !readers.is_empty() {
        return Ok((readers.iter().map(|row| reader(Fields::of(row))).collect::<Result<_>>()?, fence, looked));
    }
    let held_by = match holder {
        // mode=row: whether the row exists, and whether this reader could lock it.
        Some(0) => {
            let found = |nth: usize| answers.get(at + nth).is_some_and(|answer| !answer.rows.is_empty());
            (found(1) && !found(2)).then_some(session)
        }
        Some(number) => Some(session.filter(|session| *session == number)),
        None => None,
    };
    let Some(ours) = held_by else { return Ok((Vec::new(), fence, looked)) };
    let mut holder = foreign_holder(Mode::Exclusive);
    if ours.is_some() {
        holder = Holder {
            metadata: metadata.and_then(|json| serde_json::from_str(&json).ok()),
            fence,
            foreign: false,
            held_for: held.map(micros),
            renewed_ago: silent.map(micros),
            expires_in: ttl.zip(silent).map(|(ttl, silent)| micros(ttl.saturating_mul(1000) - silent)),
            broken: mark,
            ..holder
        };
    }
    Ok((vec![holder], fence, looked))
}

fn reader(mut fields: Fields<'_>) -> Result<Holder> {
    let (fence, held, silent, ttl) = (fields.int()?, fields.int()?, fields.int()?, fields.int()?);
    Ok(Holder {
        metadata: fields.json()?,
        fence: Some(as_fence(fence)),
        foreign: false,
        held_for: Some(micros(held)),
        renewed_ago: Some(micros(silent)),
        expires_in: Some(micros(ttl.saturating_mul(1000) - silent)),
        broken: fields.mark()?,
        ..foreign_holder(Mode::Shared)
    })
}
