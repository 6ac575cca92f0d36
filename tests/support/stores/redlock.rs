//! Redlock: five independent servers of Redis.

use std::any::Any;

use super::{Can, Fixture, Info, Kind, Need, Store, USUAL, places, redis::wipe};
use crate::{redis::Redis, redlock::Nodes};

pub const FIXTURE: Fixture = Fixture {
    store: "Redlock",
    kinds: &[Info {
        // A writer that died in the queue keeps readers out for 15 s.
        can: Can {
            permits: false,
            fair: false,
            handover_s: 15,
            ..USUAL
        },
        ..Info::new(Kind::Redlock, "redlock", start, Redis::missing)
    }],
};

fn start(_: Kind, need: Need) -> Box<dyn Store> {
    Box::new(match need {
        Need::Shared | Need::Own => Nodes::plain(),
        Need::Durable | Need::Faulty => Nodes::durable(),
    })
}

/// Faults hit a minority.
impl Store for Nodes {
    fn url_at(&self, host: &str, ports: &[u16]) -> String {
        format!("redlock://{}", places(host, ports))
    }

    fn ports(&self) -> Vec<u16> {
        self.0.iter().map(|node| node.port).collect()
    }

    fn servers(&self) -> &dyn Any {
        self
    }

    fn freeze(&self) {
        self.0[..2].iter().for_each(Redis::freeze);
    }

    fn thaw(&self) {
        self.0[..2].iter().for_each(Redis::thaw);
    }

    fn kill(&mut self) {
        self.0[1..3].iter().for_each(Redis::kill);
    }

    fn start(&mut self) {
        self.0[1..3].iter().for_each(Redis::start);
    }

    fn lose_data(&self, part: &str) {
        for node in &self.0 {
            wipe(node, part);
        }
    }
}
