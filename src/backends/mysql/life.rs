//! The server that has the session of a hold, and its start time: a lock ends with its server, and the holder may not notice.
//!
//! A server that is restarted or fails over frees the locks of its sessions at once. What such a hold wrote of itself tells that its session was
//! of another server, or of this one before it was started: its lease counts until it is over by this server's clock.

use super::{
    checks::ServerCheck,
    statement::{Value, literal},
};

/// When the server was started, as SQL: both go by when the statement began, so that it is the same however the clock is set since.
pub(super) const START: &str = "(CAST(UNIX_TIMESTAMP() AS SIGNED) - (SELECT CAST(variable_value AS SIGNED) FROM \
    /*M! information_schema.session_status */ /*!50700 performance_schema.session_status */ WHERE variable_name = 'Uptime'))";

/// What statements ask of the server that wrote a row of a session or of one who shares a row, as SQL.
pub(super) struct Life {
    /// The server's identity as it is written into a row.
    pub server: String,
    /// The row was written by this server since its start.
    pub lives: String,
    /// The row was not written by this server since its start, and its lease may not be over.
    pub left: String,
    /// When that lease is over: no renewal of a server that was restarted is later than its start. Of another one nothing is known: all of
    /// the lease, from when it is found.
    pub ends: String,
}

impl Life {
    /// For a session that began with [`NOTE_START`].
    pub(super) fn of(checked: &ServerCheck) -> Self {
        let identity = literal(Value::Text(&format!("{}/", checked.identity)));
        let server = format!("CONCAT({identity}, @dlock_start)");
        let lives = format!("(server <=> {server})");
        let left = format!("(NOT {lives} AND COALESCE(ends > UTC_TIMESTAMP(6), 1))");
        let begin = "TIMESTAMPADD(SECOND, @dlock_start + 1, '1970-01-01 00:00:00.000000')";
        let ends = format!(
            "TIMESTAMPADD(MICROSECOND, ttl_ms * 1000, IF(LOCATE({identity}, COALESCE(server, '')) = 1, GREATEST(renewed_at, {begin}), UTC_TIMESTAMP(6)))"
        );
        Self { server, lives, left, ends }
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
