//! The state of a lock in a store, for people and programs that look at it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{
    Break, Fence, Key, Mode,
    document::turn::{first_before, room},
};

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
    /// The user's name, or the number if the user has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// dlock's process id on that host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// The command's file name, without its arguments.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// The text of `--describe`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The reason for a run that an earlier run denied, from `--reason`; only with `--anyway`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub anyway: Option<String>,
    /// The ms that the requester had waited when it asked for the lock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waited_ms: Option<u64>,
}

impl Metadata {
    /// Returns what identifies the machine and PID namespace: host names repeat, and the user can
    /// set another one.
    pub fn place(&self) -> String {
        let boot = self
            .boot_id
            .as_deref()
            .or(self.host.as_deref())
            .unwrap_or_default();
        format!("{boot}/{}", self.pid_ns.unwrap_or_default())
    }
}

/// One hold of a lock. Lengths of time are by the store's clock, or on etcd by the hosts'; unknown is
/// `None`, never invented.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The mode of the hold.
    pub mode: Mode,
    /// The number of the permit, from 0.
    pub permit: Option<u32>,
    /// The holder; `None` for a foreign client, or if left out.
    pub metadata: Option<Metadata>,
    /// The public number of the hold.
    pub fence: Option<Fence>,
    /// Whether the client is not dlock.
    pub foreign: bool,
    /// Whether `acquire` took the hold, so that it needs no living process.
    pub detached: bool,
    /// How long ago the lock was granted.
    pub held_for: Option<Duration>,
    /// How long ago the lease was last extended.
    pub renewed_ago: Option<Duration>,
    /// When the lease ends unless it is extended; `None` if it never does or the store doesn't
    /// tell.
    pub expires_in: Option<Duration>,
    /// The command that frees another program's lock which never ends by itself.
    pub removal: Option<String>,
    /// How many holds the owner has: 1, and one more for each nested `dlock run`.
    pub holds: u32,
    /// The mark of a break: the operator, and whether the holder has seen the mark.
    pub broken: Option<Break>,
}

impl Holder {
    /// Returns a hold of which nothing else is known.
    pub const fn unknown(mode: Mode) -> Self {
        Self {
            mode,
            permit: None,
            metadata: None,
            fence: None,
            foreign: false,
            detached: false,
            held_for: None,
            renewed_ago: None,
            expires_in: None,
            removal: None,
            holds: 1,
            broken: None,
        }
    }
}

/// A waiter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiter {
    /// The waiter, as it describes itself.
    pub metadata: Option<Metadata>,
    /// The mode that it asks for; `None` if the store does not tell, and it holds up no other.
    pub mode: Option<Mode>,
    /// How long it has waited, by the store's clock.
    pub waiting_for: Option<Duration>,
    /// Whether no waiter behind it is served first: it asked for fair order, or the store always
    /// keeps the order.
    pub in_order: bool,
}

/// The whole state of one lock in a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockState {
    /// The key, as typed.
    pub key: Key,
    /// The name under which the store keeps it.
    pub stored_as: String,
    /// The holders; empty if the lock is free.
    pub holders: Vec<Holder>,
    /// The waiters, the longest first.
    pub waiters: Vec<Waiter>,
    /// The last fence given out, also when the lock is free.
    pub last_fence: Option<Fence>,
    /// The state on each server, if several decide together; empty for other stores.
    pub nodes: Vec<NodeView>,
}

/// What is in the way of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Obstacle<'a> {
    /// The holders.
    Holders,
    /// A waiter, which goes first.
    Waiter(&'a Waiter),
}

impl LockState {
    /// Returns what is in the way of a request of this mode that asks now, and does not wait yet.
    pub fn obstacle(&self, mode: Mode) -> Option<Obstacle<'_>> {
        let room = room(self.holders.iter().map(|holder| holder.mode), mode);
        if room == 0 {
            return Some(Obstacle::Holders);
        }
        let known: Vec<_> = self
            .waiters
            .iter()
            .filter_map(|waiter| Some((waiter, waiter.mode?)))
            .collect();
        let waiters = known.iter().map(|(waiter, mode)| (*mode, waiter.in_order));
        let first = first_before(waiters, mode, || room)?;
        Some(Obstacle::Waiter(known[first].0))
    }

    /// Sorts the holders for people: by their permits, and the longest first.
    #[must_use]
    pub fn in_order(mut self) -> Self {
        self.holders
            .sort_by_key(|holder| (holder.permit, holder.fence));
        self
    }
}

/// The state of a lock on one of several servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeView {
    /// The server.
    pub node: String,
    /// Whether the lock is held on the server; `None` if the server did not answer.
    pub held: Option<bool>,
    /// Whether the lock is held on the server, but not by the holder of the whole lock.
    pub others: bool,
    /// The fence of the hold on the server; `None` until it is confirmed.
    pub fence: Option<Fence>,
    /// When the hold on the server ends unless it is extended.
    pub expires_in: Option<Duration>,
    /// Why there is no answer.
    pub error: Option<String>,
}
