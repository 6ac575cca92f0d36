//! One server's settings, read and judged.

use std::time::Duration;

use redis::{Pipeline, Value};

use crate::{
    backends::redis::{
        options::{Address, RedisOptions, RedisServer, Replicas},
        reply,
    },
    lock::{Check, Finding, ServerTime, Severity, check},
};

/// The checks of every server.
pub const SERVER: &[Check] = &[
    check("version", "the server's version"),
    check(
        "eviction",
        "maxmemory-policy: whether the server may throw a lock away to make room",
    ),
    check("memory", "how much of maxmemory is used"),
    check(
        "persistence",
        "appendonly and appendfsync: what a restart forgets",
    ),
    check(
        "replication",
        "whether it is a master, its replicas, and how many of them must have a grant",
    ),
    check(
        "clients",
        "how many connections are used of maxclients; each waiter takes one",
    ),
];

/// The rights that a release needs to wake a waiter.
pub const WAKING: &[Check] = &[check(
    "rights",
    "ACL rights to the fence counter, the wake-up list and Redisson's channels",
)];

/// Returns the commands whose replies [`ServerReport::read`] reads.
pub(in crate::backends) fn questions() -> Pipeline {
    let mut pipeline = redis::pipe();
    pipeline.cmd("INFO");
    for name in ["appendfsync", "min-replicas-to-write", "maxclients"] {
        pipeline.cmd("CONFIG").arg("GET").arg(name);
    }
    pipeline
}

/// A server's role for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::backends) enum ServerRole {
    /// The server stores the lock.
    Store,
    /// The server has one vote of several.
    Vote,
    /// Like `Store`, without waiting for replicas.
    Tair,
}

/// A server's own report.
pub(in crate::backends) struct ServerReport {
    /// The reply to `INFO`, or why there is none.
    info: Result<String, String>,
    appendfsync: Option<String>,
    min_replicas: Option<String>,
    max_clients: Option<String>,
    /// Why there is no reply to `CONFIG GET`.
    no_config: String,
}

impl ServerReport {
    pub(in crate::backends) fn read(replies: &[Value]) -> Self {
        let config = |at: usize| {
            let pairs = replies.get(at).and_then(reply::pairs)?;
            pairs.into_iter().next().map(|(_, value)| value)
        };
        Self {
            info: replies
                .first()
                .and_then(reply::text)
                .ok_or_else(|| why_not(replies.first(), "INFO")),
            appendfsync: config(1),
            min_replicas: config(2),
            max_clients: config(3),
            no_config: why_not(replies.get(1), "CONFIG GET"),
        }
    }

    /// Returns a field of `INFO`.
    pub(in crate::backends) fn field(&self, name: &str) -> Option<&str> {
        field(self.info.as_ref().ok()?, name)
    }

    fn number(&self, name: &str) -> Option<u64> {
        self.field(name)?.parse().ok()
    }

    /// Returns the findings about locks on this server.
    pub(in crate::backends) fn findings(
        &self,
        options: &RedisOptions,
        part: ServerRole,
    ) -> Vec<Finding> {
        if let Err(why) = &self.info {
            let unchecked = |check: &Check| {
                let what = check.about.split([':', ';']).next().unwrap_or(check.about);
                Finding::unchecked(check.id, what, why).fix(options.allow("+info +config|get"))
            };
            return SERVER.iter().map(unchecked).collect();
        }
        vec![
            self.version(),
            self.eviction(),
            self.memory(),
            self.persistence(options),
            self.replication(options, part),
            self.clients(),
        ]
    }

    fn version(&self) -> Finding {
        const ID: &str = "version";
        let (name, version) = match (self.field("valkey_version"), self.field("redis_version")) {
            (Some(version), _) => ("Valkey", version),
            (None, Some(version)) => ("Redis", version),
            (None, None) => return Finding::unchecked(ID, "the version", "INFO doesn't tell it"),
        };
        let mut parts = version.split('.').map(|part| part.parse().unwrap_or(0));
        let number: (u32, u32) = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
        let text = format!("{name} {version}");
        if number < (6, 2) {
            return Finding::not_safe(ID, text, "it lacks commands that dlock needs")
                .fix("Redis 6.2 or Valkey 7.2 at least");
        }
        Finding::ok(ID, text)
    }

