//! The history of locks that sessions keep, and breaking them.

use sqlx::Row as _;

use super::{
    failure, history,
    session_look::{LEFT, holders},
    sessions::Sessions,
    statement::Value,
    table::ascii,
};
use crate::lock::{Break, Error, Fence, History, Key, Kind, Note, Result};

impl Sessions {
    pub(super) async fn recall(&mut self, key: &Key) -> Result<History> {
        let (look, name) = (self.look_sql(), self.names.of(key));
        let record = self.record(&name).await?;
        let (past, skips) = self
            .look(async |table| {
                // Read the written holds first, then the holders: each holder wrote its hold before.
                let maybe = history::maybe_vanished(table.session, table.tables, &name).await?;
                let (holders, _) = holders(&table.session.query(&look, &[Value::Text(&name)]).await?)?;
                let (mut past, skips) = history::read(table.session, table.tables, &name).await?;
                past.extend(maybe.into_iter().filter(|past| holders.iter().all(|holder| holder.fence != past.fence)));
                Ok((past, skips))
            })
            .await?;
        Ok(History { record, ..History::new(past, skips) })
    }

    pub(super) async fn remember(&mut self, key: &Key, note: &Note) -> Result<()> {
        let name = self.names.of(key);
        self.aside(async |table| history::note(table.session, table.tables, &name, note).await).await
    }

    /// The process that has the lock by this fence, and since when it serves its session, if this user may see that. A holder
    /// wrote its fence down; the server knows whether it still has the lock.
    async fn process_of(&mut self, name: &str, fence: Fence) -> Result<Option<(i32, Option<String>)>> {
        let look = self.look_sql();
        self.aside(async |table| {
            for row in table.session.query(&look, &[Value::Text(name)]).await? {
                let read = || Ok((row.try_get::<Option<i32>, _>("pid")?, row.try_get("began")?, row.try_get::<Option<i64>, _>("fence")?));
                let (pid, began, of) = read().map_err(failure::malformed)?;
                if of.and_then(|of| u64::try_from(of).ok()) == Some(fence.0) {
                    return Ok(pid.map(|pid| (pid, began)));
                }
            }
            Ok(None)
        })
        .await
    }

    pub(super) async fn mark_hold(&mut self, key: &Key, fence: Fence, mark: &Break) -> Result<bool> {
        let name = self.names.of(key);
        if self.process_of(&name, fence).await?.is_none() {
            return Ok(false);
        }
        let (_, broken): (crate::lock::End, _) = mark.into();
        let mark = serde_json::to_string(mark).map_err(|error| Error::new(Kind::Internal, "the mark can't be written").source(error))?;
        let fence = i64::try_from(fence.0).unwrap_or(i64::MAX);
        self.aside(async |table| {
            let sql = table.tables.fill(include_str!("sql/mark_session.sql"));
            let (mark, broken) = (ascii(&mark), table.session.words(broken.as_deref().unwrap_or_default()).into_owned());
            let values = [Value::Text(&name), Value::Int(fence), Value::Text(&mark), Value::Text(&broken)];
            let done = !table.session.query(&sql, &values).await?.is_empty();
            Ok(done)
        })
        .await
    }

    /// Ends the holder's session. What it wrote stays, so that the next one waits a moment for what it may still run.
    pub(super) async fn evict_hold(&mut self, key: &Key, fence: Fence, mark: &Break) -> Result<bool> {
        let name = self.names.of(key);
        let Some((pid, began)) = self.process_of(&name, fence).await? else { return Ok(false) };
        // As broken, before it vanishes.
        if !self.mark_hold(key, fence, mark).await? {
            return Ok(false);
        }
        if pid == LEFT {
            let sql = self.tables.fill(include_str!("sql/break_left.sql"));
            let values = [Value::Text(&name), Value::Int(i64::try_from(fence.0).unwrap_or(i64::MAX))];
            self.aside(async |table| table.session.query(&sql, &values).await).await?;
        } else if let Some(began) = began {
            self.aside(async |table| table.session.end_process(pid, &format!("backend_start = '{began}'")).await).await?;
        }
        if self.process_of(&name, fence).await?.is_some() {
            return Err(Error::new(Kind::Denied, "the session that has the lock could not be ended")
                .hint("its user may end it, or a member of pg_signal_backend and pg_read_all_stats"));
        }
        Ok(true)
    }

    /// Notes that the holder knows of the mark on its hold. If it fails, the operator only waits for the end of the lease.
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
