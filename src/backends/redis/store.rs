//! What dlock knows of Redis, and its URLs: one server, or a deployment of several.

use std::{sync::Arc, time::Duration};

use super::{
    Address as Server, Redis, RedisOptions, RedisServer, Replicas, Sentinel, examine, sharing,
    state,
};
use crate::{
    backends::{
        kit::{Address, Configured, Of, PASSWORD, Parameter, Place, Scheme, StoreInfo, TLS},
        net::transport,
    },
    lock::{Backend, Capabilities, Check, Grants, Key, Result, Role, Sharing},
};

pub(super) const CAPABILITIES: Capabilities = Capabilities {
    shared: true,
    permits: true,
    fair: true,
    history: true,
    run_policy: true,
    breakable: true,
    ..Capabilities::usual("redis")
};

/// The ports of servers and sentinels without one in the URL.
const PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;

/// The number of the database, which may also be the URL's path.
pub(in crate::backends) const DATABASE: Parameter =
    Parameter::new("db", "NUMBER", "the number of the database");

/// The pause of waiters that nothing wakes.
pub(in crate::backends) const RETRY_DELAY: Parameter = Parameter::new(
    "retry_delay",
    "10ms to 60s",
    "the pause before a busy lock is tried again",
);

/// The checks of every server of Redis.
pub(in crate::backends) const EVERY_SERVER: &[&[Check]] = &[examine::SERVER, &[transport::CHECK]];

const OF_SENTINELS: Of = Of::Schemes(&["redis+sentinel", "rediss+sentinel"]);

/// Redis: a server, behind sentinels, a cluster.
pub const STORE: StoreInfo = StoreInfo {
    name: "Redis",
    schemes: &[
        Scheme::plain(
            "redis",
            "redis://[user@]host[:6379][/db]",
            "one Redis or Valkey",
        )
        .or(&["valkey"]),
        Scheme::tls("rediss").or(&["valkeys"]),
        Scheme::plain(
            "redis+unix",
            "redis+unix:///path.sock[?db=N]",
            "the same over a Unix socket",
        ),
        Scheme::plain(
            "redis+sentinel",
            "redis+sentinel://h1,h2,h3/MASTER",
            "Redis behind sentinels (26379)",
        ),
        Scheme::tls("rediss+sentinel"),
        Scheme::plain(
            "redis+cluster",
            "redis+cluster://h1,h2",
            "Redis Cluster, by some of its nodes",
        ),
        Scheme::tls("rediss+cluster"),
    ],
    parameters: &[
        PASSWORD,
        TLS,
        &[
            DATABASE,
            Parameter::new(
                "replicas",
                "all, or 0 to 100",
                "how many replicas must have a grant",
            ),
            Parameter::new("replica_timeout", "1ms to 1m", "how long they may take"),
            // Sentinels have a login of their own.
            Parameter::new("sentinel_user", "NAME", "the sentinels' user").only_of(OF_SENTINELS),
            Parameter::new("sentinel_password", "TEXT", "the sentinels' password")
                .only_in(Place::Table)
                .only_of(OF_SENTINELS),
            Parameter::new(
                "sentinel_password_file",
                "PATH",
                "a file that holds the sentinels' password",
            )
            .only_of(OF_SENTINELS),
            Parameter::new(
                "sentinel_password_command",
                "COMMAND",
                "a command that prints the sentinels' password",
            )
            .only_in(Place::Table)
            .only_of(OF_SENTINELS),
        ],
    ],
    server: Some("Redis"),
    client_file: None,
    capabilities: &[("Redis, Sentinel, Cluster", &CAPABILITIES)],
    layout: || state::MAJOR.to_string(),
    libraries: &[("Redis, Sentinel, Cluster", &sharing::LIBRARIES)],
    without_lease: "redis-cli DEL {name} frees it, once the program that took it is dead",
    checks: &[
        ("Redis", EVERY_SERVER),
        (
            "Redis, behind sentinels and in a cluster too",
            &[examine::WAKING],
        ),
        ("Redis behind sentinels", &[examine::SENTINEL]),
        ("Redis Cluster", &[examine::CLUSTER]),
    ],
    configure: |address| Ok(Arc::new(options(&address)?)),
};

fn options(address: &Address<'_>) -> Result<RedisOptions> {
    let mut options = match address.scheme.name {
        "redis" | "rediss" => one_server(address)?,
        "redis+unix" => with(address, unix(address)?)?,
        "redis+sentinel" | "rediss+sentinel" => with(address, sentinel(address)?)?,
        _ => with(address, cluster(address)?)?,
    };
    options.replicas = replicas(address)?;
    Ok(options)
}

