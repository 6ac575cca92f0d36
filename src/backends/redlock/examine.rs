//! Checks of the nodes' settings: of each node, and of all nodes together.

use ::redis::Value;
use async_trait::async_trait;

use super::{Redlock, RedlockOptions, options::name};
use crate::{
    backends::{
        net::transport,
        redis::{
            self,
            examine::{Needs, ServerReport, ServerRole, merge, questions, server_time},
        },
    },
    lock::{Admin, Check, Finding, Grants, Notice, Result, Role, ServerTime, check},
};

/// Returns the checks that follow those of every Redis server.
pub const CHECKS: &[Check] = &[
    check("nodes", "how many nodes answer, and how many may fail"),
    check(
        "independence",
        "whether the nodes are servers of their own: not one twice, none a replica, not all on one host",
    ),
];

impl Redlock {
    async fn look_at_nodes(&mut self) -> Result<Vec<Finding>> {
        let answers = self.read(|_| Some(questions())).await?;
        let mut each = Vec::new();
        let mut told = Vec::new();
        let mut silent = Vec::new();
        for (n, answer) in answers.iter().enumerate() {
            let node = self.nodes.name(n).to_owned();
            match answer {
                Ok(replies) => {
                    let server = ServerReport::read(replies);
                    each.push((
                        node,
                        server.findings(&self.options.nodes[n], ServerRole::Vote),
                    ));
                    told.push((n, server));
                }
                Err(error) => silent.push(format!("{node} ({})", error.message)),
            }
        }
        let mut findings = merge(each);
        findings.push(self.quorum(&silent));
        findings.extend(self.independence(&told));
        findings.push(self.tls());
        Ok(findings)
    }

    fn quorum(&self, silent: &[String]) -> Finding {
        const ID: &str = "nodes";
        let (all, needed) = (self.nodes.len(), self.nodes.majority());
        let text = format!(
            "{} of {all} nodes answer, {needed} are needed",
            all - silent.len()
        );
        if !silent.is_empty() {
            let risk = "a lock is held by fewer nodes than it could be, and each that fails or forgets counts";
            return Finding::warn(ID, format!("{text}; not {}", silent.join(", ")), risk)
                .fix("bring it back");
        }
        if all < 3 {
            return Finding::warn(ID, text, "none may fail").fix("three nodes, better five");
        }
        Finding::ok(ID, text)
    }

    fn independence(&self, told: &[(usize, ServerReport)]) -> Vec<Finding> {
        const ID: &str = "independence";
        if let Some((n, _)) = told
            .iter()
            .find(|(_, server)| server.field("run_id").is_none())
        {
            let why = "the user may not ask for INFO on every node";
            return vec![
                Finding::unchecked(ID, "whether the nodes are independent", why)
                    .fix(self.options.nodes[*n].allow("+info")),
            ];
        }
        let facts = told.iter().map(|(n, server)| NodeInfo {
            n: *n,
            field: Box::new(|name| server.field(name).map(str::to_owned)),
        });
        let kin = self.related_nodes(facts.collect());
        if !kin.is_empty() {
            let risk = "one failure counts twice, and two holders may each have a majority";
            let found = |notice: Notice| Finding {
                risk: Some(risk.into()),
                severity: crate::lock::Severity::Unsafe,
                ..Finding::noticed(ID, notice)
            };
            return kin.into_iter().map(found).collect();
        }
        let host = |node: &redis::RedisOptions| {
            name(node)
                .rsplit_once(':')
                .map_or_else(String::new, |(host, _)| host.to_owned())
        };
        let mut hosts: Vec<String> = self.options.nodes.iter().map(host).collect();
        hosts.sort();
        hosts.dedup();
        let (nodes, different) = (self.nodes.len(), hosts.len());
        if different < nodes {
            let text = format!(
                "{nodes} nodes on {different} {}",
                if different == 1 { "host" } else { "hosts" }
            );
            return vec![
                Finding::warn(ID, text, "a host that fails takes several votes with it")
                    .fix("a host for each node"),
            ];
        }
        vec![Finding::ok(
            ID,
            format!("{nodes} servers on {different} hosts, none a replica"),
        )]
    }

