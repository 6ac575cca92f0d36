//! The server that has the session of a hold, and its start time: a session lock ends with its
//! server, and the holder may not notice.
//!
//! A server that is restarted or fails over frees the locks of its sessions at once. The hold's
//! record shows that its session belonged to another server, or to this one before its start: the
//! hold's lease counts until it is over by this server's clock.

use super::{
    checks::ServerCheck,
    statement::{Value, literal},
};

/// The server's start time, as SQL. Both parts use the statement's start, so that a clock step does
/// not change the result.
pub(super) const START: &str = "(CAST(UNIX_TIMESTAMP() AS SIGNED) - (SELECT CAST(variable_value AS SIGNED) FROM \
    /*M! information_schema.session_status */ /*!50700 performance_schema.session_status */ WHERE variable_name = 'Uptime'))";

/// Conditions on the server that wrote the record of a session or of a reader, as SQL.
pub(super) struct Life {
    /// The server's identity as in a record.
    pub server: String,
    /// Whether this server wrote the record since its start.
    pub lives: String,
    /// Whether this server did not write the record since its start, and the lease may not be over.
    pub left: String,
    /// The end of that lease. On a server that was restarted, no renewal is later than its start.
    /// On another server no renewal is known: the whole lease counts, from when its record is
    /// found. A clock that was set back makes no lease longer.
    pub ends: String,
}

impl Life {
    /// Returns the conditions for a session that noted the server's [`START`].
    pub(super) fn of(checked: &ServerCheck) -> Self {
        let identity = literal(Value::Text(&format!("{}/", checked.identity)));
        // The text has a collation of its own; the variable would give it the connection's, which
        // may not fit the column's.
        let server = format!("CONCAT({identity}, @dlock_start)");
        let lives = format!("(server <=> {server})");
        let left = format!("(NOT {lives} AND COALESCE(ends > UTC_TIMESTAMP(6), 1))");
        let begin = "TIMESTAMPADD(SECOND, @dlock_start + 1, '1970-01-01 00:00:00.000000')";
        let ends = format!(
            "TIMESTAMPADD(MICROSECOND, ttl_ms * 1000, LEAST(UTC_TIMESTAMP(6), IF(LOCATE({identity}, COALESCE(server, '')) = 1, GREATEST(renewed_at, {begin}), UTC_TIMESTAMP(6))))"
        );
        Self {
            server,
            lives,
            left,
            ends,
        }
    }

    /// Returns the fields as values of a statement.
    pub(super) fn values(&self) -> [(&str, Value<'_>); 4] {
        [
            ("server", Value::Sql(&self.server)),
            ("lives", Value::Sql(&self.lives)),
            ("left", Value::Sql(&self.left)),
            ("ends", Value::Sql(&self.ends)),
        ]
    }
}
