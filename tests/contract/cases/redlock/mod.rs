//! A majority of independent nodes.

mod answers;
mod nodes;
mod others;
mod readers;
mod starts;

use std::{future::pending, time::Duration};

use dlock::{
    backends::redlock::{Redlock, RedlockOptions},
    lease::{self, BootClock, Limits, Outcome, WaitPolicy},
};

use super::Case;
use crate::{
    lab::{Client, Lab, key},
    support::{proxy::Proxy, redlock::NODES},
    targets::{options, places},
};

pub fn all() -> Vec<Case> {
    [
        nodes::all(),
        answers::all(),
        others::all(),
        readers::all(),
        starts::all(),
    ]
    .concat()
}

const LIMITS: Limits<'static> = Limits::of(Duration::from_secs(2));

/// A proxy before each node, and clients behind the proxies.
struct Fronts(Vec<Proxy>);

impl Fronts {
    fn of(lab: &Lab) -> Self {
        Self(lab.store().ports().into_iter().map(Proxy::to).collect())
    }

    fn options(&self, node_timeout: Duration) -> RedlockOptions {
        let places = places(self.0.iter().map(|proxy| proxy.port));
        RedlockOptions {
            node_timeout,
            ..options(&format!("redlock://{places}"), "dlock")
        }
    }

    /// Returns a client with this node timeout. The client has open connections, and has run every
    /// script once.
    async fn client(&self, node_timeout: Duration) -> Client {
        let mut client = Client(Box::new(Redlock::new(self.options(node_timeout))));
        let held = client.hold(&key("warm")).await;
        client.renewed(&held, None).await;
        client.free(&held).await;
        client
    }
}

const PATIENT: Duration = Duration::from_millis(500);
/// Long enough for a loaded machine, short enough for a case.
const HASTY: Duration = Duration::from_millis(500);

/// Returns the value of the lock `job` on each node.
fn values(lab: &Lab) -> Vec<Option<String>> {
    let value = |n: usize| {
        redis::from_redis_value(lab.redlock()[n].command(&["GET", "dlock:job"])).expect("a string")
    };
    (0..NODES).map(value).collect()
}

fn held_on(lab: &Lab) -> usize {
    values(lab).iter().flatten().count()
}

fn record(lab: &Lab, node: usize, field: &str) -> Option<String> {
    redis::from_redis_value(lab.redlock()[node].command(&[
        "HGET",
        "dlock:{dlock:job}:record",
        field,
    ]))
    .expect("text")
}

fn counter(lab: &Lab, node: usize) -> u64 {
    lab.redlock()[node]
        .text(&["GET", "redisson_lock_token:{dlock:job}"])
        .parse()
        .expect("a number")
}

async fn core_acquire(
    client: &mut Client,
    request: dlock::lock::Request,
) -> dlock::lock::Result<Outcome<()>> {
    lease::acquire(
        &mut *client.0,
        &BootClock,
        request,
        WaitPolicy::Try,
        LIMITS,
        pending::<()>(),
        |_| {},
    )
    .await
}
