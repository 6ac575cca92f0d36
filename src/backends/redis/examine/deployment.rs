//! Checks of sentinels and of a cluster.

use redis::Value;

use crate::{
    backends::redis::{
        Redis,
        options::{RedisServer, acl_of},
        reading::exchange,
        reply, sentinel,
    },
    lock::{Check, Error, Finding, Kind, Result, check},
};

/// The additional checks behind sentinels.
pub const SENTINEL: &[Check] = &[check(
    "sentinels",
    "how many sentinels there are, and whether they can agree on a failover",
)];

/// The additional checks in a cluster.
pub const CLUSTER: &[Check] = &[check(
    "cluster",
    "cluster_state, and how many masters decide on a failover",
)];

impl Redis {
    pub(super) async fn look_at_sentinels(&mut self) -> Result<Finding> {
        const ID: &str = "sentinels";
        let RedisServer::Sentinel(theirs) = &self.options().server else {
            return Err(Error::new(
                Kind::Internal,
                "there are no sentinels to look at",
            ));
        };
        let mut questions = redis::pipe();
        questions
            .cmd("SENTINEL")
            .arg("CKQUORUM")
            .arg(&theirs.master)
            .cmd("SENTINEL")
            .arg("MASTER")
            .arg(&theirs.master);
        let replies = sentinel::ask_any(self.options(), theirs, &questions).await?;
        let fields = replies.get(1).and_then(reply::pairs).unwrap_or_default();
        let of = |name: &str| {
            fields
                .iter()
                .find(|(field, _)| field == name)
                .map(|(_, value)| value.as_str())
        };
        let others: Option<u32> = of("num-other-sentinels").and_then(|number| number.parse().ok());
        let (Some(others), Some(quorum)) = (others, of("quorum")) else {
            return Ok(Finding::unchecked(
                ID,
                "the sentinels",
                "the user may not ask for SENTINEL MASTER",
            )
            .fix(acl_of(theirs.user.as_deref(), "+sentinel")));
        };
        let all = others + 1;
        let down_after: u64 = of("down-after-milliseconds")
            .and_then(|ms| ms.parse().ok())
            .unwrap_or(0);
        let text =
            format!("{all} sentinels, quorum {quorum}, a master is down after {down_after} ms");
        if let Some(Value::ServerError(error)) = replies.first()
            && error.code() == "NOQUORUM"
        {
            return Ok(Finding::warn(
                ID,
                format!("{text}, and too few sentinels answer"),
                "no replica takes over if the master fails",
            )
            .fix("start the sentinels that are down"));
        }
        if all < 3 {
            let risk =
                "a sentinel that fails, or is cut off, leaves no majority to decide on a failover";
            return Ok(Finding::warn(ID, text, risk).fix("three sentinels on three hosts"));
        }
        Ok(Finding::ok(ID, text))
    }

    pub(super) async fn look_at_cluster(&mut self) -> Result<Finding> {
        const ID: &str = "cluster";
        let mut question = redis::pipe();
        question.cmd("CLUSTER").arg("INFO");
        let Some(node) = self.servers.all().await?.into_iter().next() else {
            return Ok(Finding::unchecked(ID, "the cluster", "it has no masters"));
        };
        let mut conn = self.servers.to(node).await?;
        let replies = exchange(&mut conn, &question).await?;
        self.servers.rest(conn);
        let Some(info) = replies.first().and_then(reply::text) else {
            return Ok(Finding::unchecked(
                ID,
                "cluster_state",
                "the user may not ask for CLUSTER INFO",
            )
            .fix(self.options().allow("+cluster|info")));
        };
        let of = |name| super::server::field(&info, name);
        let (state, size) = (
            of("cluster_state").unwrap_or("unknown"),
            of("cluster_size").unwrap_or("?"),
        );
        let text = format!("cluster_state {state}, {size} masters");
        if state != "ok" {
            return Ok(Finding::not_safe(ID, text, "locks can't be taken")
                .fix("redis-cli --cluster check says what it lacks"));
        }
        if size.parse().is_ok_and(|size: u32| size < 3) {
            let risk = "without a majority of masters left there is no failover";
            return Ok(Finding::warn(ID, text, risk).fix("three masters at least, on three hosts"));
        }
        Ok(Finding::ok(ID, text))
    }
}
