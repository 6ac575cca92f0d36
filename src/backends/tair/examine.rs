//! Checks of the server's settings.

use async_trait::async_trait;

use super::{TairMode, TairOptions, TairStore};
use crate::{
    backends::{
        net::transport,
        redis::{
            self,
            examine::{Needs, ServerReport, ServerRole, questions, server_time},
        },
    },
    lock::{Admin, Finding, Grants, Result, Role, ServerTime},
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
}

/// Returns the least rights for `role`.
pub(super) fn grants(options: &TairOptions, role: Role, user: &str) -> Grants {
    let plain = options.mode == TairMode::Plain;
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
                "set",
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
                "time", "type", "getrange", "pttl", "hgetall", "zrange", "lrange", "hlen", "get",
                "scan",
            ]
        } else {
            &[
                "time", "type", "exget", "getrange", "pttl", "hgetall", "zrange", "lrange", "hlen",
                "get", "scan",
            ]
        },
        publishes: false,
        select: options.server.db != 0,
        ..Needs::scripts_and_lists(&options.namespace)
    };
    needs.grants(role, user)
}
