//! The holders of locks that sessions keep: the server's view of its locks, and the holders' own records.
//!
//! Read only, except that a look at a row in `mode=row` locks the row for readers for an instant.

use std::time::Duration;

use super::{
    checks::Checked,
    connection::Answer,
    failure, history,
    life::Life,
    options::Mode,
    readers::reads,
    reading::Fields,
    sessions::Sessions,
    starts,
    statement::{Value, literal},
};
use crate::{
    backends::sql::micros,
    lock::{Break, Fence, History, Holder, Key, LockState, Metadata, Mode as How, Renewal, Result, Token, Waiter, Which},
};

impl Sessions {
    /// Asks for a lock's holders.
    pub(super) fn look_sql(&self, key: &Key, server: &Checked) -> String {
        let name = self.names.of(key);
        let holder = match self.options.mode {
            Mode::Row => "0".to_owned(),
            _ => format!("IS_USED_LOCK({})", self.lock_of(key)),
        };
        let values = [("name", Value::Bytes(&name)), ("holder", Value::Sql(&holder))];
        let look = self.tables.fill(include_str!("sql/look_session.sql"), &values);
        let life = Life::of(server);
        let left = self.tables.fill(include_str!("sql/left_holds.sql"), &[&values[..], &life.values()].concat());
        if self.options.mode != Mode::Row {
            return look + &left;
        }
        // If readers can't lock a row, its holder has it locked. Readers release the row at once.
        let share = if server.mariadb { "LOCK IN SHARE MODE" } else { "FOR SHARE" };
        let template = format!("SELECT 1 FROM :rows WHERE name = :name;\nSELECT 1 FROM :rows WHERE name = :name {share} SKIP LOCKED;");
        let reads = reads(&self.tables, &name);
        let readers = [("name", Value::Bytes(&name)), ("reads", Value::Sql(&reads))];
        look + &self.tables.fill(&template, &values) + &self.tables.fill(include_str!("sql/look_readers.sql"), &readers) + &left
    }

    pub(super) async fn look_at(&mut self, key: &Key) -> Result<LockState> {
        let name = self.names.of(key);
        let mut session = self.side().await?;
        let values = [("start", Value::Bytes(&name)), ("whole", Value::Int(1))];
        let queue = self.tables.fill(include_str!("sql/queue.sql"), &values);
        let stored = if self.options.mode == Mode::Row { literal(Value::Text(&name)) } else { self.lock_of(key) };
        let answers = session.ask(&format!("{}SELECT {stored};\n{queue}", self.look_sql(key, &session.server))).await;
        self.side = Some(session);
        let answers = answers?;
        let (holders, last_fence) = read_holders(&answers, 0)?;
        let rows = answers.last().map(|answer| &*answer.rows).unwrap_or_default();
        let waiters = rows.iter().map(|row| Ok(Fields::of(row).plain()?.waiter())).collect::<Result<Vec<Waiter>>>()?;
        let stored = answers.len().checked_sub(2).and_then(|nth| answers[nth].rows.first());
        let stored_as = stored.map(|row| Fields::of(row).text()).transpose()?.unwrap_or(name);
        Ok(LockState { key: key.clone(), stored_as, holders, waiters, last_fence, nodes: Vec::new() })
    }

    pub(super) async fn look_for(&mut self, key: &Key, token: &Token) -> Result<Renewal> {
        let name = self.names.of(key);
        let mut session = self.side().await?;
        // Last: a holder that is there first and wrote this was there all the time.
        let root = token.hold_text();
        let hold = self.tables.fill(
            "SELECT fence FROM :sessions WHERE name = :name AND root = :root UNION ALL SELECT fence FROM :readers WHERE name = :name AND root = :root;",
            &[("name", Value::Bytes(&name)), ("root", Value::Text(&root))],
        );
        let answers = session.ask(&(self.look_sql(key, &session.server) + &hold)).await;
        self.side = Some(session);
        let answers = answers?;
        let (holders, _) = read_holders(&answers, 0)?;
        let fence = answers.last().and_then(|answer| answer.rows.first()).map(|row| Fields::of(row).int()).transpose()?;
        let fence = fence.map(as_fence);
        Ok(match holders.into_iter().find(|holder| !holder.foreign && fence.is_some() && holder.fence == fence) {
            Some(holder) => Renewal::Kept { expires_in: holder.expires_in },
            None => Renewal::NotHeld,
        })
    }

