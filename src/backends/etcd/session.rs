//! What is remembered of a hold, or of the way to one, between the questions about it.
//!
//! Only a shortcut: another process that has the token finds out the same by looking ([`super::hold`]).

use std::time::Duration;

use sha2::{Digest as _, Sha256};
use tokio::time::Instant;

use super::{
    failure,
    lookout::Lookout,
    names::Names,
    ops::MOST_OPS,
    questions::Watches,
    queue::{Before, Permit, fence},
    record::StoredRecord,
    runs::Runs,
};
use crate::lock::{Busy, Fence, Key, Metadata, Namespace, Result, Token, Ttl};

/// One token's hold of one lock.
pub(super) struct Session {
    pub key: Key,
    pub token: Token,
    pub names: Names,
    /// Of the owner; a key with this lease is the owner's.
    pub lease: i64,
    pub stage: Standing,
    /// The hold within another that the token is for. The owner's key and lease are not this session's to end then.
    pub inner: Option<Inner>,
    /// Whether this process asked for the hold, so that something of it may still be on its way to the store.
    pub taking: bool,
    /// Deletions of the own key, and of the key that is waited for.
    pub watches: Option<Watches>,
}

/// A nested hold that was asked for.
pub(super) struct Inner {
    pub name: String,
    pub lease: i64,
}

/// How far the hold has come.
pub(super) enum Standing {
    /// The lease may have been granted, the key may have been put: the answer will tell.
    Asked {
        /// Whether the lease is known to have been granted.
        leased: bool,
    },
    /// The key stands in the queue.
    Queued(Queued),
    /// The lock is held.
    Held(Hold),
    /// It was given back; its lease may still be there.
    GivenBack,
}

/// A place in the queue.
pub(super) struct Queued {
    pub own: String,
    /// The revision that it came with.
    pub created: i64,
    /// What is waited for.
    pub before: Before,
    /// How many permits were held; `None` if it waits for none.
    pub permits: Option<usize>,
    /// The revision that this was seen at.
    pub seen: i64,
    /// What was found then.
    pub busy: Busy,
    /// How often the place was only checked since then.
    pub checks: u32,
    /// The length of the lease.
    pub ttl: Ttl,
    /// Until when it need not be kept alive, by the runtime's clock.
    pub alive_until: Instant,
    /// Whether it was told to prove often that it lives.
    pub called: bool,
    /// Whether it has not answered that yet.
    pub unanswered: bool,
    pub lookout: Lookout,
}

impl Queued {
    pub(super) fn fence(&self) -> Fence {
        fence(self.created)
    }
}

/// A hold, as far as its owner has to know it.
#[derive(Clone, Debug)]
pub(super) struct Hold {
    pub own: String,
    /// The create revision of the owner's key.
    pub created: i64,
    /// Up to when it is known not to be deleted.
    pub seen: i64,
    /// `None` for the hold that the lock was taken with.
    pub nested: Option<Nested>,
    /// Since when, by its host's clock.
    pub since_ms: Option<u64>,
    /// Whose it is.
    pub metadata: Option<Metadata>,
    /// The run records, its own among them.
    pub runs: Runs,
    /// The permit that it is.
    pub number: Option<Permit>,
    /// Records of contenders that vanished before this hold began.
    pub dying: Vec<StoredRecord>,
    /// When they have had the time to die, by the runtime's clock.
    pub settled_at: Instant,
}

impl Hold {
    pub(super) fn fence(&self) -> Fence {
        fence(self.created)
    }

    /// The records that can go, since their contenders have stopped.
    pub(super) fn dead(&self) -> &[StoredRecord] {
        let many = if super::waiting::is_past(self.settled_at) { self.dying.len().min(MOST_OPS) } else { 0 };
        &self.dying[..many]
    }
}

/// A hold within that of another process.
#[derive(Clone, Debug)]
pub(super) struct Nested {
    pub name: String,
    pub lease: i64,
    pub created: i64,
}

impl Session {
    /// For a token that nothing is known of.
    pub(super) fn new(namespace: &Namespace, key: &Key, token: &Token) -> Self {
        let names = Names::new(namespace, key);
        let lease = lease_of(&names, token);
        let stage = Standing::Asked { leased: false };
        Self { key: key.clone(), token: *token, names, lease, stage, inner: None, taking: false, watches: None }
    }

    /// The lease of this waiter as the lookout.
    pub(super) fn lookout(&self) -> i64 {
        number(&[self.names.folder.as_bytes(), self.token.owner.as_bytes(), b"lookout"])
    }

    /// The name and the lease of the token's nested hold.
    pub(super) fn inner(&self) -> Inner {
        let lease = number(&[self.names.folder.as_bytes(), self.token.owner.as_bytes(), &self.token.hold.to_be_bytes()]);
        Inner { name: self.names.nested_hold(self.lease, &self.token.hold_text()), lease }
    }
}

/// The lease of an owner: an answer that was lost is found again by it, and so is a hold by another process that has
/// the token. It is public in the key's name, and does not tell the owner.
pub(super) fn lease_of(names: &Names, token: &Token) -> i64 {
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
    // Positive, since etcd's clients print it as a signed number, and not 0, which is "choose one".
    (u64::from_be_bytes(first) >> 1).cast_signed().max(1)
}

/// A lease's length in etcd's whole seconds.
pub(super) fn seconds(ttl: Ttl) -> i64 {
    i64::try_from(ttl.as_millis().div_ceil(1000)).unwrap_or(i64::MAX)
}

/// The other way round.
pub(super) fn ttl(seconds: i64) -> Result<Ttl> {
    let seconds = u64::try_from(seconds).map_err(|_| failure::unreadable())?;
    // A server may be set to leases that are longer than ours ever are: what is promised is no more than a year then.
    Ttl::new(Duration::from_secs(seconds).min(Ttl::MAX)).map_err(|_| failure::unreadable())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::Namespace;

    #[test]
    fn a_lease_is_positive_and_each_owners_own() {
        let names = |key: &str| Names::new(&Namespace::default(), &Key::new(key).unwrap());
        let (a, b) = (Token::random(), Token::random());
        let all = [
            lease_of(&names("x"), &a),
            lease_of(&names("y"), &a),
            lease_of(&names("x"), &b),
            Session::new(&Namespace::default(), &Key::new("x").unwrap(), &a).inner().lease,
            Session::new(&Namespace::default(), &Key::new("x").unwrap(), &a.nested()).inner().lease,
        ];
        assert!(all.iter().all(|lease| *lease > 0));
        assert!((1..all.len()).all(|n| !all[..n].contains(&all[n])));
        assert_eq!(lease_of(&names("x"), &a.nested()), all[0]);
    }

    #[test]
    fn leases_are_whole_seconds() {
        let ms = |ms| Ttl::new(Duration::from_millis(ms)).unwrap();
        assert_eq!([1000, 1001, 60_000].map(|length| seconds(ms(length))), [1, 2, 60]);
        assert_eq!(ttl(2).unwrap(), ms(2000));
        assert!(ttl(0).is_err() && ttl(-1).is_err());
    }
}
