//! Checks of Redis servers' settings.
//!
//! One server is read in one packet ([`questions`]) and judged without I/O ([`ServerReport`]), also
//! for Redlock and Tair. Settings that the user may not read are reported as unchecked.

mod deployment;
mod grants;
mod server;

use async_trait::async_trait;
use tokio::time::timeout;

pub use self::{
    deployment::{CLUSTER, SENTINEL},
    server::{SERVER, WAKING},
};
pub(in crate::backends) use self::{
    grants::Needs,
    server::{
        ServerReport, ServerRole, field, merge, questions, replicas as connected_replicas,
        time as server_time,
    },
};
use super::{
    Redis, RedisOptions, connection::RedisConnection, options, race::HEDGE, reading::exchange,
};
use crate::{
    backends::net::transport,
    lock::{Admin, Finding, Grants, Key, Result, Role, ServerTime},
};

impl Redis {
    async fn look_at_servers(&mut self) -> Result<Vec<Finding>> {
        let questions = questions();
        let mut each = Vec::new();
        for node in self.servers.all().await? {
            let mut conn = self.servers.to(node.clone()).await?;
            let replies = exchange(&mut conn, &questions).await?;
            self.servers.rest(conn);
            let server = ServerReport::read(&replies);
            each.push((
                node.map_or_else(String::new, |node| node.to_string()),
                server.findings(self.options(), ServerRole::Store),
            ));
        }
        let mut findings = merge(each);
        findings.push(self.look_at_rights().await?);
        findings.push(tls(self.options()));
        match &self.options().server {
            options::RedisServer::Sentinel(_) => findings.push(self.look_at_sentinels().await?),
            options::RedisServer::Cluster(_) => findings.push(self.look_at_cluster().await?),
            options::RedisServer::Tcp { .. } | options::RedisServer::Unix(_) => {}
        }
        Ok(findings)
    }

    /// Checks the rights that a lock works without, but whose lack wakes no waiter on release.
    async fn look_at_rights(&mut self) -> Result<Finding> {
        let names = self.names(&Key::probe())?;
        let mut pipeline = ::redis::pipe();
        pipeline
            .cmd("TYPE")
            .arg(&names.lock)
            .cmd("GET")
            .arg(&names.fence)
            .cmd("EXISTS")
            .arg(&names.wake);
        // The probe's channels have no listener.
        for channel in [&names.channel, &names.rw_channel] {
            pipeline.cmd("PUBLISH").arg(channel).arg("");
        }
        let replies = self.look(&names.lock, &pipeline).await?;
        Ok(server::rights(&replies))
    }

    async fn read_clocks(&mut self) -> Result<Vec<ServerTime>> {
        let mut time = ::redis::pipe();
        time.cmd("TIME");
        let mut clocks = Vec::new();
        for node in self.servers.all().await? {
            let mut conn = self.servers.to(node.clone()).await?;
            let replies = exchange(&mut conn, &time).await?;
            self.servers.rest(conn);
            let name = node.map_or_else(|| "the server".to_owned(), |node| node.to_string());
            clocks.extend(replies.first().and_then(|time| server::time(name, time)));
        }
        if matches!(self.options().server, options::RedisServer::Sentinel(_)) {
            clocks.extend(self.clocks_of_replicas().await?);
        }
        Ok(clocks)
    }

    /// Reads the clocks of the replicas: after a failover, a lease ends by the new master's clock.
    /// A replica that can't be reached at once, such as one with an address of another network, is
    /// left out.
    async fn clocks_of_replicas(&mut self) -> Result<Vec<ServerTime>> {
        let (mut role, mut time) = (::redis::pipe(), ::redis::pipe());
        role.cmd("ROLE");
        time.cmd("TIME");
        let mut conn = self.servers.to(None).await?;
        let replies = exchange(&mut conn, &role).await?;
        self.servers.rest(conn);
        let mut clocks = Vec::new();
        for replica in replies.first().map(server::replicas).unwrap_or_default() {
            let at = self.options().at(&replica);
            if let Ok(Ok((_, replies))) =
                timeout(HEDGE, RedisConnection::open_and(&at, &time)).await
            {
                clocks.extend(
                    replies
                        .first()
                        .and_then(|time| server::time(replica.to_string(), time)),
                );
            }
        }
        Ok(clocks)
    }
}

/// Checks the encryption of the connections to the servers.
fn tls(options: &options::RedisOptions) -> Finding {
    let hosts: Vec<&str> = match &options.server {
        options::RedisServer::Unix(_) => Vec::new(),
        options::RedisServer::Tcp { host, .. } => vec![host],
        options::RedisServer::Sentinel(sentinel) => sentinel
            .sentinels
            .iter()
            .map(|address| address.host.as_str())
            .collect(),
        options::RedisServer::Cluster(seeds) => {
            seeds.iter().map(|address| address.host.as_str()).collect()
        }
    };
    transport::finding(
        options.tls.is_some(),
        hosts,
        options.password.is_some(),
        "a URL that begins with rediss, and tls-port on the servers",
    )
}

#[async_trait(?Send)]
impl Admin for Redis {
    async fn examine(&mut self) -> Result<Vec<Finding>> {
        self.look_at_servers().await
    }

    async fn clocks(&mut self) -> Result<Vec<ServerTime>> {
        self.read_clocks().await
    }
}

/// Returns the least rights for `role`.
pub(super) fn grants(options: &RedisOptions, role: Role, user: &str) -> Grants {
    let mut needs = Needs::scripts_and_lists(&options.namespace);
    needs.select = options.db != 0;
    needs.replicas = options.replicas.is_some();
    needs.all_replicas = options
        .replicas
        .is_some_and(|replicas| replicas.count == options::Replicas::ALL);
    match &options.server {
        options::RedisServer::Sentinel(_) => needs.sentinel = true,
        options::RedisServer::Cluster(_) => needs.cluster = true,
        options::RedisServer::Tcp { .. } | options::RedisServer::Unix(_) => {}
    }
    needs.grants(role, user)
}