    fn tls(&self) -> Finding {
        let open: Vec<_> = self
            .options
            .nodes
            .iter()
            .filter(|node| node.tls.is_none())
            .collect();
        let hosts: Vec<&str> = open
            .iter()
            .filter_map(|node| match &node.server {
                redis::RedisServer::Tcp { host, .. } => Some(host.as_str()),
                _ => None,
            })
            .collect();
        let has_password = open.iter().any(|node| node.password.is_some());
        transport::finding(
            open.is_empty(),
            hosts,
            has_password,
            "a URL that begins with redlocks, and tls-port on the servers",
        )
    }

    /// Returns notices about nodes that are one server or replicas: their votes are not
    /// independent.
    pub(super) fn related_nodes(&self, told: Vec<NodeInfo<'_>>) -> Vec<Notice> {
        let mut notices = Vec::new();
        let mut notice = |text: String, hint: &str| {
            notices.push(Notice {
                warning: true,
                text,
                hint: Some(hint.into()),
            });
        };
        let mut servers: Vec<(String, usize)> = Vec::new();
        for NodeInfo { n, field } in told {
            let name = self.nodes.name(n);
            if let Some(id) = field("run_id") {
                if let Some((_, other)) = servers.iter().find(|(known, _)| *known == id) {
                    notice(
                        format!(
                            "{name} and {} are one server, which counts once",
                            self.nodes.name(*other)
                        ),
                        "name each server once",
                    );
                }
                servers.push((id, n));
            }
            if field("role").is_some_and(|role| role != "master") {
                let master = field("master_host").zip(field("master_port"));
                let of = master
                    .map(|(host, port)| format!(" of {host}:{port}"))
                    .unwrap_or_default();
                notice(
                    format!("{name} is a replica{of}: the nodes must not copy each other"),
                    "REPLICAOF NO ONE makes it a master of its own",
                );
            }
        }
        notices
    }
}

/// A node's `INFO`.
pub(super) struct NodeInfo<'a> {
    pub n: usize,
    /// Returns the value of an `INFO` field.
    pub field: Box<Lookup<'a>>,
}

type Lookup<'a> = dyn Fn(&str) -> Option<String> + 'a;

#[async_trait(?Send)]
impl Admin for Redlock {
    async fn examine(&mut self) -> Result<Vec<Finding>> {
        self.look_at_nodes().await
    }

    async fn clocks(&mut self) -> Result<Vec<ServerTime>> {
        let answers = self
            .read(|_| {
                let mut time = ::redis::pipe();
                time.cmd("TIME");
                Some(time)
            })
            .await?;
        let time = |(n, answer): (usize, &Result<Vec<Value>>)| {
            server_time(
                self.nodes.name(n).to_owned(),
                answer.as_ref().ok()?.first()?,
            )
        };
        Ok(answers.iter().enumerate().filter_map(time).collect())
    }
}

/// Returns the least rights for `role`.
pub(super) fn grants(options: &RedlockOptions, role: Role, user: &str) -> Grants {
    let needs = Needs {
        writes: &[
            "set",
            "del",
            "incr",
            "hset",
            "hdel",
            "hmget",
            "pexpire",
            "pexpireat",
            "zadd",
            "zrem",
            "zrank",
            "zscore",
            "zcount",
            "zrangebyscore",
            "lpush",
            "ltrim",
        ],
        // inspect checks whether two nodes are one server, or replicas.
        reads: &[
            "info", "evalsha", "eval", "time", "type", "getrange", "hlen", "pttl", "hget",
            "hgetall", "hvals", "zrange", "lrange", "get", "scan",
        ],
        publishes: false,
        select: options.nodes.iter().any(|node| node.db != 0),
        ..Needs::scripts_and_lists(&options.namespace)
    };
    let mut granted = needs.grants(role, user);
    granted.notes.insert(0, "on every node".into());
    granted
}