    fn eviction(&self) -> Finding {
        const ID: &str = "eviction";
        let Some(policy) = self.field("maxmemory_policy") else {
            return Finding::unchecked(ID, "maxmemory-policy", "INFO doesn't tell it");
        };
        let text = format!("maxmemory-policy {policy}");
        if policy == "noeviction" {
            return Finding::ok(ID, text);
        }
        let limit = if self.number("maxmemory") == Some(0) {
            ", as soon as there is a maxmemory"
        } else {
            ""
        };
        Finding::not_safe(ID, text, format!("may evict a lock under a job{limit}"))
            .fix("CONFIG SET maxmemory-policy noeviction")
    }

    fn memory(&self) -> Finding {
        const ID: &str = "memory";
        match (self.number("used_memory"), self.number("maxmemory")) {
            (Some(used), Some(0)) => Finding::ok(
                ID,
                format!("{} used, no limit (maxmemory 0)", megabytes(used)),
            ),
            (Some(used), Some(limit)) => {
                let text = format!(
                    "{} used of {} (maxmemory)",
                    megabytes(used),
                    megabytes(limit)
                );
                if used > limit / 10 * 9 {
                    return Finding::warn(ID, text, "once it is full, no lock is granted")
                        .fix("raise maxmemory, or remove what fills it");
                }
                Finding::ok(ID, text)
            }
            _ => Finding::unchecked(ID, "maxmemory", "INFO doesn't tell it"),
        }
    }

    fn persistence(&self, options: &RedisOptions) -> Finding {
        const ID: &str = "persistence";
        const ALWAYS: &str =
            "CONFIG SET appendonly yes; CONFIG SET appendfsync always; both in redis.conf too";
        let failing = [
            ("aof_last_write_status", "the append-only file"),
            ("rdb_last_bgsave_status", "the last snapshot"),
        ]
        .into_iter()
        .find(|(name, _)| self.field(name).is_some_and(|status| status != "ok"));
        if let Some((_, what)) = failing {
            return Finding::warn(
                ID,
                format!("{what} could not be written"),
                "the server may refuse to grant, and forgets locks in a restart",
            )
            .fix("see the server's log, and make room on its disk");
        }
        match (self.field("aof_enabled"), self.appendfsync.as_deref()) {
            (Some("0"), _) => {
                Finding::warn(ID, "appendonly no", "a restart forgets locks, so that two may run, and may repeat fences").fix(ALWAYS)
            }
            (Some("1"), Some("always")) => Finding::ok(ID, "appendonly yes, appendfsync always"),
            (Some("1"), Some(other)) => Finding::warn(
                ID,
                format!("appendfsync {other}"),
                "a crash of the server's host forgets the locks of its last moments, so that two may run",
            )
            .fix(ALWAYS),
            (Some("1"), None) => {
                Finding::unchecked(ID, "appendfsync (appendonly is yes)", &self.no_config).fix(options.allow("+config|get"))
            }
            _ => Finding::unchecked(ID, "appendonly", "INFO doesn't tell it"),
        }
    }

