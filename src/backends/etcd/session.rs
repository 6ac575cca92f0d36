//! The state that a process keeps of a hold, or of a request for one, between requests.
//!
//! The state is only a shortcut: another process with the token can read the same from the store
//! ([`super::hold`]).

use std::time::Duration;

use sha2::{Digest as _, Sha256};
use tokio::time::Instant;

use super::{
    clock::{after, is_past},
    failure,
    names::EtcdNames,
    ops::MOST_OPS,
    questions::Watches,
    queue::{AwaitedKeys, Permit},
    record::{StoredRecord, fence},
    runs::RunKeys,
};
use crate::lock::{Busy, Fence, Key, Metadata, Namespace, Result, Token, Ttl, random};

/// The delay per queue position, in milliseconds, within which a waiter applies at random when the
/// monitor is gone. A few waiters apply, and the others see that the key is taken.
const SPREAD_MS: u64 = 20;
/// The longest such delay, in milliseconds.
const LATEST_MS: u64 = 5000;

/// One token's hold of one lock.
pub(super) struct EtcdSession {
    pub key: Key,
    pub token: Token,
    pub names: EtcdNames,
    /// The owner's lease; each key with this lease is the owner's.
    pub lease: i64,
    pub state: HoldState,
    /// The nested hold that the token is for. This session must not end the owner's key and lease
    /// then.
    pub inner: Option<NestedName>,
    /// Whether this process asked for the hold, so that a late request may still reach the store.
    pub taking: bool,
    /// Watches for deletions of the own key and of the preceding key.
    pub watches: Option<Watches>,
}

/// A nested hold that was requested.
pub(super) struct NestedName {
    pub name: String,
    pub lease: i64,
}

/// The stage that the hold has reached.
pub(super) enum HoldState {
    /// The lease may exist, and the key may have been put: the answer will tell.
    Asked {
        /// Whether the lease is known to have been granted.
        leased: bool,
    },
    /// The key is in the queue.
    Queued(Queued),
    /// The lock is held.
    Held(OwnHold),
    /// The hold was given back; its lease may still exist.
    Released,
}

/// A position in the queue.
pub(super) struct Queued {
    pub own: String,
    /// The create revision of the own key.
    pub created: i64,
    /// The keys that are waited for.
    pub before: AwaitedKeys,
    /// How many permits were held; `None` if the waiter wants no permit.
    pub permits: Option<usize>,
    /// The revision of the look.
    pub seen: i64,
    /// The result of that look.
    pub busy: Busy,
    /// How many times the position was only checked since that look.
    pub checks: u32,
    /// The length of the lease.
    pub ttl: Ttl,
    /// When the lease must be extended next, by the runtime's clock.
    pub alive_until: Instant,
    /// Whether the waiter was probed, and so must prove often that it lives.
    pub probed: bool,
    /// Whether the probe is still unanswered.
    pub unanswered: bool,
    pub monitor: QueueMonitor,
}

impl Queued {
    pub(super) fn fence(&self) -> Fence {
        fence(self.created)
    }
}

/// The queue monitor, as far as a waiter knows.
#[derive(Clone, Copy, Debug)]
pub(super) enum QueueMonitor {
    Another,
    /// There is none; from this moment on this waiter may apply.
    Vacant(Instant),
    /// This waiter is the monitor; its next round is due at this moment.
    Own(Instant),
}

impl QueueMonitor {
    /// Returns the state of a waiter that sees whether a queue monitor is there.
    pub(super) fn new(is_there: bool) -> Self {
        if is_there {
            Self::Another
        } else {
            Self::Vacant(after(Duration::ZERO))
        }
    }

    /// Returns the state of a waiter at this position after a change of the monitor's key.
    pub(super) fn key_changed(self, is_gone: bool, position: Option<u32>) -> Self {
        let spread = (SPREAD_MS * u64::from(position.unwrap_or(1))).min(LATEST_MS);
        match (self, is_gone) {
            (_, true) => Self::Vacant(after(Duration::from_millis(random() % spread.max(1)))),
            // This waiter put the key itself.
            (own @ Self::Own(_), false) => own,
            (_, false) => Self::Another,
        }
    }

    /// Returns when there is something to do.
    pub(super) fn due(&self) -> Option<Instant> {
        match self {
            Self::Another => None,
            Self::Vacant(due) | Self::Own(due) => Some(*due),
        }
    }

    pub(super) fn is_own(&self) -> bool {
        matches!(self, Self::Own(_))
    }
}

