//! The holders of locks that sessions keep: what the server knows of its locks, and what their holders wrote.
//!
//! Read only. What the server tells this user nothing of (another user's session) stays unknown.

use std::time::Duration;

use super::{history, options::AdvisoryKey, sessions::PostgresSessions, starts, statement::Value};
use crate::{
    backends::sql::{Fields, Plain, Row, SessionReads, SqlMode, as_fence, foreign_holder, micros},
    lock::{Fence, History, Holder, Key, LockState, Mode, Renewal, Result, Token, Waiter, Which},
};

impl PostgresSessions {
    pub(super) fn look_sql(&self) -> String {
        if self.is_row() {
            return self.client.tables.fill(include_str!("sql/row_holders.sql"));
        }
        let big =
            |key: &str| format!("l.objsubid = 1 AND l.classid = (({key} >> 32) & 4294967295)::oid AND l.objid = ({key} & 4294967295)::oid");
        let is_key = match self.client.options.advisory_key {
            None => big("hashtextextended($1, 0)"),
            Some(AdvisoryKey::One(key)) => big(&format!("'{key}'::bigint")),
            Some(AdvisoryKey::Two(first, second)) => {
                format!("l.objsubid = 2 AND l.classid = {} AND l.objid = {}", first.cast_unsigned(), second.cast_unsigned())
            }
        };
        self.client.tables.fill(include_str!("sql/advisory_holders.sql")).replace("{is_key}", &is_key)
    }
}

impl SessionReads for PostgresSessions {
    const HELD_NAMES: &'static str = "SELECT DISTINCT name FROM {sessions} WHERE left(name, length($1)) = $1 ORDER BY 1";

    fn known_names(which: Which) -> String {
        starts::known("{fences}", which)
    }

    async fn names(&mut self, sql: &str, start: &str) -> Result<Vec<String>> {
        let sql = self.client.tables.fill(sql);
        let rows = self.read(async |table| table.session.query(&sql, &[Value::Text(start)]).await).await?;
        rows.iter().map(|row| Fields::of(row).text()).collect()
    }

    async fn look(&mut self, key: &Key) -> Result<LockState> {
        let (look, name) = (self.look_sql(), self.name_of(key));
        let stored_as = match self.client.mode() {
            SqlMode::Lease | SqlMode::Row => name.clone(),
            SqlMode::Advisory => super::sharing::advisory_name(&self.client.options, key),
        };
        self.read(async |table| {
            let rows = table.session.query(&look, &[Value::Text(&name)]).await?;
            let waiters: Vec<Waiter> = table.queue(&name, true).await?.iter().map(Plain::waiter).collect();
            let (holders, last_fence) = read_holders(&rows)?;
            Ok(LockState { key: key.clone(), stored_as: stored_as.clone(), holders, waiters, last_fence, nodes: Vec::new() })
        })
        .await
    }

    async fn probe(&mut self, key: &Key, token: &Token) -> Result<Renewal> {
        let (look, name, hold) = (self.look_sql(), self.name_of(key), token.hold_text());
        let own = self.client.tables.fill("SELECT pid FROM {sessions} WHERE name = $1 AND hold = $2 AND server = {server}");
        let rows = self.query(&look, &[Value::Text(&name)]).await?;
        // Last: a holder that is there first and wrote this was there all the time.
        let own = self.query(&own, &[Value::Text(&name), Value::Text(&hold)]).await?;
        let own = own.first().map(|row| Fields::of(row).int()).transpose()?;
        let holder = read_sessions(&rows)?.into_iter().find(|session| own == Some(session.pid));
        Ok(holder.map_or(Renewal::NotHeld, |session| Renewal::Kept { expires_in: session.holder.expires_in }))
    }

    async fn history(&mut self, key: &Key) -> Result<History> {
        let (look, name) = (self.look_sql(), self.name_of(key));
        let record =
            self.query(&self.client.tables.fill("SELECT {starts} FROM {fences} AS l WHERE l.name = $1"), &[Value::Text(&name)]).await?;
        let record = record.first().map(|row| Fields::of(row).run_record()).transpose()?.unwrap_or_default();
        let (past, skips) = self
            .read(async |table| {
                // Read the written holds first, then the holders: each holder wrote its hold before.
                let maybe = history::maybe_vanished(table.session, table.tables, &name).await?;
                let (holders, _) = read_holders(&table.session.query(&look, &[Value::Text(&name)]).await?)?;
                let (mut past, skips) = history::read(table.session, table.tables, &name).await?;
                past.extend(maybe.into_iter().filter(|past| holders.iter().all(|holder| holder.fence != past.fence)));
                Ok((past, skips))
            })
            .await?;
        Ok(History { record, ..History::new(past, skips) })
    }
}

/// The [`HolderSession::pid`] of a hold whose server is gone.
pub(super) const LEFT: i64 = 0;

/// A session that has the lock.
pub(super) struct HolderSession {
    /// The server's process.
    pub pid: i64,
    /// When the process began to serve the session, if this user may see that.
    pub began: Option<String>,
    pub holder: Holder,
}

/// Reads the answer to [`PostgresSessions::look_sql`], whose only row has no process if the lock has no holder.
pub(super) fn read_sessions(rows: &[Row]) -> Result<Vec<HolderSession>> {
    let mut sessions = Vec::new();
    for row in rows {
        let mut fields = Fields::of(row);
        let Some(pid) = fields.int_or_null()? else { continue };
        let mode = if fields.flag()? { Mode::Shared } else { Mode::Exclusive };
        let (fence, metadata, held) = (fields.int_or_null()?, fields.json()?, fields.int_or_null()?);
        let silent = fields.int_or_null()?.filter(|_| fence.is_some());
        let holder = Holder {
            metadata,
            fence: fence.map(as_fence),
            foreign: fence.is_none(),
            held_for: held.map(micros),
            renewed_ago: silent.filter(|_| pid != LEFT).map(micros),
            expires_in: fields.int_or_null()?.zip(silent).map(|(ttl, silent)| micros(ttl * 1000 - silent)),
            broken: fields.mark()?,
            ..foreign_holder(mode)
        };
        sessions.push(HolderSession { pid, began: fields.text_or_null()?, holder });
    }
    Ok(sessions)
}

/// Returns the holders, and the last fence given out.
pub(super) fn read_holders(rows: &[Row]) -> Result<(Vec<Holder>, Option<Fence>)> {
    let last = rows.first().map_or("", |row| row.at(LAST_FENCE)).parse().ok().map(as_fence);
    Ok((read_sessions(rows)?.into_iter().map(|session| session.holder).collect(), last))
}

/// The column of the last fence.
const LAST_FENCE: usize = 10;

/// Returns how long the lock stays busy because of holds whose server is gone.
pub(super) fn left_for(rows: &[Row]) -> Result<Option<Duration>> {
    Ok(read_sessions(rows)?.iter().filter(|session| session.pid == LEFT).filter_map(|session| session.holder.expires_in).max())
}
