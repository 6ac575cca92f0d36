//! The holders of locks that sessions keep: what the server knows of its locks, and what their
//! holders wrote.
//!
//! Read only. What the server tells this user nothing of (another user's session) stays unknown.

use std::time::Duration;

use super::{Postgres, options::AdvisoryKey};
use crate::{
    backends::sql::{Client, Fields, Row, SqlMode, as_fence, foreign_holder, micros},
    lock::{Fence, Holder, Mode, Result},
};

/// Returns the statement for a lock's holders, which [`read_holders`] reads.
pub(super) fn look_sql(client: &Client<Postgres>) -> String {
    if client.mode() == SqlMode::Row {
        return client.tables.fill(include_str!("sql/row_holders.sql"));
    }
    let big = |key: &str| {
        format!(
            "l.objsubid = 1 AND l.classid = (({key} >> 32) & 4294967295)::oid AND l.objid = ({key} & 4294967295)::oid"
        )
    };
    let is_key = match client.options.advisory_key {
        None => big("hashtextextended($1, 0)"),
        Some(AdvisoryKey::One(key)) => big(&format!("'{key}'::bigint")),
        Some(AdvisoryKey::Two(first, second)) => {
            format!(
                "l.objsubid = 2 AND l.classid = {} AND l.objid = {}",
                first.cast_unsigned(),
                second.cast_unsigned()
            )
        }
    };
    client
        .tables
        .fill(include_str!("sql/advisory_holders.sql"))
        .replace("{is_key}", &is_key)
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

/// Reads the answer to [`look_sql`], whose only row has no process if the lock has no holder.
pub(super) fn read_sessions(rows: &[Row]) -> Result<Vec<HolderSession>> {
    let mut sessions = Vec::new();
    for row in rows {
        let mut fields = Fields::of(row);
        let Some(pid) = fields.int_or_null()? else {
            continue;
        };
        let mode = if fields.flag()? {
            Mode::Shared
        } else {
            Mode::Exclusive
        };
        let (fence, metadata, held) =
            (fields.int_or_null()?, fields.json()?, fields.int_or_null()?);
        let silent = fields.int_or_null()?.filter(|_| fence.is_some());
        let holder = Holder {
            metadata,
            fence: fence.map(as_fence),
            foreign: fence.is_none(),
            held_for: held.map(micros),
            renewed_ago: silent.filter(|_| pid != LEFT).map(micros),
            expires_in: fields
                .int_or_null()?
                .zip(silent)
                .map(|(ttl, silent)| micros(ttl * 1000 - silent)),
            broken: fields.mark()?,
            ..foreign_holder(mode)
        };
        sessions.push(HolderSession {
            pid,
            began: fields.text_or_null()?,
            holder,
        });
    }
    Ok(sessions)
}

/// Returns the holders, and the last fence given out.
pub(super) fn read_holders(rows: &[Row]) -> Result<(Vec<Holder>, Option<Fence>)> {
    let last = rows
        .first()
        .map_or("", |row| row.at(LAST_FENCE))
        .parse()
        .ok()
        .map(as_fence);
    Ok((
        read_sessions(rows)?
            .into_iter()
            .map(|session| session.holder)
            .collect(),
        last,
    ))
}

/// The column of the last fence.
const LAST_FENCE: usize = 10;

/// Returns how long the lock stays busy because of holds whose server is gone.
pub(super) fn left_for(rows: &[Row]) -> Result<Option<Duration>> {
    Ok(read_sessions(rows)?
        .iter()
        .filter(|session| session.pid == LEFT)
        .filter_map(|session| session.holder.expires_in)
        .max())
}
