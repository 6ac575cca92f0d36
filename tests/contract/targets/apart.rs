//! Cases that share a store, each in namespaces of its own.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::support::redis::Redis;

/// One case's part of a store.
pub struct Apart(String);

impl Apart {
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        // Of one width, so that none is the beginning of another.
        Self(format!("case{:04}-", NEXT.fetch_add(1, Ordering::Relaxed)))
    }

    /// The namespace that this case knows by a name. There is one empty one; no two cases may use it.
    pub fn namespace(&self, name: &str) -> String {
        if name.is_empty() { String::new() } else { format!("{}{name}", self.0) }
    }

    /// Removes all that lies in this case's part of a server.
    pub fn wipe(&self, server: &Redis) {
        for (name, _) in server.keys().into_iter().filter(|(name, _)| name.contains(&self.0)) {
            server.command(&["DEL", &name]);
        }
    }
}
