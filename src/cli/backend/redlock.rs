//! `redlock://` and `redlocks://`: several independent servers, of which a majority decides.

use std::time::Duration;

use super::{namespace, parameter, redis};
use crate::{
    cli::{args::Globals, duration, layers::Layers, url::Url},
    commands::{RedisOptions, RedlockOptions},
    lock::{Error, Result},
};

/// The parameters that only Redlock uses.
pub(super) const PARAMETERS: &[&str] = &["allow_few", "node_timeout", "retry_delay"];

/// Creates the options. Each host is an independent server; the rest of the URL applies to all of
/// them.
pub(super) fn resolve(
    globals: &Globals,
    url: &Url,
    wrong: &dyn Fn(&str) -> Error,
    layers: &Layers<'_>,
) -> Result<RedlockOptions> {
    let few = match parameter(layers, "allow_few") {
        None => false,
        Some(setting) => match setting.text.as_str() {
            "yes" | "true" => true,
            "no" | "false" => false,
            _ => return Err(setting.refuse("allow_few is yes or no")),
        },
    };
    let count = url.hosts.len();
    if count == 0 {
        return Err(wrong("it has no host"));
    }
    if !few && (count < 3 || count.is_multiple_of(2)) {
        let enough = if count < 3 { 1 } else { count - 1 };
        return Err(wrong(&format!(
            "{count} nodes survive no more failures than {enough} do"
        ))
        .hint("name 3 or 5 independent servers; ?allow_few=yes takes what there is"));
    }
    let scheme = if url.scheme == "redlocks" {
        "rediss"
    } else {
        "redis"
    };
    let mut nodes: Vec<RedisOptions> = Vec::with_capacity(count);
    for host in &url.hosts {
        let (user, password) = (url.user.clone(), url.password.clone());
        let one = Url {
            scheme: scheme.into(),
            hosts: vec![host.clone()],
            path: url.path.clone(),
            query: Vec::new(),
            user,
            password,
        };
        let node = redis(globals, one, wrong, layers)?;
        if nodes.iter().any(|known| known.server == node.server) {
            return Err(wrong("it names a server twice")
                .hint("a server that votes twice makes a majority of less than one"));
        }
        nodes.push(node);
    }
    Ok(RedlockOptions {
        node_timeout: duration_parameter(layers, "node_timeout", RedlockOptions::NODE_TIMEOUT)?,
        retry_delay: duration_parameter(layers, "retry_delay", RedlockOptions::RETRY_DELAY)?,
        namespace: namespace(globals, layers)?,
        nodes,
    })
}

/// Returns a duration parameter from 10 ms to 60 s.
pub(super) fn duration_parameter(
    layers: &Layers<'_>,
    name: &str,
    default: Duration,
) -> Result<Duration> {
    match parameter(layers, name) {
        None => Ok(default),
        Some(setting) => duration::parse(&setting.text)
            .ok()
            .filter(|length| (Duration::from_millis(10)..=Duration::from_secs(60)).contains(length))
            .ok_or_else(|| setting.refuse(format!("{name} is a duration from 10ms to 60s"))),
    }
}