    /// What is remembered of a lock. First what was written of a hold, then whether that lasts, and last how it ended: one that is over by
    /// then has its end.
    pub(super) async fn look_back(&mut self, key: &Key) -> Result<History> {
        let name = self.names.of(key);
        let mut session = self.side().await?;
        let fill = |template: &str| self.tables.fill(template, &[("name", Value::Bytes(&name))]);
        let left = fill(include_str!("sql/left_hold.sql"));
        let starts = fill("SELECT :starts FROM :sessions AS l WHERE l.name = :name;");
        let answers = session.ask(&(left + &self.look_sql(key, &session.server) + &starts)).await?;
        let (mut past, skips) = history::read(&mut session, &self.tables, &name).await?;
        self.side = Some(session);
        let (holders, _) = read_holders(&answers, 1)?;
        for row in answers.first().map(|answer| &*answer.rows).unwrap_or_default() {
            let left = history::past(Fields::of(row))?;
            if holders.iter().all(|holder| holder.fence != left.fence) {
                past.push(left);
            }
        }
        let record = answers.last().and_then(|answer| answer.rows.first()).map(|row| starts::read(&mut Fields::of(row))).transpose()?;
        Ok(History { record: record.unwrap_or_default(), ..History::new(past, skips) })
    }

    pub(super) async fn known_keys(&mut self, start: &str, which: Which) -> Result<Vec<Key>> {
        let start = self.names.starting_with(start);
        let answers = self.aside(&self.tables.fill(&starts::known(":sessions", which), &[("start", Value::Bytes(&start))])).await?;
        let rows = answers.iter().flat_map(|answer| &answer.rows);
        let names = rows.map(|row| Fields::of(row).text()).collect::<Result<Vec<_>>>()?;
        Ok(names.iter().filter_map(|name| self.names.key(name)).collect())
    }

    pub(super) async fn look_at_all(&mut self, start: &str) -> Result<Vec<LockState>> {
        let start = self.names.starting_with(start);
        let sql = "SELECT name FROM :sessions WHERE LEFT(name, LENGTH(:start)) = :start AND name >= :start AND (session IS NOT NULL OR name IN (SELECT name FROM :readers)) ORDER BY name;";
        let answers = self.aside(&self.tables.fill(sql, &[("start", Value::Bytes(&start))])).await?;
        let mut states = Vec::new();
        for row in answers.iter().flat_map(|answer| &answer.rows) {
            let Some(key) = self.names.key(&Fields::of(row).text()?) else { continue };
            let state = self.look_at(&key).await?;
            if !state.holders.is_empty() {
                states.push(state);
            }
        }
        Ok(states)
    }
}

fn as_fence(fence: i64) -> Fence {
    Fence(u64::try_from(fence).unwrap_or_default())
}

/// For how long the lock rests because of holds whose server is gone: of all others it is known when they renewed.
pub(super) fn rests(holders: &[Holder]) -> Option<Duration> {
    holders.iter().filter(|holder| !holder.foreign && holder.renewed_ago.is_none()).filter_map(|holder| holder.expires_in).max()
}

/// Returns the holders of the lock, and the last fence given out, from the answers to [`Sessions::look_sql`].
pub(super) fn read_holders(answers: &[Answer], at: usize) -> Result<(Vec<Holder>, Option<Fence>)> {
    let (mut holders, fence, looked) = read_present(answers, at)?;
    for row in answers.get(at + looked).map(|answer| &*answer.rows).unwrap_or_default() {
        let mut fields = Fields::of(row);
        let mode = if fields.int()? == 0 { How::Exclusive } else { How::Shared };
        let (fence, held, left, metadata) = (fields.int()?, fields.int()?, fields.int()?, fields.text_or_null()?);
        holders.push(Holder {
            permit: None,
            mode,
            metadata: metadata.and_then(|json| serde_json::from_str::<Metadata>(&json).ok()),
            fence: Some(as_fence(fence)),
            foreign: false,
            detached: false,
            held_for: Some(micros(held)),
            renewed_ago: None,
            expires_in: Some(micros(left)),
            holds: 1,
            broken: None,
        });
    }
    Ok((holders, fence))
}

