//! Checks of the server's settings.

use async_trait::async_trait;

use super::{TairMode, TairStore};
use crate::{
    backends::{
        net::transport,
        redis::{
            self,
            examine::{Needs, SERVER, ServerReport, ServerRole, grants, questions, server_time},
        },
    },
    lock::{Admin, Check, Finding, Grants, Result, Role, ServerTime},
};

impl TairStore {
    fn tls(&self) -> Finding {
        let server = &self.options.server;
        let hosts = match &server.server {
            redis::RedisServer::Tcp { host, .. } => Some(host.as_str()),
            _ => None,
        };
        transport::finding(
            server.tls.is_some(),
            hosts,
            server.password.is_some(),
            "a URL that begins with tairs, and TLS on the server",
        )
    }
}

#[async_trait(?Send)]
impl Admin for TairStore {
    fn checks(&self) -> Vec<Check> {
        [SERVER, &[transport::CHECK]].concat()
    }

    async fn examine(&mut self) -> Result<Vec<Finding>> {
        let replies = self.look(&questions()).await?;
        let mut findings =
            ServerReport::read(&replies).findings(&self.options.server, ServerRole::Tair);
        findings.push(self.tls());
        Ok(findings)
    }

    async fn clocks(&mut self) -> Result<Vec<ServerTime>> {
        let mut time = ::redis::pipe();
        time.cmd("TIME");
        let replies = self.look(&time).await?;
        Ok(replies
            .first()
            .and_then(|time| server_time("the server".into(), time))
            .into_iter()
            .collect())
    }

    fn grants(&self, role: Role) -> Grants {
        let plain = self.options.mode == TairMode::Plain;
        let needs = Needs {
            writes: if plain {
                &[
                    "set",
                    "cas",
                    "cad",
                    "incrby",
                    "hset",
                    "hdel",
                    "hget",
                    "pexpire",
                    "zadd",
                    "zrem",
                    "zrank",
                    "lpush",
                    "ltrim",
                    "hsetnx",
                    "hincrby",
                    "command|info",
                ]
            } else {
                &[
                    "exset",
                    "excas",
                    "excad",
                    "incrby",
                    "hset",
                    "hdel",
                    "hget",
                    "pexpire",
                    "zadd",
                    "zrem",
                    "zrank",
                    "lpush",
                    "ltrim",
                    "hsetnx",
                    "hincrby",
                    "command|info",
                ]
            },
            reads: if plain {
                &[
                    "time", "type", "getrange", "pttl", "hgetall", "zrange", "lrange", "hlen",
                    "get", "scan",
                ]
            } else {
                &[
                    "time", "type", "exget", "getrange", "pttl", "hgetall", "zrange", "lrange",
                    "hlen", "get", "scan",
                ]
            },
            publishes: false,
            select: self.options.server.db != 0,
            ..Needs::scripts_and_lists(&self.options.namespace)
        };
        grants(&needs, role)
    }
}
