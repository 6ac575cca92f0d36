//! What a MySQL or MariaDB backend needs to know beyond what all SQL servers have in common.

use crate::backends::sql;

/// The default port.
pub const PORT: u16 = 3306;

/// Where the server is, and how locks are kept there.
#[derive(Clone, Debug)]
pub struct Options {
    /// The server, the table and the namespace.
    pub sql: sql::Options,
    /// What a lock is.
    pub mode: Mode,
    /// With [`Mode::Advisory`]: `GET_LOCK` takes the key itself, without namespace, as other programs would.
    pub raw_names: bool,
    /// Only one node of a Galera cluster is written to: the user vouches for it.
    pub single_writer: bool,
}

impl Options {
    /// Leases in the table `dlock` on `server`.
    pub fn new(server: sql::Server) -> Self {
        Self { sql: sql::Options::new(server), mode: Mode::Lease, raw_names: false, single_writer: false }
    }

    /// The URL without user and password.
    pub fn redacted_url(&self) -> String {
        let url = match &self.sql.server {
            sql::Server::Unix { path, .. } => {
                format!("mysql:///{}?socket={}", self.sql.database.as_deref().unwrap_or_default(), path.display())
            }
            sql::Server::Tcp { .. } => self.sql.redacted_url("mysql", PORT),
        };
        let join = if url.contains('?') { '&' } else { '?' };
        match self.mode {
            Mode::Lease => url,
            Mode::Row => format!("{url}{join}mode=row"),
            Mode::Advisory => format!("{url}{join}mode=advisory"),
        }
    }
}

impl Mode {
    /// As URLs and tables have it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lease => "lease",
            Self::Row => "row",
            Self::Advisory => "advisory",
        }
    }
}

/// What a lock is in the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// A row with an end.
    Lease,
    /// A row that a transaction keeps locked.
    Row,
    /// A `GET_LOCK` that a session keeps.
    Advisory,
}