/// Those whose sessions have it; and how many answers that took.
fn read_present(answers: &[Answer], at: usize) -> Result<(Vec<Holder>, Option<Fence>, usize)> {
    let row = answers.get(at).and_then(|answer| answer.rows.first()).ok_or_else(failure::unreadable)?;
    let mut fields = Fields::of(row);
    let (holder, fence, layout) = (fields.int_or_null()?, fields.int_or_null()?, fields.int_or_null()?);
    let (session, held, silent) = (fields.int_or_null()?, fields.int_or_null()?, fields.int_or_null()?);
    let (ttl, metadata, mark, seen) = (fields.int_or_null()?, fields.text_or_null()?, fields.text_or_null()?, fields.int()? != 0);
    failure::check_layout(layout.unwrap_or_default())?;
    // None was counted yet where a hold was undone before.
    let fence = fence.filter(|fence| *fence > 0).map(as_fence);
    // mode=row: the readers are known, and no other session has the row then. More readers can't lock it where a writer waits.
    let looked = if holder == Some(0) { 4 } else { 1 };
    let readers = answers.get(at + 3).filter(|_| holder == Some(0)).map(|answer| &*answer.rows).unwrap_or_default();
    if !readers.is_empty() {
        return Ok((readers.iter().map(|row| reader(Fields::of(row))).collect::<Result<_>>()?, fence, looked));
    }
    let held_by = match holder {
        // mode=row: whether the row is there, and whether readers can lock it.
        Some(0) => {
            let found = |nth: usize| answers.get(at + nth).is_some_and(|answer| !answer.rows.is_empty());
            (found(1) && !found(2)).then_some(session)
        }
        Some(number) => Some(session.filter(|session| *session == number)),
        None => None,
    };
    let Some(ours) = held_by else { return Ok((Vec::new(), fence, looked)) };
    let ours = ours.is_some();
    Ok((
        vec![Holder {
            permit: None,
            mode: How::Exclusive,
            // What can't be read is left out, since no decision hangs on it.
            metadata: metadata.filter(|_| ours).and_then(|json| serde_json::from_str::<Metadata>(&json).ok()),
            fence: fence.filter(|_| ours),
            foreign: !ours,
            detached: false,
            held_for: held.filter(|_| ours).map(micros),
            renewed_ago: silent.filter(|_| ours).map(micros),
            expires_in: ttl.zip(silent).filter(|_| ours).map(|(ttl, silent)| micros(ttl.saturating_mul(1000) - silent)),
            holds: 1,
            broken: mark.filter(|_| ours).and_then(|json| serde_json::from_str(&json).ok()).map(|mark| Break { seen, ..mark }),
        }],
        fence,
        looked,
    ))
}

fn reader(mut fields: Fields<'_>) -> Result<Holder> {
    let (fence, held, silent, ttl) = (fields.int()?, fields.int()?, fields.int()?, fields.int()?);
    let (metadata, mark, seen) = (fields.text_or_null()?, fields.text_or_null()?, fields.int()? != 0);
    Ok(Holder {
        permit: None,
        mode: How::Shared,
        metadata: metadata.and_then(|json| serde_json::from_str::<Metadata>(&json).ok()),
        fence: Some(as_fence(fence)),
        foreign: false,
        detached: false,
        held_for: Some(micros(held)),
        renewed_ago: Some(micros(silent)),
        expires_in: Some(micros(ttl.saturating_mul(1000) - silent)),
        holds: 1,
        broken: mark.and_then(|json| serde_json::from_str(&json).ok()).map(|mark| Break { seen, ..mark }),
    })
}
