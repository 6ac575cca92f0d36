//! The holders of locks that sessions keep: what the server knows of its locks, and what their holders wrote.
//!
//! Read only. What the server tells this user nothing of (another user's session) stays unknown.

use std::time::Duration;

use sqlx::{Row as _, postgres::PgRow};

use super::{
    failure,
    options::{AdvisoryKey, Mode},
    sessions::Sessions,
    statement::Value,
};
use crate::{
    backends::sql::{Plain, micros},
    lock::{Break, Fence, Holder, Key, LockState, Mode as How, Renewal, Result, Token, Waiter, Which},
};

impl Sessions {
    pub(super) fn look_sql(&self) -> String {
        if self.options.mode == Mode::Row {
            return self.tables.fill(include_str!("sql/row_holders.sql"));
        }
        let big =
            |key: &str| format!("l.objsubid = 1 AND l.classid = (({key} >> 32) & 4294967295)::oid AND l.objid = ({key} & 4294967295)::oid");
        let is_key = match self.options.advisory_key {
            None => big("hashtextextended($1, 0)"),
            Some(AdvisoryKey::One(key)) => big(&format!("'{key}'::bigint")),
            Some(AdvisoryKey::Two(first, second)) => {
                format!("l.objsubid = 2 AND l.classid = {} AND l.objid = {}", first.cast_unsigned(), second.cast_unsigned())
            }
        };
        self.tables.fill(include_str!("sql/advisory_holders.sql")).replace("{is_key}", &is_key)
    }

    pub(super) async fn look_at(&mut self, key: &Key) -> Result<LockState> {
        let (look, name) = (self.look_sql(), self.names.of(key));
        let stored_as = match self.options.mode {
            Mode::Lease | Mode::Row => name.clone(),
            Mode::Advisory => super::sharing::advisory_name(&self.options, key),
        };
        self.look(async |table| {
            let rows = table.session.query(&look, &[Value::Text(&name)]).await?;
            let waiters: Vec<Waiter> = table.queue(&name, true).await?.iter().map(Plain::waiter).collect();
            let (holders, last_fence) = holders(&rows)?;
            Ok(LockState { key: key.clone(), stored_as: stored_as.clone(), holders, waiters, last_fence, nodes: Vec::new() })
        })
        .await
    }

    pub(super) async fn look_for(&mut self, key: &Key, token: &Token) -> Result<Renewal> {
        let (look, name, hold) = (self.look_sql(), self.names.of(key), token.hold_text());
        let own = self.tables.fill("SELECT pid FROM {sessions} WHERE name = $1 AND hold = $2 AND server = {server}");
        self.aside(async |table| {
            let rows = table.session.query(&look, &[Value::Text(&name)]).await?;
            // Last: a holder that is there first and wrote this was there all the time.
            let own = table.session.query(&own, &[Value::Text(&name), Value::Text(&hold)]).await?;
            let pid = |row: &PgRow| row.try_get::<Option<i32>, _>("pid").map_err(failure::malformed);
            for row in rows {
                if let Some(pid_of_holder) = pid(&row)?
                    && own.first().map(pid).transpose()?.flatten() == Some(pid_of_holder)
                {
                    let (holders, _) = holders(&[row])?;
                    return Ok(Renewal::Kept { expires_in: holders.first().and_then(|holder| holder.expires_in) });
                }
            }
            Ok(Renewal::NotHeld)
        })
        .await
    }

    pub(super) async fn known_keys(&mut self, start: &str, which: Which) -> Result<Vec<Key>> {
        let start = self.names.starting_with(start);
        let sql = self.tables.fill(&super::starts::known("{fences}", which));
        let rows = self.look(async |table| table.session.query(&sql, &[Value::Text(&start)]).await).await?;
        let names = rows.iter().map(|row| row.try_get(0).map_err(failure::malformed)).collect::<Result<Vec<String>>>()?;
        Ok(names.iter().filter_map(|name| self.names.key(name)).collect())
    }

