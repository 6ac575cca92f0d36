//! What dlock knows of Redlock, and its URLs: several independent servers, of which a majority
//! decides.

use std::sync::Arc;

use super::{CAPABILITIES, Redlock, RedlockOptions, examine, sharing, view};
use crate::{
    backends::{
        kit::{Address, Configured, PASSWORD, Parameter, Scheme, StoreInfo, TLS},
        redis::{self, RedisOptions, sharing::OF_STRINGS, store::DATABASE},
    },
    lock::{Backend, Grants, Key, Result, Role, Sharing},
    settings::url::Url,
};

/// Redlock.
pub const STORE: StoreInfo = StoreInfo {
    name: "Redlock",
    schemes: &[
        Scheme::plain(
            "redlock",
            "redlock://h1,h2,h3[,h4,h5]",
            "independent Redis servers",
        ),
        Scheme::tls("redlocks"),
    ],
    parameters: &[
        PASSWORD,
        TLS,
        &[
            DATABASE,
            Parameter::new("allow_few", "yes, no", "take one or two servers"),
            Parameter::new(
                "node_timeout",
                "10ms to 60s",
                "how long one server may take to answer",
            ),
            redis::store::RETRY_DELAY,
        ],
    ],
    server: Some("Redis"),
    client_file: None,
    capabilities: &[("Redlock", &CAPABILITIES)],
    layout: || view::MAJOR.to_string(),
    libraries: &[("Redlock", &OF_STRINGS)],
    without_lease: "redis-cli DEL {name} on each server frees it, once the program that took it is dead",
    checks: &[
        ("Redlock", redis::store::EVERY_SERVER),
        ("Redlock", &[examine::CHECKS]),
    ],
    configure: |address| Ok(Arc::new(options(&address)?)),
};

/// Creates the options. Each host is an independent server; the rest of the URL applies to all of
/// them.
fn options(address: &Address<'_>) -> Result<RedlockOptions> {
    let few = address.yes("allow_few")? == Some(true);
    let count = address.hosts(0, "")?.len();
    if !few && (count < 3 || count.is_multiple_of(2)) {
        let enough = if count < 3 { 1 } else { count - 1 };
        return Err(address
            .wrong(&format!(
                "{count} nodes survive no more failures than {enough} do"
            ))
            .hint("name 3 or 5 independent servers; ?allow_few=yes takes what there is"));
    }
    let mut nodes: Vec<RedisOptions> = Vec::with_capacity(count);
    for host in &address.url.hosts {
        let url = Url {
            hosts: vec![host.clone()],
            ..address.url.clone()
        };
        let node = redis::store::one_server(&Address {
            url,
            ..address.clone()
        })?;
        if nodes.iter().any(|known| known.server == node.server) {
            return Err(address
                .wrong("it names a server twice")
                .hint("a server that votes twice makes a majority of less than one"));
        }
        nodes.push(node);
    }
    let time = |name, usual| redis::store::short_time(address, name, usual);
    Ok(RedlockOptions {
        node_timeout: time("node_timeout", RedlockOptions::NODE_TIMEOUT)?,
        retry_delay: time("retry_delay", RedlockOptions::RETRY_DELAY)?,
        namespace: address.namespace.clone(),
        nodes,
    })
}

impl Configured for RedlockOptions {
    fn info(&self) -> &'static StoreInfo {
        &STORE
    }

    fn backend(&self) -> Box<dyn Backend> {
        Box::new(Redlock::new(self.clone()))
    }

    fn sharing(&self, key: &Key) -> Result<Sharing> {
        sharing::sharing(self, key)
    }

    fn grants(&self, role: Role) -> Grants {
        examine::grants(self, role, self.user_of(role))
    }

    fn user(&self) -> Option<&str> {
        self.nodes.first()?.user.as_deref()
    }
}
