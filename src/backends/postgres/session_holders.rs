//! The sessions that have a lock, as the server tells.
//!
//! Read only. What the server tells this user nothing of (another user's session) stays unknown.

use super::{Postgres, names::Tables, options::AdvisoryKey, session_lock::no_row};
use crate::{
    backends::{
        cas::Outside,
        sql::{Client, Fields, Row, Server, SqlMode, foreign_holder},
    },
    lock::{Mode, Result},
};

/// Returns the statement for the server and the sessions that have a lock, which [`HolderSession::read`] reads;
/// its only parameter is the lock's name.
pub(super) fn holders_sql(client: &Client<Postgres>, name: &str) -> String {
    let big = |key: &str| {
        format!(
            "l.objsubid = 1 AND l.classid = (({key} >> 32) & 4294967295)::oid AND l.objid = ({key} & 4294967295)::oid"
        )
    };
    let is_row = client.mode() == SqlMode::Row;
    let row_lock = |tables: &Tables| format!("'{}'::bigint", tables.row_lock(name));
    let is_key = match client.options.advisory_key {
        None if is_row => big(&row_lock(&client.tables)),
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