    fn replication(&self, options: &RedisOptions, part: ServerRole) -> Finding {
        const ID: &str = "replication";
        let fails_over = !matches!(
            options.server,
            RedisServer::Tcp { .. } | RedisServer::Unix(_)
        );
        if let Some(role) = self.field("role").filter(|role| *role != "master") {
            let of = self
                .field("master_host")
                .zip(self.field("master_port"))
                .map(|(host, port)| format!(" of {host}:{port}"));
            return Finding::not_safe(
                ID,
                format!(
                    "the server is a {}{}",
                    role.replace("slave", "replica"),
                    of.unwrap_or_default()
                ),
                "it takes no locks",
            )
            .fix("name the master in the URL");
        }
        let Some(count) = self.number("connected_slaves") else {
            return Finding::unchecked(ID, "replicas", "INFO doesn't tell them");
        };
        let has = match count {
            0 => "a master without replicas".to_owned(),
            1 => "a master with 1 replica".to_owned(),
            count => format!("a master with {count} replicas"),
        };
        match options.replicas.map(|replicas| replicas.count) {
            Some(Replicas::ALL) if count == 0 => Finding::not_safe(
                ID,
                format!("{has}, and replicas=all"),
                "no grant and no renewal counts",
            )
            .fix("bring the replicas back"),
            Some(Replicas::ALL) => Finding::ok(ID, format!("{has}; all must have each grant")),
            Some(wanted) if count < u64::from(wanted) => {
                let text = format!("{has}, and replicas={wanted}");
                Finding::not_safe(ID, text, "no grant and no renewal counts")
                    .fix("bring the replicas back, or ask for fewer")
            }
            Some(wanted) if count > u64::from(wanted) => {
                let text = format!("{has}, and replicas={wanted}");
                let risk = "a master that is cut off with a replica goes on renewing while another replica is promoted: two may run";
                Finding::not_safe(ID, text, risk).fix("replicas=all in the URL")
            }
            Some(wanted) => Finding::ok(ID, format!("{has}; {wanted} must have each grant")),
            None if count == 0 && fails_over => Finding::warn(ID, has, "no replica can take over")
                .fix("give it a replica: REPLICAOF on another server"),
            None if count == 0 => Finding::ok(ID, has),
            None => {
                let least = match self.min_replicas.as_deref() {
                    None | Some("0") => "",
                    Some(_) => " (min-replicas-to-write narrows the gap, and doesn't close it)",
                };
                let risk = format!(
                    "a failover forgets a lock that they had not heard of, so that two may run{least}"
                );
                Finding::warn(ID, format!("{has}, and grants wait for none"), risk).fix(match part {
                    ServerRole::Store => "replicas=all in the URL; CONFIG SET min-replicas-to-write 1",
                    ServerRole::Vote => "REPLICAOF NO ONE on them: the other nodes are what makes up for one that fails",
                    ServerRole::Tair => "no setting closes that gap: have the resource check DLOCK_FENCE",
                })
            }
        }
    }

    fn clients(&self) -> Finding {
        const ID: &str = "clients";
        let most = self
            .number("maxclients")
            .or_else(|| self.max_clients.as_deref()?.parse().ok());
        match (self.number("connected_clients"), most) {
            (Some(used), Some(most)) => {
                let text = format!("{used} of {most} connections are used; each waiter takes one");
                if used > most / 10 * 8 {
                    return Finding::warn(
                        ID,
                        text,
                        "new connections are then refused; holders keep theirs",
                    )
                    .fix("raise maxclients");
                }
                Finding::ok(ID, text)
            }
            _ => Finding::unchecked(
                ID,
                "maxclients",
                &format!("INFO doesn't tell it, and {}", self.no_config),
            ),
        }
    }
}

/// Returns why a command got no answer.
fn why_not(reply: Option<&Value>, question: &str) -> String {
    match reply {
        Some(Value::ServerError(error)) if error.code() == "NOPERM" => {
            format!("the user may not ask for {question}")
        }
        Some(Value::ServerError(_)) => format!("the server doesn't take {question}"),
        _ => format!("{question} doesn't tell it"),
    }
}

/// Returns a field of `INFO`.
pub(in crate::backends) fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        .map(str::trim)
}

