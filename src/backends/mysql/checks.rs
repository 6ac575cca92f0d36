//! The requirements on a server for reliable locks.

use std::fmt;

use super::{failure, options::MysqlOptions};
use crate::{
    backends::sql::{Fields, Row, SqlMode},
    lock::{Error, Kind, Notice, Result},
};

/// Whether the server is a node of a Galera cluster, as SQL. Only MariaDB reads the first kind of
/// comment, and only MySQL the second: the other one's variables would be errors. MariaDB's
/// `wsrep_on` can be ON where there is no cluster.
pub(super) const IN_CLUSTER: &str = "/*M! @@global.wsrep_on AND @@wsrep_provider NOT IN ('none', '') */ \
    /*!50700 (SELECT variable_value = 'ON' FROM performance_schema.global_variables WHERE variable_name = 'wsrep_on') */";

/// The server's start, in seconds, as SQL. Both parts use the statement's start, so that a clock
/// step does not change the result.
pub(super) const START: &str = "(CAST(UNIX_TIMESTAMP() AS SIGNED) - (SELECT CAST(variable_value AS SIGNED) FROM \
    /*M! information_schema.session_status */ /*!50700 performance_schema.session_status */ WHERE variable_name = 'Uptime'))";

/// Returns the statement that each session runs once. A server that was built without clusters
/// knows none of their variables.
pub(super) fn question(in_cluster: &str) -> String {
    "SELECT CONNECTION_ID(), VERSION(), @@version_comment, @@global.read_only, @@global.innodb_flush_log_at_trx_commit, \
     @@global.log_bin AND @@global.sync_binlog <> 1, UNIX_TIMESTAMP(), @dlock_start, CONCAT_WS('/', @@hostname, @@port, @@server_id), "
        .to_owned()
        + in_cluster
}

/// Whether this value of `read_only` keeps users from writing. MariaDB has words for it since 12:
/// `NO_LOCK` and `NO_LOCK_NO_ADMIN` are kinds of ON.
pub(super) fn is_read_only(value: &str) -> bool {
    value != "0" && !value.eq_ignore_ascii_case("OFF")
}

/// The oldest server versions that support all statements.
pub(super) const OLDEST: &str = "MariaDB 10.6 or MySQL 8.0 at least";

/// A server's version.
pub(super) struct ServerVersion {
    mariadb: bool,
    number: (u32, u32),
    text: String,
}

impl ServerVersion {
    /// Parses the answer of `VERSION()`.
    pub(super) fn of(text: &str) -> Self {
        let mut parts = text.split('.').map(|part| part.parse().unwrap_or(0));
        let number = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
        Self {
            mariadb: text.contains("MariaDB"),
            number,
            text: text.split('-').next().unwrap_or(text).to_owned(),
        }
    }

    /// Returns the oldest supported version, if this one is too old.
    pub(super) fn outdated(&self) -> Option<&'static str> {
        let oldest = if self.mariadb { (10, 6) } else { (8, 0) };
        (self.number < oldest).then_some(OLDEST)
    }
}

impl fmt::Display for ServerVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} {}",
            if self.mariadb { "MariaDB" } else { "MySQL" },
            self.text
        )
    }
}

/// The number of the error that a variable does not exist.
pub(super) const UNKNOWN_VARIABLE: u16 = 1193;

/// The results of the server check.
#[derive(Clone, Debug, Default)]
#[allow(clippy::struct_excessive_bools)] // a table of yes and no
pub struct ServerCheck {
    /// The number of the session that asked.
    pub session: i64,
    /// The time of the check, in seconds since 1970 by the server's clock.
    pub since: i64,
    /// The server's start, in seconds since 1970 by its clock, if it was asked for.
    pub started: Option<i64>,
    /// The host, port and number of the server.
    pub identity: String,
    /// Name and version, if it is too old.
    outdated: Option<String>,
    /// MariaDB's dialect differs in places.
    pub mariadb: bool,
    /// Statements of one session may reach different sessions of the server.
    proxied: bool,
    /// The server is read-only.
    read_only: bool,
    /// The server is a node of a Galera cluster.
    galera: bool,
    /// The server writes each commit to its log on disk before it answers.
    durable: bool,
    /// After a crash, recovery may roll a commit back that the binary log on disk lacks.
    binlog_lags: bool,
}

