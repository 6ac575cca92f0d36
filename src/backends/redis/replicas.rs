//! Waiting until replicas have confirmed a write.
//!
//! Redis replies before its replicas have the write. A failover forgets a grant that no replica
//! has. A master that is cut off from its replicas would go on granting and renewing while its
//! successor does too. Worst cases: the replicas don't confirm in time (a grant is released, a
//! renewal doesn't count); the connection breaks meanwhile (unknown outcome: the core asks again or
//! undoes it); a replica has the grant but not its release (the grant ends with its lease).

use redis::{Pipeline, Value};

use super::{
    Redis, Replicas, connection::ServerConnection, examine::connected_replicas, failure,
    names::RedisNames, options::RedisServer, reply,
};
use crate::lock::{Effect, Error, ReleaseInfo, Request, Result};

impl Redis {
    /// Waits until the required replicas have all writes of `conn`. Returns an error if they have
    /// not.
    pub(super) async fn shortfall(&mut self, conn: &mut ServerConnection) -> Result<Option<Error>> {
        let Some(replicas) = self.options().replicas else {
            return Ok(None);
        };
        if replicas.count != Replicas::ALL {
            return Ok(self.wait_for(conn, replicas, Pipeline::new()).await?.err());
        }
        if self.servers.replicas_of(conn).is_none() {
            let replies = conn.exchange(&self.replication_info()).await?;
            if let Err(error) = self.learn_replicas(conn, &replies) {
                return Ok(Some(error.effect(Effect::Unknown)));
            }
        }
        loop {
            let count = self.servers.replicas_of(conn).unwrap_or_default().max(1);
            let replies = match self
                .wait_for(
                    conn,
                    Replicas { count, ..replicas },
                    self.replication_info(),
                )
                .await?
            {
                Ok(replies) => replies,
                Err(error) => return Ok(Some(error)),
            };
            // Another replica may have connected since.
            match self.learn_replicas(conn, &replies) {
                Ok(known) if known.max(1) > count => {}
                Ok(_) => return Ok(None),
                Err(error) => return Ok(Some(error.effect(Effect::Unknown))),
            }
        }
    }

    /// Waits for `replicas`, and runs the commands `besides` after that, in the same packet.
    async fn wait_for(
        &self,
        conn: &mut ServerConnection,
        replicas: Replicas,
        besides: Pipeline,
    ) -> Result<Result<Vec<Value>>> {
        let mut wait = redis::pipe();
        wait.cmd("WAIT").arg(replicas.count).arg(
            u64::try_from(replicas.within.as_millis())
                .unwrap_or(u64::MAX)
                .max(1),
        );
        besides.cmd_iter().for_each(|command| {
            wait.add_command(command.clone());
        });
        let mut replies = conn.exchange(&wait).await?;
        let have = match replies.first() {
            Some(Value::ServerError(error)) => {
                return Ok(Err(failure::refused(error).effect(Effect::Unknown)));
            }
            have => have.and_then(reply::int).ok_or_else(failure::unreadable)?,
        };
        if have < i64::from(replicas.count) {
            return Ok(Err(
                failure::too_few_replicas(replicas, have).effect(Effect::Unknown)
            ));
        }
        Ok(Ok(replies.split_off(1)))
    }

    fn replication_info(&self) -> Pipeline {
        let mut question = redis::pipe();
        match self.options().server {
            RedisServer::Cluster(_) => question.cmd("CLUSTER").arg("NODES"),
            RedisServer::Tcp { .. } | RedisServer::Unix(_) | RedisServer::Sentinel(_) => {
                question.cmd("ROLE")
            }
        };
        question
    }

    fn learn_replicas(&mut self, conn: &ServerConnection, replies: &[Value]) -> Result<u32> {
        let count = match replies.first() {
            Some(Value::ServerError(error)) => return Err(failure::refused(error)),
            Some(role @ Value::Array(_)) => u32::try_from(connected_replicas(role).len()).ok(),
            nodes => nodes
                .and_then(reply::text)
                .as_deref()
                .and_then(replicas_of_myself),
        };
        Ok(self
            .servers
            .learn_replicas(conn, count.ok_or_else(failure::unreadable)?))
    }

    /// Releases a grant that too few replicas have. The connection isn't kept: there may be another
    /// master by now.
    pub(super) async fn undo(
        &mut self,
        conn: ServerConnection,
        names: &RedisNames,
        request: &Request,
        why: Error,
    ) -> Error {
        match self
            .release_over(conn, names, &request.token, &ReleaseInfo::UNDO)
            .await
        {
            Ok((_, reply)) if !matches!(reply, Value::ServerError(_)) => {
                why.effect(Effect::NotApplied)
            }
            _ => why,
        }
    }
}

/// Returns the number of replicas of the node that replied to `CLUSTER NODES`, including cut-off
/// ones.
fn replicas_of_myself(nodes: &str) -> Option<u32> {
    let fields = |line: &str| {
        line.split(' ')
            .take(4)
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let nodes: Vec<_> = nodes
        .lines()
        .map(fields)
        .filter(|fields| fields.len() == 4)
        .collect();
    let flags = |node: &[String], flag: &str| node[2].split(',').any(|known| known == flag);
    let myself = &nodes.iter().find(|node| flags(node, "myself"))?[0];
    u32::try_from(
        nodes
            .iter()
            .filter(|node| flags(node, "slave") && node[3] == *myself)
            .count(),
    )
    .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_that_are_cut_off_are_counted() {
        let nodes = "aa 127.0.0.1:1@2 myself,master - 0 1 1 connected 0-5\n\
                     bb 127.0.0.1:3@4 slave aa 0 1 1 connected\n\
                     cc 127.0.0.1:5@6 slave,fail? aa 0 1 1 disconnected\n\
                     dd 127.0.0.1:7@8 master - 0 1 2 connected 6-9\n\
                     ee 127.0.0.1:9@10 slave dd 0 1 2 connected\n";
        assert_eq!(replicas_of_myself(nodes), Some(2));
        assert_eq!(
            replicas_of_myself("aa 127.0.0.1:1@2 master - 0 1 1 connected\n"),
            None
        );
    }
}
