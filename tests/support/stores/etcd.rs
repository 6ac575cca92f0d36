//! etcd: one member, or three.

use std::{
    any::Any,
    sync::{Mutex, Weak},
};

use super::{
    Can, Fixture, Info, Kind, Marks, Need, Store, USUAL, places,
    shared::{self, Shared, Slot},
};
use crate::etcd::Etcd;

pub const FIXTURE: Fixture = Fixture {
    store: "etcd",
    kinds: &[
        Info {
            can: CAN,
            marks: Marks {
                // The request for a one-minute lease with an id: no other request has both.
                acquire: "\u{8}\u{3c}\u{10}",
                taking: "",
                changing: "",
            },
            ..Info::new(Kind::Etcd, "etcd", start, Etcd::missing)
        },
        Info {
            also: "etcd-cluster",
            can: CAN,
            ..Info::new(Kind::Etcd3, "etcd3", start, Etcd::missing)
        },
    ],
};

const CAN: Can = Can {
    handover_s: 8,
    ..USUAL
};

fn start(kind: Kind, need: Need) -> Box<dyn Store> {
    static SLOTS: [Slot<Etcd>; 2] = [Mutex::new(Weak::new()), Mutex::new(Weak::new())];
    let (slot, start): (_, fn() -> Etcd) = match kind {
        Kind::Etcd => (&SLOTS[0], Etcd::plain),
        _ => (&SLOTS[1], Etcd::cluster),
    };
    match need {
        Need::Shared => Box::new(Shared(shared::get(slot, start))),
        _ => Box::new(start()),
    }
}

fn leader(etcd: &Etcd) -> usize {
    if etcd.ports().len() > 1 {
        etcd.leader().0
    } else {
        0
    }
}

/// Of several members, faults hit the leader.
impl Store for Etcd {
    fn url_at(&self, host: &str, ports: &[u16]) -> String {
        format!("etcd://{}", places(host, ports))
    }

    fn ports(&self) -> Vec<u16> {
        Self::ports(self)
    }

    fn servers(&self) -> &dyn Any {
        self
    }

    fn freeze(&self) {
        self.freeze_member(leader(self));
    }

    fn thaw(&self) {
        Self::thaw(self);
    }

    fn kill(&mut self) {
        self.kill_member(leader(self));
    }

    fn start(&mut self) {
        Self::restart(self);
    }

    fn restart_empty(&mut self) {
        Self::restart_empty(self);
    }

    fn take_away(&self, key: &str) {
        let gone = self.ctl(&["del", "--prefix", &format!("dlock/{key}/")]);
        assert_eq!(gone.trim(), "1");
    }

    /// An empty etcd is a new cluster whose revision starts again.
    fn keeps_fences(&self) -> bool {
        false
    }

    /// Deletes the keys but not the cluster's revision, from which fences come: a cluster that lost
    /// its disks is another one.
    fn lose_data(&self, part: &str) {
        self.ctl(&["del", "--prefix", part]);
    }

    fn left(&self, keys: &[String]) -> Vec<String> {
        let of = |key: &String| self.keys(&format!("dlock/{key}/"));
        keys.iter().flat_map(of).collect()
    }
}
