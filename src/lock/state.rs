//! What a store knows of a lock, for people and programs that look at it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Break, Fence, Key, Mode};

/// A holder or waiter, as it describes itself; never trusted, always escaped before it is printed.
///
/// Unknown fields are kept out and missing ones are `None`, so that versions can differ.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Metadata {
    /// The machine's name, or `--host`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// The kernel's random id of this boot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub boot_id: Option<String>,
    /// The inode of the PID namespace: host names repeat, and containers share a boot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid_ns: Option<u64>,
    /// The user's name, or the number where it has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// dlock's process id on that host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// The command's file name, without its arguments.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// What `--describe` said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Why it ran although an earlier run refused it, as `--reason` said; only with `--anyway`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub anyway: Option<String>,
    /// For how many ms it had waited for the lock when it asked for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waited_ms: Option<u64>,
}

impl Metadata {
    /// What tells the machine and PID namespace from others: their names repeat, and the user can say another.
    pub fn place(&self) -> String {
        let boot = self.boot_id.as_deref().or(self.host.as_deref()).unwrap_or_default();
        format!("{boot}/{}", self.pid_ns.unwrap_or_default())
    }
}

/// One hold of a lock. Lengths of time are by the store's clock; unknown is `None`, never invented.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// How it is held.
    pub mode: Mode,
    /// Which of the permits it has, from 0.
    pub permit: Option<u32>,
    /// Who; `None` for a foreign client, or where it was left out.
    pub metadata: Option<Metadata>,
    /// The public number of the hold.
    pub fence: Option<Fence>,
    /// Held by a client that is not dlock.
    pub foreign: bool,
    /// Taken by `acquire`, so that no process stands behind it.
    pub detached: bool,
    /// How long ago it was granted.
    pub held_for: Option<Duration>,
    /// How long ago the lease was last extended.
    pub renewed_ago: Option<Duration>,
    /// When the lease ends unless it is extended; `None` if it never does or the store doesn't tell.
    pub expires_in: Option<Duration>,
    /// How many holds the owner has: 1, and one more for each nested `dlock run`.
    pub holds: u32,
    /// It is to be broken: by whom, and whether its holder has seen that.
    pub broken: Option<Break>,
}

/// A waiter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiter {
    /// Who, as they said.
    pub metadata: Option<Metadata>,
    /// For how long already, by the store's clock.
    pub waiting_for: Option<Duration>,
    /// No waiter behind it is served first: it asked for fair order, or the store keeps the order in any case.
    pub in_order: bool,
}

/// All that a store knows of one lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockState {
    /// The key, as typed.
    pub key: Key,
    /// The name under which the store keeps it.
    pub stored_as: String,
    /// Its holders; empty when it is free.
    pub holders: Vec<Holder>,
    /// The waiters, longest first.
    pub waiters: Vec<Waiter>,
    /// The last fence given out, also when the lock is free.
    pub last_fence: Option<Fence>,
    /// What each server says, where several decide together; empty for other stores.
    pub nodes: Vec<NodeView>,
}

impl LockState {
    /// With its holders in an order for people: by their permits, and the longest first.
    #[must_use]
    pub fn in_order(mut self) -> Self {
        self.holders.sort_by_key(|holder| (holder.permit, holder.fence));
        self
    }
}

/// What one of several servers says of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeView {
    /// Which one.
    pub node: String,
    /// Whether it is held there; `None` if the server did not answer.
    pub held: Option<bool>,
    /// It is held there, but not by the holder that the lock has as a whole.
    pub others: bool,
    /// The fence of the hold there; `None` until it is confirmed.
    pub fence: Option<Fence>,
    /// When it ends there unless it is extended.
    pub expires_in: Option<Duration>,
    /// Why there is no answer.
    pub error: Option<String>,
}
