//! The options of a MySQL or MariaDB backend.

use crate::backends::{
    net::tls::TlsWords,
    sql::{SqlOptions, SqlServer},
};

pub(super) static TLS: TlsWords = TlsWords {
    authority: "?ssl-ca=FILE",
    identity: "?ssl-cert=FILE&ssl-key=FILE",
    unverified: Some("?ssl-mode=REQUIRED"),
    in_clear: "?ssl-mode=DISABLED",
    protocol: None,
};

/// The default port.
pub const PORT: u16 = 3306;

/// The server's address and the location of the locks.
#[derive(Clone, Debug)]
pub struct MysqlOptions {
    /// The server, the table, the namespace and the mode.
    pub sql: SqlOptions,
    /// With `mode=advisory`: `GET_LOCK` takes the key itself, without namespace, as other programs
    /// would.
    pub raw_names: bool,
    /// The user vouches that clients write to only one node of a Galera cluster.
    pub single_writer: bool,
}

impl MysqlOptions {
    /// Leases in the table `dlock` on `server`.
    pub fn new(server: SqlServer) -> Self {
        Self {
            sql: SqlOptions::new(server),
            raw_names: false,
            single_writer: false,
        }
    }
}
