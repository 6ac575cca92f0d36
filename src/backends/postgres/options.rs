//! The options of a PostgreSQL backend.

use crate::backends::{
    net::tls::TlsWords,
    sql::{SqlOptions, SqlServer},
};

pub(super) static TLS: TlsWords = TlsWords {
    authority: "?sslrootcert=FILE",
    identity: "?sslcert=FILE&sslkey=FILE",
    unverified: Some("?sslmode=require"),
    in_clear: "?sslmode=disable",
    protocol: None,
};

/// The default port.
pub const PORT: u16 = 5432;

/// The server's address and the location of the locks.
#[derive(Clone, Debug)]
pub struct PostgresOptions {
    /// The server, the table, the namespace and the mode.
    pub sql: SqlOptions,
    /// The advisory lock's key itself, instead of one made of the lock's name.
    pub advisory_key: Option<AdvisoryKey>,
}

impl PostgresOptions {
    /// Leases in the table `dlock` on `server`.
    pub fn new(server: SqlServer) -> Self {
        Self {
            sql: SqlOptions::new(server),
            advisory_key: None,
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