/// The state of a hold that its owner needs.
#[derive(Clone, Debug)]
pub(super) struct OwnHold {
    pub own: String,
    /// The create revision of the owner's key.
    pub created: i64,
    /// The revision at which the key was last seen.
    pub seen: i64,
    /// `None` for the hold that the lock was taken with.
    pub nested: Option<Nested>,
    /// When the hold began, by its host's clock.
    pub since_ms: Option<u64>,
    /// The holder's metadata.
    pub metadata: Option<Metadata>,
    /// The run records, including the hold's own.
    pub runs: RunKeys,
    /// The permit of the hold.
    pub number: Option<Permit>,
    /// Records of contenders that vanished before this hold began.
    pub dying: Vec<StoredRecord>,
    /// When those contenders have had their time to stop, by the runtime's clock.
    pub settled_at: Instant,
}

impl OwnHold {
    pub(super) fn fence(&self) -> Fence {
        fence(self.created)
    }

    /// Returns the records that can be removed, since their contenders have stopped.
    pub(super) fn dead(&self) -> &[StoredRecord] {
        let many = if is_past(self.settled_at) {
            self.dying.len().min(MOST_OPS)
        } else {
            0
        };
        &self.dying[..many]
    }
}

/// A hold nested in that of another process.
#[derive(Clone, Debug)]
pub(super) struct Nested {
    pub name: String,
    pub lease: i64,
    pub created: i64,
}

impl EtcdSession {
    /// Creates the session of a token without known state.
    pub(super) fn new(namespace: &Namespace, key: &Key, token: &Token) -> Self {
        let names = EtcdNames::new(namespace, key);
        let lease = lease_of(&names, token);
        let state = HoldState::Asked { leased: false };
        Self {
            key: key.clone(),
            token: *token,
            names,
            lease,
            state,
            inner: None,
            taking: false,
            watches: None,
        }
    }

    /// Returns the lease for this waiter's queue monitor key.
    pub(super) fn monitor_lease(&self) -> i64 {
        number(&[
            self.names.folder.as_bytes(),
            self.token.owner.as_bytes(),
            b"lookout",
        ])
    }

    /// Returns the name and the lease of the token's nested hold.
    pub(super) fn inner(&self) -> NestedName {
        let lease = number(&[
            self.names.folder.as_bytes(),
            self.token.owner.as_bytes(),
            &self.token.hold.to_be_bytes(),
        ]);
        NestedName {
            name: self.names.nested_hold(self.lease, &self.token.hold_text()),
            lease,
        }
    }
}

/// Returns the lease of an owner. It identifies a grant whose answer was lost, and lets another
/// process with the token find the hold. The lease is public in the key's name, and does not reveal
/// the owner.
pub(super) fn lease_of(names: &EtcdNames, token: &Token) -> i64 {
    number(&[names.folder.as_bytes(), token.owner.as_bytes()])
}

fn number(parts: &[&[u8]]) -> i64 {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part.len().to_be_bytes());
        hash.update(part);
    }
    let mut first = [0; 8];
    first.copy_from_slice(&hash.finalize()[..8]);
    // The id is positive, since etcd's clients print it as a signed number, and not 0, which means
    // "choose one".
    (u64::from_be_bytes(first) >> 1).cast_signed().max(1)
}

/// Returns a TTL in etcd's whole seconds.
pub(super) fn seconds(ttl: Ttl) -> i64 {
    i64::try_from(ttl.as_millis().div_ceil(1000)).unwrap_or(i64::MAX)
}

/// Returns etcd's whole seconds as a TTL.
pub(super) fn ttl(seconds: i64) -> Result<Ttl> {
    let seconds = u64::try_from(seconds).map_err(|_| failure::unreadable())?;
    // A server's minimum lease may exceed dlock's maximum. dlock then promises at most a year.
    Ttl::new(Duration::from_secs(seconds).min(Ttl::MAX)).map_err(|_| failure::unreadable())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::Namespace;

    #[test]
    fn a_lease_id_is_positive_and_unique_per_owner_and_key() {
        let names = |key: &str| EtcdNames::new(&Namespace::default(), &Key::new(key).unwrap());
        let (a, b) = (Token::random(), Token::random());
        let all = [
            lease_of(&names("x"), &a),
            lease_of(&names("y"), &a),
            lease_of(&names("x"), &b),
            EtcdSession::new(&Namespace::default(), &Key::new("x").unwrap(), &a)
                .inner()
                .lease,
            EtcdSession::new(&Namespace::default(), &Key::new("x").unwrap(), &a.nested())
                .inner()
                .lease,
        ];
        assert!(all.iter().all(|lease| *lease > 0));
        assert!((1..all.len()).all(|n| !all[..n].contains(&all[n])));
        assert_eq!(lease_of(&names("x"), &a.nested()), all[0]);
    }

    #[test]
    fn leases_are_whole_seconds() {
        let ms = |ms| Ttl::new(Duration::from_millis(ms)).unwrap();
        assert_eq!(
            [1000, 1001, 60_000].map(|length| seconds(ms(length))),
            [1, 2, 60]
        );
        assert_eq!(ttl(2).unwrap(), ms(2000));
        assert!(ttl(0).is_err() && ttl(-1).is_err());
    }
}
