//! The URLs of Redis deployments with several servers, and the parameters about replicas.

use std::time::Duration;

use super::{one_source, parameter, password_command, read_secret};
use crate::{
    cli::{
        args::Globals,
        layers::{Layers, from_env},
        url::Url,
    },
    commands::{Address, RedisServer, Replicas, Secret, Sentinel},
    lock::{Error, Result},
};

/// Returns the servers of `redis+sentinel://HOST,HOST/MASTER`.
pub(super) fn sentinel(
    globals: &Globals,
    url: &Url,
    wrong: &dyn Fn(&str) -> Error,
    layers: &Layers<'_>,
) -> Result<RedisServer> {
    let sentinels = addresses(url, 26379, wrong)?;
    let master = url.path.trim_start_matches('/');
    let named = !master.is_empty()
        && master
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b".-_".contains(&byte));
    if !named {
        let why = if master.is_empty() {
            "it doesn't name the master"
        } else {
            "its path is no name of a master"
        };
        return Err(wrong(why).hint(
            "it is what `sentinel monitor NAME …` says: redis+sentinel://HOST,HOST,HOST/NAME?db=0",
        ));
    }
    let user = parameter(layers, "sentinel_user").map(|setting| setting.text);
    let password = password(globals, layers)?;
    if user.is_some() && password.is_none() && !layers.offline {
        return Err(wrong("there is a sentinel_user but no password for it")
            .hint("give it in DLOCK_SENTINEL_PASSWORD, or as sentinel_password_file in the URL or the configuration"));
    }
    Ok(RedisServer::Sentinel(Sentinel {
        sentinels,
        master: master.to_owned(),
        user,
        password,
    }))
}

/// Returns the servers of `redis+cluster://HOST,HOST`.
pub(super) fn cluster(
    url: &Url,
    wrong: &dyn Fn(&str) -> Error,
    layers: &Layers<'_>,
) -> Result<RedisServer> {
    if !url.path.trim_start_matches('/').is_empty() || parameter(layers, "db").is_some() {
        return Err(wrong("a cluster has no databases to choose from"));
    }
    Ok(RedisServer::Cluster(addresses(url, 6379, wrong)?))
}

fn addresses(url: &Url, port: u16, wrong: &dyn Fn(&str) -> Error) -> Result<Vec<Address>> {
    if url.hosts.is_empty() {
        return Err(wrong("it has no host"));
    }
    Ok(url
        .hosts
        .iter()
        .map(|(host, given)| Address {
            host: host.clone(),
            port: given.unwrap_or(port),
        })
        .collect())
}

/// Returns the sentinels' password from the first source that has one: environment, configuration
/// file, URL.
fn password(globals: &Globals, layers: &Layers<'_>) -> Result<Option<Secret>> {
    if layers.offline {
        return Ok(None);
    }
    if let Some(setting) = from_env(layers.env, "sentinel_password")? {
        return Ok(Some(Secret::new(setting.text)));
    }
    if let Some(setting) = from_env(layers.env, "sentinel_password_file")? {
        return read_secret(&setting).map(Some);
    }
    let command = parameter(layers, "sentinel_password_command");
    if let Some(setting) = layers
        .table
        .and_then(|table| table.get("sentinel_password"))
    {
        one_source("sentinel_password", command.as_ref())?;
        return Ok(Some(Secret::new(&*setting.text)));
    }
    match (parameter(layers, "sentinel_password_file"), command) {
        (Some(file), command) => one_source("sentinel_password_file", command.as_ref())
            .and_then(|()| read_secret(&file).map(Some)),
        (None, Some(command)) => password_command(globals, layers, &command).map(Some),
        (None, None) => Ok(None),
    }
}

/// Returns how many replicas must confirm a grant or a renewal, and within which time.
pub(super) fn replicas(layers: &Layers<'_>) -> Result<Option<Replicas>> {
    const RANGE: &str = "1ms to 1m, and less than two fifths of --backend-timeout";
    let within = match parameter(layers, "replica_timeout") {
        Some(setting) => {
            let within = setting.duration(RANGE)?;
            if within < Duration::from_millis(1) || within > Duration::from_secs(60) {
                return Err(setting.refuse("it is out of range").hint(RANGE));
            }
            Some((setting, within))
        }
        None => None,
    };
    let count = match parameter(layers, "replicas") {
        Some(setting) if setting.text == "all" => Replicas::ALL,
        Some(setting) => match setting.text.parse() {
            Ok(count @ 0..=100_u32) => count,
            _ => {
                return Err(setting
                    .refuse("it is no number of replicas")
                    .hint("all, or 0 (none) to 100"));
            }
        },
        None => 0,
    };
    match (count, within) {
        (0, Some((setting, _))) => Err(setting
            .refuse("replica_timeout needs replicas=all or replicas=N")
            .hint("replicas=all waits for all replicas")),
        (0, None) => Ok(None),
        (count, within) => Ok(Some(Replicas {
            count,
            within: within.map_or(Replicas::WITHIN, |(_, within)| within),
        })),
    }
}
