//! The decoded options of a connection to a SQL server: this module parses no URL and opens
//! nothing.

use std::path::PathBuf;

use crate::{
    backends::{
        kit::{Address, Parameter},
        net::{secret::Secret, tls::Tls, transport},
    },
    lock::{Error, Kind, Namespace, Result},
};

/// The parameters of every SQL server.
pub(in crate::backends) const PARAMETERS: &[Parameter] = &[
    Parameter::new("mode", "lease, row, advisory", "how a lock is kept"),
    Parameter::new(
        "shedlock",
        "yes, no",
        "whether a ShedLock may share the table",
    ),
    Parameter::new("table", "NAME", "the table of the locks"),
];

/// Returns the mode of a server's locks.
pub(in crate::backends) fn sql_mode(address: &Address<'_>) -> Result<SqlMode> {
    let choices = [SqlMode::Lease, SqlMode::Row, SqlMode::Advisory].map(|mode| (mode.name(), mode));
    let mode = address.value("mode", |setting| setting.choice(&choices))?;
    Ok(mode.unwrap_or(SqlMode::Lease))
}

/// Returns the layout of a server's data.
pub(in crate::backends) fn layout() -> String {
    format!("{}.{}", super::LAYOUT / 100, super::LAYOUT % 100)
}

/// The server's address, its protocol options, and the location of the locks.
#[derive(Clone, Debug)]
pub struct SqlOptions {
    /// The address at which the server listens.
    pub server: SqlServer,
    /// Whether to encrypt, and how to verify the server.
    pub tls: TlsMode,
    /// The certificates for TLS.
    pub files: Tls,
    /// The user; `None` for the driver's default.
    pub user: Option<String>,
    /// The password, percent-decoded.
    pub password: Option<Secret>,
    /// The database; `None` for the user's default.
    pub database: Option<String>,
    /// The table of the locks.
    pub table: String,
    /// The namespace of every key.
    pub namespace: Namespace,
    /// How locks are kept.
    pub mode: SqlMode,
    /// The configuration vouches that no ShedLock shares the table.
    pub no_shedlock: bool,
}

impl SqlOptions {
    /// The table's default name.
    pub const TABLE: &str = "dlock";

    /// Returns the options for the table `dlock` on `server` with the namespace `dlock`, with the
    /// default TLS mode.
    pub fn new(server: SqlServer) -> Self {
        let tls = TlsMode::default_for(&server);
        Self {
            server,
            tls,
            files: Tls::default(),
            user: None,
            password: None,
            database: None,
            table: Self::TABLE.into(),
            namespace: Namespace::default(),
            mode: SqlMode::Lease,
            no_shedlock: false,
        }
    }

    /// Refuses to remove rows that a ShedLock node may remember: the node creates no row twice, and
    /// its job would not run again.
    ///
    /// # Errors
    /// Unless the table is dlock's own, or the configuration vouches that it is.
    pub fn check_collect(&self) -> Result<()> {
        if self.no_shedlock || self.table == Self::TABLE && !self.namespace.as_str().is_empty() {
            return Ok(());
        }
        Err(Error::new(
            Kind::Unsupported,
            "ShedLock nodes may share this table, and remember which rows exist: without them their jobs never run again",
        )
        .hint("?shedlock=no says that no ShedLock shares it"))
    }

    /// Returns the error that [`SqlOptions::check_collect`] can't foresee.
    pub fn shares_table() -> Error {
        Error::new(Kind::Unsupported, "other programs than dlock keep locks in this table, and some remember which rows exist")
            .hint("remove the rows by hand while those programs are stopped")
    }

    /// Returns the URL without user and password. `socket` is the URL's parameter for a Unix
    /// socket.
    pub fn redacted_url(&self, scheme: &str, usual_port: u16, socket: &str) -> String {
        let database = self
            .database
            .as_deref()
            .map(|name| format!("/{name}"))
            .unwrap_or_default();
        let url = match &self.server {
            SqlServer::Tcp { host, port } => {
                let host = if host.contains(':') {
                    format!("[{host}]")
                } else {
                    host.clone()
                };
                let port = if *port == usual_port {
                    String::new()
                } else {
                    format!(":{port}")
                };
                format!("{scheme}://{host}{port}{database}")
            }
            SqlServer::Unix { path, .. } => {
                format!("{scheme}://{database}?{socket}={}", path.display())
            }
        };
        let join = if url.contains('?') { '&' } else { '?' };
        if self.mode == SqlMode::Lease {
            url
        } else {
            format!("{url}{join}mode={}", self.mode.name())
        }
    }
}

/// How a SQL server keeps a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SqlMode {
    /// A row with an end.
    Lease,
    /// A row that a transaction keeps locked.
    Row,
    /// An advisory lock of a session: `GET_LOCK`, `pg_advisory_lock`.
    Advisory,
}

impl SqlMode {
    /// Returns the name in URLs and tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lease => "lease",
            Self::Row => "row",
            Self::Advisory => "advisory",
        }
    }

    /// Returns the value of the column `mode`: none for leases, as in a row of ShedLock.
    pub const fn column(self) -> Option<&'static str> {
        match self {
            Self::Lease => None,
            mode => Some(mode.name()),
        }
    }
}

/// The address at which a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SqlServer {
    /// A host name or address (IPv6 without brackets) and a port.
    Tcp {
        /// The host's name, which the certificate must contain.
        host: String,
        /// The port.
        port: u16,
    },
    /// A socket in the file system: PostgreSQL's directory, MySQL's file.
    Unix {
        /// The path.
        path: PathBuf,
        /// The port, which is in the name of PostgreSQL's socket.
        port: u16,
    },
}

impl SqlServer {
    /// Whether only this host's root could read the traffic or impersonate the server.
    pub fn is_local(&self) -> bool {
        match self {
            Self::Unix { .. } => true,
            Self::Tcp { host, .. } => transport::is_here(host),
        }
    }
}

/// How a connection is encrypted, as libpq and MySQL's clients name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsMode {
    /// No TLS.
    Disable,
    /// TLS if the server offers it, with any certificate.
    Prefer,
    /// TLS with any certificate.
    Require,
    /// TLS with a certificate of a known authority.
    VerifyCa,
    /// TLS with a certificate of a known authority for this host.
    VerifyFull,
}

impl TlsMode {
    /// Returns verified TLS for a server on the network, and no TLS for one on this host.
    pub fn default_for(server: &SqlServer) -> Self {
        if server.is_local() {
            Self::Disable
        } else {
            Self::VerifyFull
        }
    }
}
