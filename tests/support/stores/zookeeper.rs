//! ZooKeeper: one server, or an ensemble of three.

use std::{
    any::Any,
    sync::{Mutex, Weak},
    thread,
};

use super::{
    Can, Fixture, Info, Kind, Marks, Need, Store, USUAL, places,
    shared::{self, Shared, Slot},
};
use crate::zookeeper::{ZooKeeper, tree};

pub const FIXTURE: Fixture = Fixture {
    store: "ZooKeeper",
    kinds: &[
        Info {
            can: CAN,
            marks: Marks {
                // The data with which the node is created or written that renewals write.
                acquire: "\0\0\0\u{5}60000",
                // The name of a node that the server completes, and the first bytes of its data.
                taking: "-lock-\0\0\0",
                changing: "/hold-",
            },
            ..Info::new(Kind::ZooKeeper, "zookeeper", start, ZooKeeper::missing)
        },
        Info {
            also: "zookeeper-ensemble",
            can: CAN,
            ..Info::new(Kind::ZooKeeper3, "zookeeper3", start, ZooKeeper::missing)
        },
    ],
};

const CAN: Can = Can {
    handover_s: 8,
    ..USUAL
};

fn start(kind: Kind, need: Need) -> Box<dyn Store> {
    static SLOTS: [Slot<ZooKeeper>; 2] = [Mutex::new(Weak::new()), Mutex::new(Weak::new())];
    let (slot, start): (_, fn() -> ZooKeeper) = match kind {
        Kind::ZooKeeper => (&SLOTS[0], ZooKeeper::single),
        _ => (&SLOTS[1], ZooKeeper::ensemble),
    };
    match need {
        Need::Shared => Box::new(Shared(shared::get(slot, start))),
        _ => Box::new(start()),
    }
}

fn leader(servers: &ZooKeeper) -> usize {
    if servers.nodes.len() > 1 {
        servers.leader()
    } else {
        0
    }
}

/// Of several servers, faults hit the leader.
impl Store for ZooKeeper {
    fn url_at(&self, host: &str, ports: &[u16]) -> String {
        format!("zookeeper://{}", places(host, ports))
    }

    fn ports(&self) -> Vec<u16> {
        self.nodes.iter().map(|node| node.port).collect()
    }

    fn servers(&self) -> &dyn Any {
        self
    }

    fn freeze(&self) {
        self.nodes[leader(self)].freeze();
    }

    fn thaw(&self) {
        Self::thaw(self);
    }

    fn kill(&mut self) {
        let leader = leader(self);
        self.nodes[leader].kill();
    }

    fn start(&mut self) {
        Self::start(self);
    }

    fn restart_empty(&mut self) {
        Self::restart_empty(self);
    }

    fn take_away(&self, key: &str) {
        self.delete_contender(&format!("/dlock/{key}"));
    }

    /// The fence is a transaction number of the ensemble, which restarts with the data.
    fn keeps_fences(&self) -> bool {
        false
    }

    /// Does an administrator's `deleteall`: servers that lost their disks would restart their
    /// change count, and so the fences. In a thread, because the caller may have a runtime.
    fn lose_data(&self, part: &str) {
        let delete = || {
            self.admin(async |admin| {
                for node in tree(&admin, &format!("/{part}")).await {
                    let _ = admin.delete(&node, None).await;
                }
            });
        };
        thread::scope(|scope| scope.spawn(delete).join()).expect("the nodes can be deleted");
    }

    fn left(&self, keys: &[String]) -> Vec<String> {
        let queued = |key: &String| match self.line(&format!("/dlock/{key}")) {
            0 => None,
            many => Some(format!("{many} nodes of {key}")),
        };
        keys.iter().filter_map(queued).collect()
    }
}
