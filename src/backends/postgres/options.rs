//! What a PostgreSQL backend needs to know beyond what all SQL servers have in common.

use crate::backends::sql;

/// The default port.
pub const PORT: u16 = 5432;

/// Where the server is, and how locks are kept there.
#[derive(Clone, Debug)]
pub struct Options {
    /// The server, the table and the namespace.
    pub sql: sql::Options,
    /// What a lock is.
    pub mode: Mode,
    /// The advisory lock's key itself, instead of one made of the lock's name.
    pub advisory_key: Option<AdvisoryKey>,
}

impl Options {
    /// Leases in the table `dlock` on `server`.
    pub fn new(server: sql::Server) -> Self {
        Self { sql: sql::Options::new(server), mode: Mode::Lease, advisory_key: None }
    }

    /// The URL without user and password.
    pub fn redacted_url(&self) -> String {
        let url = self.sql.redacted_url("postgres", PORT);
        let join = if url.contains('?') { '&' } else { '?' };
        match self.mode {
            Mode::Lease => url,
            Mode::Row => format!("{url}{join}mode=row"),
            Mode::Advisory => format!("{url}{join}mode=advisory"),
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
    /// An advisory lock that a session keeps.
    Advisory,
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

/// A key in one of the two spaces of advisory locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdvisoryKey {
    /// `pg_advisory_lock(bigint)`
    One(i64),
    /// `pg_advisory_lock(int, int)`
    Two(i32, i32),
}

impl std::str::FromStr for AdvisoryKey {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once(',') {
            Some((first, second)) => Ok(Self::Two(first.trim().parse()?, second.trim().parse()?)),
            None => Ok(Self::One(text.trim().parse()?)),
        }
    }
}
