//! What dlock knows of ZooKeeper, and its URLs: the servers of an ensemble, and the node that
//! contains the locks.

use std::sync::Arc;

use super::{CAPABILITIES, ZooKeeper, ZooKeeperOptions, examine, sharing};
use crate::{
    backends::{
        kit::{Address, Configured, PASSWORD, Parameter, Scheme, StoreInfo, TLS},
        queue::record::LAYOUT,
    },
    lock::{Backend, Grants, Key, Result, Role, Sharing},
};

/// ZooKeeper.
pub const STORE: StoreInfo = StoreInfo {
    name: "ZooKeeper",
    schemes: &[
        Scheme::plain(
            "zookeeper",
            "zookeeper://h1,h2,h3[/chroot]",
            "ZooKeeper (2181)",
        )
        .or(&["zk"]),
        Scheme::tls("zookeepers"),
    ],
    parameters: &[
        PASSWORD,
        TLS,
        &[Parameter::new(
            "auth",
            "digest",
            "how the user logs in; there is one way",
        )],
    ],
    server: Some("ZooKeeper"),
    client_file: None,
    capabilities: &[("ZooKeeper", &CAPABILITIES)],
    layout: || LAYOUT.to_owned(),
    libraries: &[("ZooKeeper", &sharing::LIBRARIES)],
    without_lease: "it lasts as long as that program's session",
    checks: &[("ZooKeeper", &[examine::CHECKS])],
    configure: |address| Ok(Arc::new(options(&address)?)),
};

/// Creates the options. Users log in with the `digest` scheme, the only one.
fn options(address: &Address<'_>) -> Result<ZooKeeperOptions> {
    let url = &address.url;
    let hosts = address.hosts(
        ZooKeeperOptions::PORT,
        "any servers of the ensemble: zookeeper://host1,host2,host3/path",
    )?;
    let auth = address.parameter("auth");
    if let Some(setting) = auth.as_ref().filter(|setting| setting.text != "digest") {
        return Err(setting.refuse("the only way to log in is auth=digest"));
    }
    let login = match (&url.user, address.login()?) {
        (Some(user), _) if user.contains(':') => {
            return Err(address.wrong("a user of the digest scheme has no colon"));
        }
        (Some(user), Some(password)) => Some((user.clone(), password)),
        (None, Some(_)) => {
            return Err(address
                .wrong("there is a password but no user")
                .hint("the user stands before the hosts: zookeeper://USER@host1,host2"));
        }
        (None, None) if auth.is_some() => {
            return Err(address
                .wrong("auth=digest needs a user and a password")
                .hint("zookeeper://USER@host1,host2, and DLOCK_PASSWORD"));
        }
        _ => None,
    };
    let options = ZooKeeperOptions {
        hosts,
        chroot: url.path.trim_end_matches('/').to_owned(),
        tls: address.tls()?,
        login,
        namespace: address.namespace.clone(),
    };
    options.check().map_err(|error| match error.hint {
        Some(hint) => address.wrong(&error.message).hint(hint),
        None => address.wrong(&error.message),
    })?;
    Ok(options)
}

impl Configured for ZooKeeperOptions {
    fn info(&self) -> &'static StoreInfo {
        &STORE
    }

    fn backend(&self) -> Box<dyn Backend> {
        Box::new(ZooKeeper::new(self.clone()))
    }

    fn sharing(&self, key: &Key) -> Result<Sharing> {
        Ok(sharing::sharing(self, key))
    }

    fn grants(&self, role: Role) -> Grants {
        examine::grants(self, role, self.user_of(role))
    }

    fn user(&self) -> Option<&str> {
        self.login.as_ref().map(|(user, _)| user.as_str())
    }
}
