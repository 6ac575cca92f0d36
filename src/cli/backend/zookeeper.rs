//! `zookeeper://` and `zookeepers://`: the servers of an ensemble, and the node that contains the
//! locks.

use super::{namespace, parameter, password_of, tls};
use crate::{
    cli::{args::Globals, layers::Layers, url::Url},
    commands::ZooKeeperOptions,
    lock::{Error, Result},
};

/// The parameters that only ZooKeeper uses.
pub(super) const PARAMETERS: &[&str] = &["auth"];

/// Creates the options. Users log in with the `digest` scheme, the only one.
pub(super) fn resolve(
    globals: &Globals,
    url: Url,
    wrong: &dyn Fn(&str) -> Error,
    layers: &Layers<'_>,
) -> Result<ZooKeeperOptions> {
    if url.hosts.is_empty() {
        return Err(wrong("it has no host")
            .hint("any servers of the ensemble: zookeeper://host1,host2,host3/path"));
    }
    let scheme = parameter(layers, "auth");
    if let Some(setting) = scheme.as_ref().filter(|setting| setting.text != "digest") {
        return Err(setting.refuse("the only way to log in is auth=digest"));
    }
    let password = password_of(globals, layers, url.user.as_deref(), url.password, wrong)?;
    let login = match (url.user, password) {
        (Some(user), _) if user.contains(':') => {
            return Err(wrong("a user of the digest scheme has no colon"));
        }
        (Some(user), Some(password)) => Some((user, password)),
        (None, Some(_)) => {
            return Err(wrong("there is a password but no user")
                .hint("the user stands before the hosts: zookeeper://USER@host1,host2"));
        }
        (None, None) if scheme.is_some() => {
            return Err(wrong("auth=digest needs a user and a password")
                .hint("zookeeper://USER@host1,host2, and DLOCK_PASSWORD"));
        }
        _ => None,
    };
    let options = ZooKeeperOptions {
        hosts: url
            .hosts
            .into_iter()
            .map(|(host, port)| (host, port.unwrap_or(ZooKeeperOptions::PORT)))
            .collect(),
        chroot: url.path.trim_end_matches('/').to_owned(),
        tls: if url.scheme == "zookeepers" {
            Some(tls(layers)?)
        } else {
            None
        },
        login,
        namespace: namespace(globals, layers)?,
    };
    options.check().map_err(|error| match error.hint {
        Some(hint) => wrong(&error.message).hint(hint),
        None => wrong(&error.message),
    })?;
    Ok(options)
}
