//! The options of a connection, already decoded: nothing here parses a URL or opens a connection.

use crate::{
    backends::net::{
        secret::Secret,
        tls::{Tls, TlsWords},
    },
    lock::Namespace,
};

pub(super) static TLS: TlsWords = TlsWords {
    protocol: Some(b"h2"),
    ..TlsWords::of_scheme("etcd://")
};

/// The members of an etcd cluster, and how to connect to them.
#[derive(Clone, Debug)]
pub struct EtcdOptions {
    /// The members' client addresses: host names or addresses (IPv6 without brackets) and ports.
    /// Any member will do. The others are used when it doesn't answer.
    pub endpoints: Vec<(String, u16)>,
    /// TLS, for `etcds://`. Without TLS all data, including the password, crosses the network
    /// unencrypted.
    pub tls: Option<Tls>,
    /// The user; needs a password.
    pub user: Option<String>,
    /// The password, percent-decoded.
    pub password: Option<Secret>,
    /// The namespace that every key's name begins with.
    pub namespace: Namespace,
}

impl EtcdOptions {
    /// The port for etcd's clients.
    pub const PORT: u16 = 2379;

    /// Returns options for these members, unencrypted, without a user, in the namespace `dlock`.
    pub fn new(endpoints: Vec<(String, u16)>) -> Self {
        Self {
            endpoints,
            tls: None,
            user: None,
            password: None,
            namespace: Namespace::default(),
        }
    }

    /// Returns the URL without user and password.
    pub fn redacted_url(&self) -> String {
        let scheme = if self.tls.is_some() { "etcds" } else { "etcd" };
        format!(
            "{scheme}://{}",
            self.endpoints
                .iter()
                .map(authority)
                .collect::<Vec<_>>()
                .join(",")
        )
    }
}

/// Returns host and port as a URL contains them.
pub(super) fn authority((host, port): &(String, u16)) -> String {
    if host.contains(':') {
        format!("[{host}]:{port}")
    } else {
        format!("{host}:{port}")
    }
}