/// Returns the options of the one server that the URL names.
pub(in crate::backends) fn one_server(address: &Address<'_>) -> Result<RedisOptions> {
    let [(host, port)] = &address.hosts(PORT, "")?[..] else {
        return Err(address.wrong("it names more than one server").hint(
            "one server is what redis:// stands for; several are redis+sentinel://HOST,HOST/MASTER or redis+cluster://HOST,HOST",
        ));
    };
    let server = RedisServer::Tcp {
        host: host.clone(),
        port: *port,
    };
    let mut options = with(address, server)?;
    let path = address.url.path.trim_start_matches('/');
    if !path.is_empty() {
        let db = path.parse();
        let db = db.map_err(|_| address.wrong("the database is not a number"))?;
        if address.parameter(DATABASE.name).is_some() {
            return Err(address.wrong("the database is given twice"));
        }
        options.db = db;
    }
    Ok(options)
}

/// Returns the options for `server`, without replicas.
fn with(address: &Address<'_>, server: RedisServer) -> Result<RedisOptions> {
    let db = match address.parameter(DATABASE.name) {
        Some(setting) => setting
            .text
            .parse()
            .map_err(|_| setting.refuse("the database is not a number"))?,
        None => 0,
    };
    Ok(RedisOptions {
        tls: address.tls()?,
        db,
        user: address.url.user.clone(),
        password: address.login()?,
        namespace: address.namespace.clone(),
        ..RedisOptions::new(server)
    })
}

fn unix(address: &Address<'_>) -> Result<RedisServer> {
    let url = &address.url;
    if !url.hosts.is_empty() {
        return Err(address
            .wrong("a socket has no host")
            .hint("it takes three slashes: redis+unix:///run/redis.sock?db=0"));
    }
    if !url.path.starts_with('/') || url.path.ends_with('/') {
        return Err(address.wrong("it needs the absolute path of a socket"));
    }
    Ok(RedisServer::Unix(url.path.clone().into()))
}

/// Returns the servers of `redis+sentinel://HOST,HOST/MASTER`.
fn sentinel(address: &Address<'_>) -> Result<RedisServer> {
    let sentinels = servers(address, SENTINEL_PORT)?;
    let master = address.url.path.trim_start_matches('/');
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
        return Err(address.wrong(why).hint(
            "it is what `sentinel monitor NAME …` says: redis+sentinel://HOST,HOST,HOST/NAME?db=0",
        ));
    }
    let user = address
        .parameter("sentinel_user")
        .map(|setting| setting.text);
    let password = address.secret("sentinel_password")?;
    if user.is_some() && password.is_none() && !address.offline {
        return Err(address.wrong("there is a sentinel_user but no password for it").hint(
            "give it in DLOCK_SENTINEL_PASSWORD, or as sentinel_password_file in the URL or the configuration",
        ));
    }
    Ok(RedisServer::Sentinel(Sentinel {
        sentinels,
        master: master.to_owned(),
        user,
        password,
    }))
}

/// Returns the servers of `redis+cluster://HOST,HOST`.
fn cluster(address: &Address<'_>) -> Result<RedisServer> {
    let path = address.url.path.trim_start_matches('/');
    if !path.is_empty() || address.parameter(DATABASE.name).is_some() {
        return Err(address.wrong("a cluster has no databases to choose from"));
    }
    Ok(RedisServer::Cluster(servers(address, PORT)?))
}

fn servers(address: &Address<'_>, usual_port: u16) -> Result<Vec<Server>> {
    let hosts = address.hosts(usual_port, "")?;
    Ok(hosts
        .into_iter()
        .map(|(host, port)| Server { host, port })
        .collect())
}

/// Returns how many replicas must confirm a grant or a renewal, and within which time.
fn replicas(address: &Address<'_>) -> Result<Option<Replicas>> {
    const RANGE: &str = "1ms to 1m, and less than two fifths of --backend-timeout";
    let range = (Duration::from_millis(1), Duration::from_secs(60), RANGE);
    let within = address.value("replica_timeout", |setting| {
        Ok((setting.clone(), setting.within(range)?))
    })?;
    let count = match address.parameter("replicas") {
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

/// Returns a duration parameter from 10 ms to 60 s.
pub(in crate::backends) fn short_time(
    address: &Address<'_>,
    name: &str,
    usual: Duration,
) -> Result<Duration> {
    let range = (
        Duration::from_millis(10),
        Duration::from_secs(60),
        "a duration from 10ms to 60s",
    );
    let time = address.value(name, |setting| setting.within(range))?;
    Ok(time.unwrap_or(usual))
}

impl Configured for RedisOptions {
    fn info(&self) -> &'static StoreInfo {
        &STORE
    }

    fn backend(&self) -> Box<dyn Backend> {
        Box::new(Redis::new(self.clone()))
    }

    fn sharing(&self, key: &Key) -> Result<Sharing> {
        sharing::sharing(self, key)
    }

    fn grants(&self, role: Role) -> Grants {
        examine::grants(self, role, self.user_of(role))
    }

    fn user(&self) -> Option<&str> {
        self.user.as_deref()
    }
}
