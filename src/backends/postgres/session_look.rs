//! The requests that only read, about locks that sessions keep.

use super::{
    history,
    session_holders::{look_sql, read_holders, read_sessions},
    sessions::PostgresSessions,
    starts,
    statement::Value,
};
use crate::{
    backends::sql::{Fields, Plain, SessionReads, SqlMode},
    lock::{History, Key, LockState, Progress, Renewal, Result, Token, Waiter, Which},
};

impl SessionReads for PostgresSessions {
    const HELD_NAMES: &'static str =
        "SELECT DISTINCT name FROM {sessions} WHERE left(name, length($1)) = $1 ORDER BY 1";

    fn known_names(which: Which) -> String {
        starts::known("{fences}", which)
    }

    async fn names(&mut self, sql: &str, start: &str, progress: &Progress) -> Result<Vec<String>> {
        let sql = self.client.tables.fill(sql);
        let rows = self
            .read(async |table| {
                table
                    .session
                    .query_long(&sql, &[Value::Text(start)], progress)
                    .await
            })
            .await?;
        rows.iter().map(|row| Fields::of(row).text()).collect()
    }

    async fn look(&mut self, key: &Key) -> Result<LockState> {
        let (look, name) = (look_sql(&self.client), self.name_of(key));
        let stored_as = match self.client.mode() {
            SqlMode::Lease | SqlMode::Row => name.clone(),
            SqlMode::Advisory => super::sharing::advisory_name(&self.client.options, key),
        };
        self.read(async |table| {
            let rows = table.session.query(&look, &[Value::Text(&name)]).await?;
            let waiters: Vec<Waiter> = table
                .queue(&name, true)
                .await?
                .iter()
                .map(Plain::waiter)
                .collect();
            let (holders, last_fence) = read_holders(&rows)?;
            Ok(LockState {
                key: key.clone(),
                stored_as: stored_as.clone(),
                holders,
                waiters,
                last_fence,
                nodes: Vec::new(),
            })
        })
        .await
    }

    async fn probe(&mut self, key: &Key, token: &Token) -> Result<Renewal> {
        let (look, name, hold) = (look_sql(&self.client), self.name_of(key), token.hold_text());
        let own = self
            .client
            .tables
            .fill("SELECT pid FROM {sessions} WHERE name = $1 AND hold = $2 AND server = {server}");
        let rows = self.query(&look, &[Value::Text(&name)]).await?;
        // Last: a holder that is there first and wrote this was there all the time.
        let own = self
            .query(&own, &[Value::Text(&name), Value::Text(&hold)])
            .await?;
        let own = own.first().map(|row| Fields::of(row).int()).transpose()?;
        let holder = read_sessions(&rows)?
            .into_iter()
            .find(|session| own == Some(session.pid));
        Ok(holder.map_or(Renewal::NotHeld, |session| Renewal::Kept {
            expires_in: session.holder.expires_in,
        }))
    }

    async fn history(&mut self, key: &Key) -> Result<History> {
        let (look, name) = (look_sql(&self.client), self.name_of(key));
        let record = self
            .query(
                &self
                    .client
                    .tables
                    .fill("SELECT {starts} FROM {fences} AS l WHERE l.name = $1"),
                &[Value::Text(&name)],
            )
            .await?;
        let record = record
            .first()
            .map(|row| Fields::of(row).run_record())
            .transpose()?
            .unwrap_or_default();
        let (past, skips) = self
            .read(async |table| {
                // Read the written holds first, then the holders: each holder wrote its hold
                // before.
                let maybe = history::maybe_vanished(table.session, table.tables, &name).await?;
                let (holders, _) =
                    read_holders(&table.session.query(&look, &[Value::Text(&name)]).await?)?;
                let (mut past, skips) = history::read(table.session, table.tables, &name).await?;
                past.extend(
                    maybe
                        .into_iter()
                        .filter(|past| holders.iter().all(|holder| holder.fence != past.fence)),
                );
                Ok((past, skips))
            })
            .await?;
        Ok(History {
            record,
            ..History::new(past, skips)
        })
    }
}