/// Reads the reply to `TIME`, to the microsecond.
pub(in crate::backends) fn time(server: String, reply: &Value) -> Option<ServerTime> {
    let [seconds, micros] = reply::items(reply)? else {
        return None;
    };
    let of = |value: &Value| reply::int(value).and_then(|number| u64::try_from(number).ok());
    Some(ServerTime {
        server,
        since_epoch: Duration::from_secs(of(seconds)?) + Duration::from_micros(of(micros)?),
    })
}

/// Returns the replicas in a master's reply to `ROLE`: `[master, offset, [[host, port, offset]…]]`.
pub(in crate::backends) fn replicas(role: &Value) -> Vec<Address> {
    let Some([_, _, replicas]) = reply::items(role) else {
        return Vec::new();
    };
    let address = |replica: &Value| {
        let [host, port, ..] = reply::items(replica)? else {
            return None;
        };
        Some(Address {
            host: reply::text(host)?,
            port: reply::int(port)?.try_into().ok()?,
        })
    };
    reply::items(replicas)
        .unwrap_or_default()
        .iter()
        .filter_map(address)
        .collect()
}

/// Judges the replies about a free lock's keys: the lock, the fence counter, the wake-up list and
/// the channels.
pub(super) fn rights(replies: &[Value]) -> Finding {
    const ID: &str = "rights";
    const WHAT: [&str; 5] = [
        "the lock's keys",
        "the fence counter (redisson_lock_token:*)",
        "the wake-up list",
        "Redisson's channel",
        "its read-write channel",
    ];
    let refused =
        |value: &Value| matches!(value, Value::ServerError(error) if error.code() == "NOPERM");
    let missing: Vec<usize> = replies
        .iter()
        .enumerate()
        .filter_map(|(at, reply)| refused(reply).then_some(at))
        .collect();
    let Some(first) = missing.first() else {
        return Finding::ok(
            ID,
            "the user may use the lock's keys, the fence counter and Redisson's channels",
        );
    };
    let text = format!(
        "the user has no right to {}",
        missing
            .iter()
            .filter_map(|at| WHAT.get(*at))
            .copied()
            .collect::<Vec<_>>()
            .join(", ")
    );
    let found = match first {
        0 | 1 => Finding::not_safe(ID, text, "no lock can be taken"),
        2 => Finding::warn(ID, text, "no waiter is woken"),
        _ => Finding::warn(
            ID,
            text,
            "Redisson's clients that wait for a lock of dlock are not woken",
        ),
    };
    found.fix("dlock doctor --print-grants run")
}

/// Merges the findings of several servers: per check, the worst and its servers. A server without a
/// name is the only one.
pub(in crate::backends) fn merge(each: Vec<(String, Vec<Finding>)>) -> Vec<Finding> {
    let count = each.len();
    let mut merged: Vec<(Finding, Vec<String>)> = Vec::new();
    for (server, findings) in each {
        for finding in findings {
            match merged.iter_mut().find(|(known, _)| *known == finding) {
                Some((_, servers)) => servers.push(server.clone()),
                None => merged.push((finding, vec![server.clone()])),
            }
        }
    }
    let worst = |check: &str| {
        merged
            .iter()
            .filter(|(known, _)| known.check == check)
            .map(|(known, _)| known.severity)
            .max()
    };
    let mut shown: Vec<Finding> = Vec::new();
    for (finding, servers) in &merged {
        // One finding per check is enough if all is well; otherwise each of the worst is shown.
        let is_first = !shown.iter().any(|known| known.check == finding.check);
        let is_worst = worst(finding.check) == Some(finding.severity);
        if !is_worst || (finding.severity == Severity::Ok && !is_first) {
            continue;
        }
        shown.push(match (count, servers.len()) {
            (1, _) => finding.clone(),
            (count, here) if count == here => finding.clone().at(&format!("all {count}")),
            _ => finding.clone().at(&servers.join(", ")),
        });
    }
    shown
}

