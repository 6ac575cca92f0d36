//! What a connection needs to know, decoded already: no URL is parsed and nothing is opened here.

use crate::{
    backends::{Secret, Tls},
    lock::Namespace,
};

/// Where the members of an etcd cluster are and how to speak with them.
#[derive(Clone, Debug)]
pub struct Options {
    /// The members' client addresses: host names or addresses (IPv6 without brackets) and ports. Any one will do; the
    /// others are asked when it doesn't answer.
    pub endpoints: Vec<(String, u16)>,
    /// TLS, for `etcds://`. Without it everything, the password too, crosses the network in clear.
    pub tls: Option<Tls>,
    /// The user; needs a password.
    pub user: Option<String>,
    /// The password, percent-decoded.
    pub password: Option<Secret>,
    /// What every key is put under.
    pub namespace: Namespace,
}

impl Options {
    /// The port of etcd's clients.
    pub const PORT: u16 = 2379;

    /// These members in clear, without a user, in the namespace `dlock`.
    pub fn new(endpoints: Vec<(String, u16)>) -> Self {
        Self { endpoints, tls: None, user: None, password: None, namespace: Namespace::default() }
    }

    /// The URL without user and password.
    pub fn redacted_url(&self) -> String {
        let scheme = if self.tls.is_some() { "etcds" } else { "etcd" };
        format!("{scheme}://{}", self.endpoints.iter().map(authority).collect::<Vec<_>>().join(","))
    }
}

/// Host and port as they stand in a URL.
pub(super) fn authority((host, port): &(String, u16)) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}
