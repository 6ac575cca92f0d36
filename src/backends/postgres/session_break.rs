//! Breaking a lock that a session has.

use super::{
    session_holders::{HolderSession, LEFT, look_sql, read_sessions},
    sessions::PostgresSessions,
    statement::{Value, json},
};
use crate::{
    backends::sql::fence_int,
    lock::{Break, Error, Fence, Kind, Result},
};

impl PostgresSessions {
    /// Returns the session that has the lock by this fence. A holder wrote its fence down; the
    /// server knows whether it still has the lock.
    async fn session_of(&mut self, name: &str, fence: Fence) -> Result<Option<HolderSession>> {
        let rows = self
            .query(&look_sql(&self.client), &[Value::Text(name)])
            .await?;
        Ok(read_sessions(&rows)?
            .into_iter()
            .find(|session| session.holder.fence == Some(fence)))
    }

    pub(super) async fn mark_hold(
        &mut self,
        name: &str,
        fence: Fence,
        mark: &Break,
    ) -> Result<bool> {
        if self.session_of(name, fence).await?.is_none() {
            return Ok(false);
        }
        let mark = json(Some(mark))?;
        self.aside(async |table| {
            let sql = table.tables.fill(include_str!("sql/mark_session.sql"));
            let values = [
                Value::Text(name),
                Value::Int(fence_int(fence)),
                Value::Maybe(mark.as_deref()),
            ];
            Ok(!table.session.query(&sql, &values).await?.is_empty())
        })
        .await
    }

    /// Ends the holder's session. Its records stay, so that the next holder waits a moment for what
    /// the command may still run.
    pub(super) async fn evict_hold(
        &mut self,
        name: &str,
        fence: Fence,
        mark: &Break,
    ) -> Result<bool> {
        let Some(HolderSession { pid, began, .. }) = self.session_of(name, fence).await? else {
            return Ok(false);
        };
        // As broken, before it vanishes.
        if !self.mark_hold(name, fence, mark).await? {
            return Ok(false);
        }
        if pid == LEFT {
            let sql = self.client.tables.fill(include_str!("sql/break_left.sql"));
            self.query(&sql, &[Value::Text(name), Value::Int(fence_int(fence))])
                .await?;
        } else if let Some(began) = began {
            self.aside(async |table| {
                table
                    .session
                    .end_process(pid, &format!("backend_start = '{began}'"))
                    .await
            })
            .await?;
        }
        if self.session_of(name, fence).await?.is_some() {
            return Err(Error::new(
                Kind::Denied,
                "the session that has the lock could not be ended",
            )
            .hint("its user may end it, or a member of pg_signal_backend and pg_read_all_stats"));
        }
        Ok(true)
    }

    /// Notes that the holder knows of the mark on its hold. If it fails, the operator only waits
    /// for the end of the lease.
    pub(super) async fn note_seen(&mut self, name: &str, fence: Fence) {
        let sql = self
            .client
            .tables
            .fill("UPDATE {marks} SET seen = true WHERE name = $1 AND fence = $2");
        let _: Result<_> = self
            .query(&sql, &[Value::Text(name), Value::Int(fence_int(fence))])
            .await;
    }
}