    pub(super) async fn look_at_all(&mut self, start: &str) -> Result<Vec<LockState>> {
        let start = self.names.starting_with(start);
        let sql = self.tables.fill("SELECT DISTINCT name FROM {sessions} WHERE left(name, length($1)) = $1 ORDER BY 1");
        let rows = self.look(async |table| table.session.query(&sql, &[Value::Text(&start)]).await).await?;
        let mut states = Vec::new();
        for row in rows {
            let name: String = row.try_get(0).map_err(failure::malformed)?;
            let Some(key) = self.names.key(&name) else { continue };
            let state = self.look_at(&key).await?;
            if !state.holders.is_empty() {
                states.push(state);
            }
        }
        Ok(states)
    }
}

/// The break of the hold that a row describes.
pub(super) fn broken(row: &PgRow) -> Result<Option<Break>, sqlx::Error> {
    let (mark, seen): (Option<String>, Option<bool>) = (row.try_get("mark")?, row.try_get("seen")?);
    let mark: Option<Break> = mark.and_then(|mark| serde_json::from_str(&mark).ok());
    Ok(mark.map(|mark| Break { seen: seen == Some(true), ..mark }))
}

/// For how long the lock rests because of holds whose server is gone.
pub(super) fn rests(rows: &[PgRow]) -> Result<Option<Duration>> {
    let read = |row: &PgRow| -> Result<Option<Duration>, sqlx::Error> {
        let is_left = row.try_get::<Option<i32>, _>("pid")? == Some(LEFT);
        let (ttl, silent): (Option<i64>, Option<i64>) = (row.try_get("ttl_ms")?, row.try_get("silent_us")?);
        Ok(ttl.zip(silent).filter(|_| is_left).map(|(ttl, silent)| micros(ttl * 1000 - silent)))
    };
    let all: Vec<_> = rows.iter().map(read).collect::<Result<_, _>>().map_err(failure::malformed)?;
    Ok(all.into_iter().flatten().max())
}

/// In the place of a process: the server that had the session is gone.
pub(super) const LEFT: i32 = 0;

/// The holders, and the last fence given out.
pub(super) fn holders(rows: &[PgRow]) -> Result<(Vec<Holder>, Option<Fence>)> {
    let read = |row: &PgRow| -> Result<Option<Holder>, sqlx::Error> {
        let Some(pid) = row.try_get::<Option<i32>, _>("pid")? else { return Ok(None) };
        let fence: Option<i64> = row.try_get("fence")?;
        let silent = row.try_get::<Option<i64>, _>("silent_us")?.filter(|_| fence.is_some());
        let ttl: Option<i64> = row.try_get("ttl_ms")?;
        let metadata: Option<String> = row.try_get("metadata")?;
        Ok(Some(Holder {
            permit: None,
            mode: if row.try_get("shared")? { How::Shared } else { How::Exclusive },
            metadata: metadata.and_then(|json| serde_json::from_str(&json).ok()),
            fence: fence.map(|fence| Fence(u64::try_from(fence).unwrap_or_default())),
            foreign: fence.is_none(),
            detached: false,
            held_for: row.try_get::<Option<i64>, _>("held_us")?.map(micros),
            renewed_ago: silent.filter(|_| pid != LEFT).map(micros),
            expires_in: ttl.zip(silent).map(|(ttl, silent)| micros(ttl * 1000 - silent)),
            holds: 1,
            broken: broken(row)?,
        }))
    };
    let mut holders = Vec::new();
    for row in rows {
        holders.extend(read(row).map_err(failure::malformed)?);
    }
    let last = rows.first().map(|row| row.try_get::<Option<i64>, _>("last_fence")).transpose().map_err(failure::malformed)?.flatten();
    Ok((holders, last.map(|fence| Fence(u64::try_from(fence).unwrap_or_default()))))
}
