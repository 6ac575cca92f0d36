//! The sessions that have a lock, as the server tells.
//!
//! Read only. What the server tells this user nothing of (another user's session) stays unknown.

use super::{Postgres, options::AdvisoryKey, session_lock::no_row};
use crate::{
    backends::{
        cas::Outside,
        sql::{Client, Fields, Row, Server, SqlMode, foreign_holder},
    },
    lock::{Mode, Result},
};

/// The space of an advisory lock `l`, and its key.
const SPACE_AND_KEY: &str = "l.objsubid, (l.classid::bigint << 32) | l.objid::bigint";

/// Returns the space and the key of the advisory lock of the lock with this name, as SQL.
fn advisory_key(client: &Client<Postgres>, name: &str) -> (u8, String) {
    match client.options.advisory_key {
        None => (1, format!("hashtextextended({name}, 0)")),
        Some(AdvisoryKey::One(key)) => (1, format!("'{key}'::bigint")),
        Some(AdvisoryKey::Two(first, second)) => (
            2,
            format!(
                "(({}::bigint << 32) | {})",
                first.cast_unsigned(),
                second.cast_unsigned()
            ),
        ),
    }
}

/// Returns whether a session has the lock of the row `l` of the table, known to dlock or not, as
/// SQL. The server's locks are read once, not for each row.
pub(super) fn is_locked(client: &Client<Postgres>) -> String {
    if client.mode() == SqlMode::Row {
        return include_str!("sql/locked_rows.sql").into();
    }
    let (space, key) = advisory_key(client, "l.name");
    format!(
        "({space}, {key}) IN (SELECT {SPACE_AND_KEY} FROM pg_locks AS l WHERE l.locktype = 'advisory' AND l.granted
           AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()))"
    )
}

/// Returns the statement for the server and the sessions that have a lock, which [`HolderSession::read`] reads;
/// its only parameter is the lock's name.
pub(super) fn holders_sql(client: &Client<Postgres>, name: &str) -> String {
    let is_row = client.mode() == SqlMode::Row;
    let key = if is_row {
        (1, format!("'{}'::bigint", client.tables.row_lock(name)))
    } else {
        advisory_key(client, "$1")
    };
    let is_key = format!("({SPACE_AND_KEY}) = ({}, {})", key.0, key.1);
    let of_rows = if is_row {
        include_str!("sql/row_lock.sql")
    } else {
        ""
    };
    client.tables.fill(
        &include_str!("sql/holders.sql")
            .replace("{row_lock}", of_rows.trim_end())
            .replace("{is_key}", &is_key),
    )
}

/// A session that has the lock.
pub(in crate::backends) struct HolderSession {
    /// The server's process.
    pub pid: i64,
    pub shared: bool,
    /// When the process began to serve the session, if this user may see that.
    pub began: Option<String>,
    /// It is one of dlock's, which may not have written its hold yet.
    ours: bool,
}

impl HolderSession {
    /// Reads the answer to [`holders_sql`].
    pub(super) fn read(rows: &[Row]) -> Result<(Server, Vec<Self>)> {
        let (mut server, mut sessions) = (None, Vec::new());
        for row in rows {
            let mut fields = Fields::of(row);
            server = Some(Server {
                identity: fields.text()?,
                started_us: fields.int()?,
            });
            let Some(pid) = fields.int_or_null()? else {
                continue;
            };
            sessions.push(Self {
                pid,
                shared: fields.flag()?,
                began: fields.text_or_null()?,
                ours: fields.flag()?,
            });
        }
        Ok((server.ok_or_else(no_row)?, sessions))
    }

    /// Returns another program's hold, if the session is not one of these numbers.
    pub(super) fn outside(&self, known: &[i64]) -> Option<Outside> {
        let mode = if self.shared {
            Mode::Shared
        } else {
            Mode::Exclusive
        };
        (!self.ours && !known.contains(&self.pid)).then(|| Outside {
            holder: foreign_holder(mode),
            left: None,
            transient: false,
        })
    }
}