fn megabytes(bytes: u64) -> String {
    match bytes {
        ..1_048_576 => format!("{} KB", bytes / 1024),
        _ => format!("{} MB", bytes / 1_048_576),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backends::redis::options::RedisServer;

    fn nothing() -> ServerReport {
        ServerReport::read(&[Value::Nil, Value::Nil, Value::Nil, Value::Nil])
    }

    fn server(info: &str) -> ServerReport {
        ServerReport {
            info: Ok(info.replace(' ', "\r\n")),
            ..nothing()
        }
    }

    fn options(replicas: Option<u32>) -> RedisOptions {
        let replicas = replicas.map(|count| Replicas {
            count,
            within: Replicas::WITHIN,
        });
        RedisOptions {
            replicas,
            ..RedisOptions::new(RedisServer::Tcp {
                host: "h".into(),
                port: 1,
            })
        }
    }

    #[test]
    fn versions_policies_and_roles_are_distinguished() {
        assert_eq!(
            server("redis_version:7.0.15").version().severity,
            Severity::Ok
        );
        assert_eq!(
            server("redis_version:6.0.9").version().severity,
            Severity::Unsafe
        );
        assert_eq!(
            server("redis_version:7.2.4 valkey_version:8.1.0")
                .version()
                .text,
            "Valkey 8.1.0"
        );
        for policy in [
            "allkeys-lru",
            "volatile-lru",
            "volatile-ttl",
            "allkeys-random",
        ] {
            assert_eq!(
                server(&format!("maxmemory_policy:{policy} maxmemory:0"))
                    .eviction()
                    .severity,
                Severity::Unsafe,
                "{policy}"
            );
        }
        assert_eq!(
            server("maxmemory_policy:noeviction").eviction().severity,
            Severity::Ok
        );
        assert_eq!(
            server("role:slave master_host:r1 master_port:7")
                .replication(&options(None), ServerRole::Store)
                .text,
            "the server is a replica of r1:7"
        );
        let with = |count, wanted| {
            server(&format!("role:master connected_slaves:{count}"))
                .replication(&options(wanted), ServerRole::Store)
                .severity
        };
        assert_eq!(
            (with(0, None), with(1, None)),
            (Severity::Ok, Severity::Warn)
        );
        assert_eq!(
            (with(1, Some(1)), with(1, Some(2))),
            (Severity::Ok, Severity::Unsafe)
        );
        assert_eq!(
            (with(2, Some(2)), with(2, Some(1))),
            (Severity::Ok, Severity::Unsafe),
            "one cut off with its master, one promoted"
        );
        assert_eq!(
            (with(2, Some(Replicas::ALL)), with(0, Some(Replicas::ALL))),
            (Severity::Ok, Severity::Unsafe)
        );
    }

    #[test]
    fn missing_information_is_reported_as_unchecked() {
        let empty = server("");
        for findings in [
            nothing().findings(&options(None), ServerRole::Store),
            empty.findings(&options(None), ServerRole::Store),
        ] {
            assert_eq!(findings.len(), SERVER.len());
            assert!(
                findings
                    .iter()
                    .all(|f| f.severity == Severity::Warn && f.text.starts_with("not checked: ")),
                "{findings:?}"
            );
        }
        assert!(
            server("aof_enabled:1 aof_last_write_status:ok")
                .persistence(&options(None))
                .text
                .starts_with("not checked: appendfsync")
        );
    }

    #[test]
    fn the_worst_of_several_servers_is_shown() {
        let (fine, bad) = (Finding::ok("a", "fine"), Finding::warn("a", "bad", "r"));
        let at = |name: &str, finding: &Finding| (name.to_owned(), vec![finding.clone()]);
        assert_eq!(merge(vec![at("", &bad)]), std::slice::from_ref(&bad));
        assert_eq!(
            merge(vec![at("x", &fine), at("y", &bad), at("z", &bad)])[0].text,
            "y, z: bad"
        );
        assert_eq!(
            merge(vec![at("x", &fine), at("y", &fine)])[0].text,
            "all 2: fine"
        );
    }
}
