//! The history of locks that sessions keep, and breaking them.

use sqlx::Row as _;

use super::{failure, history, session_look::holders, sessions::Sessions, statement::Value};
use crate::lock::{Break, Error, Fence, History, Key, Kind, Marking, Note, Result};

impl Sessions {
    pub(super) async fn recall(&mut self, key: &Key) -> Result<History> {
        let (look, name) = (self.look_sql(), self.names.of(key));
        let record = self.record(&name).await?;
        self.aside(async |table| {
            // First who wrote something, then who has it: whoever has it wrote before.
            let maybe = history::maybe_vanished(table.session, table.tables, &name).await?;
            let (holders, _) = holders(&table.session.query(&look, &[Value::Text(&name)]).await?)?;
            let (mut past, skips) = history::read(table.session, table.tables, &name).await?;
            past.extend(maybe.into_iter().filter(|past| holders.iter().all(|holder| holder.fence != past.fence)));
            Ok(History { record, ..History::new(past, skips) })
        })
        .await
    }

    pub(super) async fn remember(&mut self, key: &Key, note: &Note) -> Result<()> {
        let name = self.names.of(key);
        self.aside(async |table| history::note(table.session, table.tables, &name, note).await).await
    }

    /// Whoever has the lock wrote its fence down; that it has the lock yet is what the server knows.
    async fn process_of(&mut self, name: &str, fence: Fence) -> Result<Option<i32>> {
        let look = self.look_sql();
        self.aside(async |table| {
            for row in table.session.query(&look, &[Value::Text(name)]).await? {
                let read = || Ok((row.try_get::<Option<i32>, _>("pid")?, row.try_get::<Option<i64>, _>("fence")?));
                let (pid, of) = read().map_err(failure::malformed)?;
                if of.and_then(|of| u64::try_from(of).ok()) == Some(fence.0) {
                    return Ok(pid);
                }
            }
            Ok(None)
        })
        .await
    }

    pub(super) async fn mark_hold(&mut self, key: &Key, fence: Fence, mark: &Break) -> Result<Marking> {
        let name = self.names.of(key);
        if self.process_of(&name, fence).await?.is_none() {
            return Ok(Marking::Changed);
        }
        let (_, broken): (crate::lock::End, _) = mark.into();
        let mark = serde_json::to_string(mark).map_err(|error| Error::new(Kind::Internal, "the mark can't be written").source(error))?;
        let fence = i64::try_from(fence.0).unwrap_or(i64::MAX);
        self.aside(async |table| {
            let sql = table.tables.fill(include_str!("sql/mark_session.sql"));
            let values = [Value::Text(&name), Value::Int(fence), Value::Text(&mark), Value::Text(broken.as_deref().unwrap_or_default())];
            let done = !table.session.query(&sql, &values).await?.is_empty();
            Ok(if done { Marking::Done } else { Marking::Changed })
        })
        .await
    }

    /// Ends the holder's session. What it wrote stays, so that the next one waits a moment for what it may still run.
    pub(super) async fn evict_hold(&mut self, key: &Key, fence: Fence, mark: &Break) -> Result<Marking> {
        let name = self.names.of(key);
        let Some(pid) = self.process_of(&name, fence).await? else { return Ok(Marking::Changed) };
        // As broken, before it vanishes.
        if self.mark_hold(key, fence, mark).await? == Marking::Changed {
            return Ok(Marking::Changed);
        }
        self.aside(async |table| table.session.end_other(pid).await).await?;
        if self.process_of(&name, fence).await?.is_some() {
            return Err(Error::new(Kind::Denied, "the session that has the lock could not be ended")
                .hint("its user, or a member of pg_signal_backend, may end it"));
        }
        Ok(Marking::Done)
    }

    /// Notes that the holder knows of the mark on its hold. That it fails only leaves whoever breaks it to wait for the end.
    pub(super) async fn see(&mut self, name: &str, fence: Fence) {
        let fence = i64::try_from(fence.0).unwrap_or(i64::MAX);
        let noted: Result<()> = self
            .aside(async |table| {
                let sql = table.tables.fill("UPDATE {marks} SET seen = true WHERE name = $1 AND fence = $2");
                table.session.query(&sql, &[Value::Text(name), Value::Int(fence)]).await.map(|_| ())
            })
            .await;
        drop(noted);
    }
}
