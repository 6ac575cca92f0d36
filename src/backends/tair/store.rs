//! What dlock knows of Tair, a server with compare-and-swap commands, and its URLs.

use std::sync::Arc;

use super::{CAPABILITIES, Tair, TairMode, TairOptions, examine, sharing, value};
use crate::{
    backends::{
        kit::{Address, Configured, PASSWORD, Parameter, Scheme, StoreInfo, TLS},
        redis::{self, sharing::OF_STRINGS, store::DATABASE},
    },
    lock::{Backend, Grants, Key, Result, Role, Sharing},
};

/// Tair, and Redis with the module TairString.
pub const STORE: StoreInfo = StoreInfo {
    name: "Tair",
    schemes: &[
        Scheme::plain("tair", "tair://host[:6379]", "Tair, Redis with TairString"),
        Scheme::tls("tairs"),
    ],
    parameters: &[
        PASSWORD,
        TLS,
        &[
            DATABASE,
            Parameter::new("mode", "plain, version", "how a lock is stored"),
            redis::store::RETRY_DELAY,
        ],
    ],
    server: Some("Redis"),
    client_file: None,
    capabilities: &[("Tair", &CAPABILITIES)],
    layout: || value::MAJOR.to_string(),
    libraries: &[("Tair", &OF_STRINGS)],
    without_lease: "redis-cli DEL {name} frees it, once the program that took it is dead",
    checks: &[("Tair", redis::store::EVERY_SERVER)],
    configure: |address| Ok(Arc::new(options(&address)?)),
};

fn options(address: &Address<'_>) -> Result<TairOptions> {
    let modes = [("plain", TairMode::Plain), ("version", TairMode::Version)];
    let mode = address.value("mode", |setting| setting.choice(&modes))?;
    Ok(TairOptions {
        server: redis::store::one_server(address)?,
        mode: mode.unwrap_or(TairMode::Plain),
        retry_delay: redis::store::short_time(address, "retry_delay", TairOptions::RETRY_DELAY)?,
        namespace: address.namespace.clone(),
    })
}

impl Configured for TairOptions {
    fn info(&self) -> &'static StoreInfo {
        &STORE
    }

    fn backend(&self) -> Box<dyn Backend> {
        Box::new(Tair::new(self.clone()))
    }

    fn sharing(&self, key: &Key) -> Result<Sharing> {
        sharing::sharing(self, key)
    }

    fn grants(&self, role: Role) -> Grants {
        examine::grants(self, role, self.user_of(role))
    }

    fn user(&self) -> Option<&str> {
        self.server.user.as_deref()
    }
}
