//! Tair, or its imitation, in both modes.

use std::any::Any;

use super::{Can, Fixture, Info, Kind, Marks, Need, Store, USUAL, places};
use crate::tair::Tair;

pub const FIXTURE: Fixture = Fixture {
    store: "Tair",
    kinds: &[
        Info {
            can: CAN,
            marks: MARKS,
            ..Info::new(Kind::Tair, "tair", start, || None)
        },
        Info {
            can: CAN,
            marks: MARKS,
            ..Info::new(Kind::TairVersion, "tair_version", start, || None)
        },
    ],
};

const CAN: Can = Can {
    claims: true,
    ..USUAL
};

const MARKS: Marks = Marks {
    // Renewals contain this text too, but no release does.
    acquire: "\r\n60000\r\n",
    taking: "",
    changing: "",
};

/// A server, and the mode of the locks in it.
pub struct TairServer {
    pub server: Tair,
    pub mode: &'static str,
}

fn start(kind: Kind, _: Need) -> Box<dyn Store> {
    let mode = if kind == Kind::Tair {
        "plain"
    } else {
        "version"
    };
    let server = Tair::start();
    Box::new(TairServer { server, mode })
}

impl Store for TairServer {
    fn url_at(&self, host: &str, ports: &[u16]) -> String {
        format!("tair://{}?mode={}", places(host, ports), self.mode)
    }

    fn ports(&self) -> Vec<u16> {
        vec![self.server.port()]
    }

    fn servers(&self) -> &dyn Any {
        self
    }

    fn freeze(&self) {
        self.server.freeze();
    }

    fn thaw(&self) {
        self.server.thaw();
    }

    fn kill(&mut self) {
        self.server.kill();
    }

    fn start(&mut self) {
        self.server.restart();
    }

    fn restart_empty(&mut self) {
        self.server.restart_empty();
    }

    fn take_away(&self, key: &str) {
        let deleted = self.server.command(&["DEL", &format!("dlock:{key}")]);
        assert_eq!(deleted, ::redis::Value::Int(1));
    }

    fn lose_data(&self, _: &str) {
        self.server.command(&["FLUSHALL"]);
    }
}
