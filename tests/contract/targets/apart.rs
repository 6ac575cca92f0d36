//! Cases that share a store, each in its own namespaces.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::support::redis::Redis;

/// One case's part of a store.
pub struct Apart(String);

impl Apart {
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        // All names have the same width, so none is a prefix of another.
        Self(format!("case{:04}-", NEXT.fetch_add(1, Ordering::Relaxed)))
    }

    /// Returns this case's namespace for a name. The empty namespace is shared, so only one case
    /// may use it.
    pub fn namespace(&self, name: &str) -> String {
        if name.is_empty() {
            String::new()
        } else {
            format!("{}{name}", self.0)
        }
    }

    /// Removes all keys in this case's part of a server.
    pub fn wipe(&self, server: &Redis) {
        for (name, _) in server
            .keys()
            .into_iter()
            .filter(|(name, _)| name.contains(&self.0))
        {
            server.command(&["DEL", &name]);
        }
    }
}
