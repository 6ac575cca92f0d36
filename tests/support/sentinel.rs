//! A Redis master with replicas, and sentinels that monitor it.

use std::{net::Ipv4Addr, time::Duration};

use redis::Value;

use super::{
    proxy::Proxy,
    redis::{Options, Redis},
    tls::Certificates,
};

/// The master's name in the sentinels.
pub const NAME: &str = "prod";
/// The time after which a silent master counts as dead.
const DOWN_AFTER: Duration = Duration::from_millis(1000);
const LIMIT: Duration = Duration::from_secs(30);

/// The options of a deployment.
#[derive(Clone, Debug)]
pub struct Plan {
    pub replicas: usize,
    /// The servers' password.
    pub password: Option<&'static str>,
    /// The sentinels' password.
    pub sentinel_password: Option<&'static str>,
    /// Keeps data over a restart.
    pub durable: bool,
    /// All others know the first master by a proxy's port, so that it can be cut off from them.
    pub proxied: bool,
    /// All servers, sentinels and clients use TLS.
    pub certificates: Option<Certificates>,
    /// The address of all servers and sentinels, in addition to localhost.
    pub host: Ipv4Addr,
    /// Further lines for the servers' configuration.
    pub config: Vec<String>,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            replicas: 2,
            password: None,
            sentinel_password: None,
            durable: false,
            proxied: false,
            certificates: None,
            host: Ipv4Addr::LOCALHOST,
            config: Vec::new(),
        }
    }
}

/// The servers and three sentinels. The first server is the master at the start.
pub struct Deployment {
    pub servers: Vec<Redis>,
    pub sentinels: Vec<Redis>,
    /// The proxy in front of the first master.
    pub front: Option<Proxy>,
    host: Ipv4Addr,
}

impl Deployment {
    pub fn start() -> Self {
        Self::with(&Plan::default())
    }

    pub fn with(plan: &Plan) -> Self {
        let auth = plan
            .password
            .map(|password| format!("masterauth {password}"));
        let (certificates, host) = (&plan.certificates, plan.host);
        let tls = certificates
            .as_ref()
            .map(|_| "tls-replication yes".to_owned());
        let server = |more: Option<String>| {
            let config = auth
                .iter()
                .chain(&tls)
                .chain(&more)
                .chain(&plan.config)
                .cloned()
                .chain(super::redis::reached_at(host));
            let config = config
                .chain([format!("replica-announce-ip {host}")])
                .collect();
            let (password, certificates) = (plan.password, certificates.clone());
            Redis::with(Options {
                password,
                certificates,
                durable: plan.durable,
                config,
                ..Options::default()
            })
        };
        let mut servers = vec![server(None)];
        let front = plan.proxied.then(|| Proxy::to(servers[0].port));
        let master = front
            .as_ref()
            .map_or(known_port(&servers[0]), |proxy| proxy.port);
        for _ in 0..plan.replicas {
            servers.push(server(Some(format!("replicaof {host} {master}"))));
        }
        let sentinel = || {
            let mut config = vec![
                format!("sentinel monitor {NAME} {host} {master} 2"),
                format!(
                    "sentinel down-after-milliseconds {NAME} {}",
                    DOWN_AFTER.as_millis()
                ),
                // After a failed election the sentinels retry after twice this time.
                format!("sentinel failover-timeout {NAME} 2000"),
            ];
            config.extend(
                plan.password
                    .map(|password| format!("sentinel auth-pass {NAME} {password}")),
            );
            config.extend(
                plan.sentinel_password
                    .map(|password| format!("sentinel sentinel-pass {password}")),
            );
            config.extend(tls.clone());
            config.extend(super::redis::reached_at(host));
            config.push(format!("sentinel announce-ip {host}"));
            let (password, certificates) = (plan.sentinel_password, certificates.clone());
            Redis::with(Options {
                password,
                certificates,
                sentinel: true,
                config,
                ..Options::default()
            })
        };
        let sentinels: Vec<_> = (0..3).map(|_| sentinel()).collect();
        let deployment = Self {
            servers,
            sentinels,
            front,
            host,
        };
        for sentinel in &deployment.sentinels {
            // The sentinels discover each other faster than every 2 s.
            sentinel.command(&[
                "SENTINEL",
                "DEBUG",
                "PUBLISH-PERIOD",
                "200",
                "INFO-PERIOD",
                "500",
            ]);
        }
        deployment.settle();
        deployment
    }

