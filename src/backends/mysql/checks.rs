//! What a server must be like for its locks to be relied on.

use super::{connection::Answer, failure, options::Options, reading::Fields};
use crate::lock::{Error, Kind, Notice, Result};

/// Asked once per session. MariaDB alone reads the first kind of comment, MySQL alone the second: the others' variables would
/// be errors.
pub(super) const QUESTION: &str = "SELECT VERSION(), @@version_comment, @@global.read_only, @@global.innodb_flush_log_at_trx_commit, \
    /*M! @@wsrep_on */ /*!50700 (SELECT variable_value = 'ON' FROM performance_schema.session_variables WHERE variable_name = 'wsrep_on') */";

/// What was found out about a server.
#[derive(Clone, Debug, Default)]
#[allow(clippy::struct_excessive_bools)] // a table of yes and no
pub(super) struct Checked {
    /// MariaDB's dialect differs in places.
    pub mariadb: bool,
    /// Statements of one session need not reach one session of the server.
    pub proxied: bool,
    /// It takes no changes.
    read_only: bool,
    /// It is a node of a Galera cluster.
    galera: bool,
    /// It writes each commit to its disk before it answers.
    durable: bool,
}

impl Checked {
    pub(super) fn read(answers: &[Answer]) -> Result<Self> {
        let row = answers.last().and_then(|answer| answer.rows.first()).ok_or_else(failure::unreadable)?;
        let mut fields = Fields::of(row);
        let (version, comment) = (fields.text()?, fields.text_or_null()?.unwrap_or_default());
        Ok(Self {
            mariadb: version.contains("MariaDB"),
            proxied: comment.contains("ProxySQL"),
            read_only: fields.int()? != 0,
            durable: fields.int()? == 1,
            galera: fields.int_or_null()?.is_some_and(|on| on != 0),
        })
    }

    /// Refuses servers whose locks are none.
    ///
    /// # Errors
    /// The reason.
    pub(super) fn check(&self, options: &Options) -> Result<()> {
        if self.read_only {
            // Whoever may write all the same would write to a replica.
            return Err(failure::read_only());
        }
        if self.galera && !options.single_writer {
            return Err(Error::new(Kind::Config, "the server is a node of a Galera cluster, whose nodes can grant one lock twice")
                .hint("?single_writer=yes if all clients write to the same node"));
        }
        Ok(())
    }

    /// What people should know all the same.
    pub(super) fn notices(&self) -> Vec<Notice> {
        let detail = |text: &str, hint: &str| Notice { warning: false, text: text.into(), hint: Some(hint.into()) };
        let mut notices = Vec::new();
        if !self.durable {
            notices.push(detail(
                "innodb_flush_log_at_trx_commit is not 1: a crash of the server's host may forget locks of its last second",
                "SET GLOBAL innodb_flush_log_at_trx_commit = 1",
            ));
        }
        if self.proxied {
            notices.push(detail(
                "there is a proxy before the server: who waits looks at the lock again and again instead of being woken",
                "connect to the server itself",
            ));
        }
        notices
    }
}