impl ServerCheck {
    /// Reads the answer to [`question`].
    pub(super) fn read(row: &Row) -> Result<Self> {
        let mut fields = Fields::of(row);
        let session = fields.int()?;
        let (version, comment) = (fields.text()?, fields.text_or_null()?.unwrap_or_default());
        Ok(Self {
            session,
            mariadb: version.contains("MariaDB"),
            outdated: ServerVersion::of(&version)
                .outdated()
                .map(|_| ServerVersion::of(&version).to_string()),
            proxied: comment.contains("ProxySQL"),
            read_only: is_read_only(&fields.text()?),
            durable: fields.int()? == 1,
            binlog_lags: fields.int_or_null()?.is_some_and(|lags| lags != 0),
            since: fields.int()?,
            started: fields.int_or_null()?,
            identity: fields.text()?,
            galera: fields.int_or_null()?.is_some_and(|on| on != 0),
        })
    }

    /// Whether a `GET_LOCK` of one client makes another client's session wait. Galera's versions
    /// differ in that; MariaDB supports it on none.
    pub(super) fn has_advisory_locks(&self) -> bool {
        !self.proxied && !self.galera
    }

    /// Refuses servers whose session locks would not last as long as their sessions.
    ///
    /// # Errors
    /// The reason.
    pub(super) fn check_sessions(&self, mode: SqlMode, shared: bool) -> Result<()> {
        let refuse = |text: &str, hint: &str| Err(Error::new(Kind::Config, text).hint(hint));
        if self.proxied {
            return refuse(
                "there is a proxy before the server, which may end the locks that a session has",
                "connect to the server itself; ?mode=lease works with any",
            );
        }
        if self.galera && mode == SqlMode::Advisory {
            return refuse(
                "MariaDB doesn't support GET_LOCK on the nodes of a Galera cluster",
                "?mode=lease or ?mode=row",
            );
        }
        if self.galera && shared {
            return refuse(
                "readers of a row hold a GET_LOCK too, which MariaDB doesn't support on the nodes of a Galera cluster",
                "?mode=lease",
            );
        }
        Ok(())
    }

    /// Refuses servers whose locks would not be reliable.
    ///
    /// # Errors
    /// The reason.
    pub(super) fn check(&self, options: &MysqlOptions) -> Result<()> {
        if let Some(name) = &self.outdated {
            return Err(Error::new(
                Kind::Config,
                format!("the server is {name}, which lacks what dlock's statements need"),
            )
            .hint(OLDEST));
        }
        if self.read_only {
            // A user with the right to write anyway would write to a replica.
            return Err(failure::read_only());
        }
        if self.galera && !options.single_writer {
            return Err(Error::new(
                Kind::Config,
                "the server is a node of a Galera cluster, whose nodes can grant one lock twice",
            )
            .hint("?single_writer=yes if all clients write to the same node"));
        }
        Ok(())
    }

    /// Returns notices about an accepted server.
    pub(super) fn notices(&self) -> Vec<Notice> {
        let detail = |text: &str, hint: &str| Notice {
            warning: false,
            text: text.into(),
            hint: Some(hint.into()),
        };
        let mut notices = Vec::new();
        if !self.durable {
            notices.push(detail(
                "innodb_flush_log_at_trx_commit is not 1: a crash of the server's host may forget locks of its last second",
                "SET GLOBAL innodb_flush_log_at_trx_commit = 1",
            ));
        }
        if self.binlog_lags {
            notices.push(detail(
                "sync_binlog is not 1: after a crash of the server's host, recovery takes back the commits that the binary log on disk lacks, and forgets their locks",
                "SET GLOBAL sync_binlog = 1",
            ));
        }
        if self.proxied {
            notices.push(detail(
                "there is a proxy before the server: waiters poll the lock instead of being woken",
                "connect to the server itself",
            ));
        }
        if self.galera {
            notices.push(detail(
                "the server is a node of a Galera cluster: waiters poll the lock instead of being woken",
                "its locks hold only while all clients write to this node",
            ));
        }
        notices
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn read_only_is_a_number_or_a_word() {
        for value in ["0", "OFF", "off"] {
            assert!(!is_read_only(value), "{value}");
        }
        for value in ["1", "ON", "NO_LOCK", "NO_LOCK_NO_ADMIN"] {
            assert!(is_read_only(value), "{value}");
        }
    }
}
