//! What dlock knows of etcd, and its URLs.

use std::sync::Arc;

use super::{CAPABILITIES, Etcd, EtcdOptions, examine, sharing};
use crate::{
    backends::{
        kit::{Address, Configured, PASSWORD, Scheme, StoreInfo, TLS},
        queue::record::LAYOUT,
    },
    lock::{Backend, Grants, Key, Result, Role, Sharing},
};

/// etcd.
pub const STORE: StoreInfo = StoreInfo {
    name: "etcd",
    schemes: &[
        Scheme::plain("etcd", "etcd://h1,h2,h3", "etcd v3 (2379)").or(&["http"]),
        Scheme::tls("etcds").or(&["https"]),
    ],
    parameters: &[PASSWORD, TLS],
    server: Some("etcd"),
    client_file: None,
    capabilities: &[("etcd", &CAPABILITIES)],
    layout: || LAYOUT.to_owned(),
    libraries: &[("etcd", &sharing::LIBRARIES)],
    without_lease: "it lasts as long as that program's lease",
    checks: &[("etcd", &[examine::CHECKS])],
    configure: |address| Ok(Arc::new(options(&address)?)),
};

fn options(address: &Address<'_>) -> Result<EtcdOptions> {
    let url = &address.url;
    let endpoints = address.hosts(
        EtcdOptions::PORT,
        "any members of the cluster: etcd://host1,host2,host3",
    )?;
    if !url.path.trim_start_matches('/').is_empty() {
        return Err(address
            .wrong("etcd URLs have no path")
            .hint("--namespace says where the locks are"));
    }
    let tls = address.tls()?;
    let password = address.login()?;
    if url.user.is_none() && password.is_some() {
        return Err(address
            .wrong("there is a password but no user")
            .hint("the user stands before the hosts: etcd://USER@host1,host2"));
    }
    Ok(EtcdOptions {
        endpoints,
        tls,
        user: url.user.clone(),
        password,
        namespace: address.namespace.clone(),
    })
}

impl Configured for EtcdOptions {
    fn info(&self) -> &'static StoreInfo {
        &STORE
    }

    fn backend(&self) -> Box<dyn Backend> {
        Box::new(Etcd::new(self.clone()))
    }

    fn sharing(&self, key: &Key) -> Result<Sharing> {
        Ok(sharing::sharing(self, key))
    }

    fn grants(&self, role: Role) -> Grants {
        examine::grants(self, role, self.user_of(role))
    }

    fn user(&self) -> Option<&str> {
        self.user.as_deref()
    }
}