    /// Waits until every running sentinel knows all others and every replica, and every replica is
    /// in sync.
    #[track_caller]
    pub fn settle(&self) {
        let (others, replicas) = (self.sentinels.len() - 1, self.servers.len() - 1);
        super::must(
            "the sentinels know one another and the replicas",
            LIMIT,
            || {
                self.sentinels
                    .iter()
                    .filter(|sentinel| sentinel.is_running())
                    .all(|sentinel| {
                        let known = |what| number(sentinel, what);
                        known("num-other-sentinels") == Some(others)
                            && known("num-slaves") == Some(replicas)
                    })
            },
        );
        super::must("the replicas are in step", LIMIT, || {
            // On a busy machine the sentinels may choose another master meanwhile.
            let text = self.servers[self.master()].text(&["INFO", "replication"]);
            text.matches("state=online").count()
                >= self
                    .servers
                    .iter()
                    .filter(|server| server.is_running())
                    .count()
                    - 1
        });
    }

    /// Returns the index of the master, according to the first running sentinel.
    pub fn master(&self) -> usize {
        self.known_master().expect("a master that is one of ours")
    }

    fn known_master(&self) -> Option<usize> {
        let sentinel = self
            .sentinels
            .iter()
            .find(|sentinel| sentinel.is_running())?;
        let told = sentinel.command(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME]);
        let (_, port): (String, u16) = redis::from_redis_value(told).ok()?;
        if self.front.as_ref().is_some_and(|proxy| proxy.port == port) {
            return Some(0);
        }
        self.servers
            .iter()
            .position(|server| known_port(server) == port)
    }

    /// Starts one more sentinel, which knows the first master by its own port, ignores others, and
    /// promotes none.
    pub fn stray(&self) -> Redis {
        let config = vec![format!(
            "sentinel monitor {NAME} 127.0.0.1 {} 99",
            self.servers[0].port
        )];
        Redis::with(Options {
            sentinel: true,
            config,
            ..Options::default()
        })
    }

    /// Waits until another server than `from` is the master, and accepts writes.
    #[track_caller]
    pub fn await_failover(&self, from: usize) -> usize {
        super::must("a failover", LIMIT, || {
            self.known_master().is_some_and(|now| {
                now != from
                    && self.servers[now]
                        .text(&["INFO", "replication"])
                        .contains("role:master")
            })
        });
        self.master()
    }

    /// Makes the sentinels promote another master while the present one runs.
    #[track_caller]
    pub fn switch(&self) -> usize {
        let from = self.master();
        self.sentinels[0].command(&["SENTINEL", "FAILOVER", NAME]);
        self.await_failover(from)
    }

    /// Returns the URL without credentials.
    pub fn url(&self) -> String {
        let sentinels: Vec<_> = self
            .sentinels
            .iter()
            .map(|sentinel| format!("{}:{}", self.host, sentinel.port))
            .collect();
        format!("redis+sentinel://{}/{NAME}", sentinels.join(","))
    }
}

/// Returns the port by which others know a server.
fn known_port(server: &Redis) -> u16 {
    if server.tls_port == 0 {
        server.port
    } else {
        server.tls_port
    }
}

fn number(sentinel: &Redis, what: &str) -> Option<usize> {
    let Value::Array(fields) = sentinel.command(&["SENTINEL", "MASTER", NAME]) else {
        return None;
    };
    let at = fields
        .iter()
        .position(|field| *field == Value::BulkString(what.into()))?;
    redis::from_redis_value(fields.get(at + 1)?.clone()).ok()
}
