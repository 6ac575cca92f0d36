//! Keeping a hold, giving it back, and finding it again by its token.
//!
//! The interleavings that this is written against:
//! - *The lease lives on, and the key is gone* (deleted by somebody): a keep-alive says nothing of that. A renewal reads
//!   the own key, by a quorum, and keeps the lease alive then; see [`super::acquire`] for the order.
//! - *A release arrives late*, when the lock is somebody else's: it compares the create revision of the own key.
//! - *The answer to a release is lost*: asked again the key is gone, which is "not held". The core knows what to make of it.
//! - *Nested holds end or begin beside a release*: what it assumes of them is compared in its transaction, and looked at
//!   anew if it was wrong.
//! - *There is no space left* (NOSPACE): a release doesn't need any, and then leaves out its only put.

use super::{
    client::{Answer, Client},
    failure::{self, Trouble},
    holders::{self, Left},
    messages::{Compare, RequestOp, TxnRequest},
    ops::{self, Answers},
    queue,
    session::{Hold, Nested, Session, Stage, ttl},
    value::Value,
};
use crate::lock::{Fence, Holding, Mode, Release, Renewal, Scope};

/// So often nested holds may change beside a release before it is given up for now.
const TRIES: u32 = 4;

/// A hold as the store knows it.
pub(super) struct Found {
    pub own: String,
    pub mode: Mode,
    pub created: i64,
    pub seen: i64,
    /// Whether the token is of the hold that the lock was taken with, not of a nested one.
    pub is_root: bool,
    /// How many holds the owner has.
    pub holds: u32,
    /// The token's own nested hold.
    nested: Option<Nested>,
    /// Whether the hold that the lock was taken with was given back.
    marked: bool,
    /// The other nested holds.
    others: Vec<queue::Inner>,
    dying: Vec<String>,
}

impl Found {
    pub(super) fn fence(&self) -> Fence {
        Fence(u64::try_from(self.created).unwrap_or_default())
    }

    /// As what is remembered of a hold.
    pub(super) fn hold(&self) -> Hold {
        Hold {
            own: self.own.clone(),
            created: self.created,
            seen: self.seen,
            nested: self.nested.clone(),
            dying: self.dying.clone(),
            settled_at: super::waiting::after(std::time::Duration::ZERO),
        }
    }

    /// Whether the token's hold, and not only its owner's, is there.
    fn holds_token(&self) -> bool {
        self.nested.is_some() || self.is_root && !self.marked
    }
}

/// Looks for what the token's owner holds.
pub(super) async fn find(client: &mut Client, session: &Session) -> Answer<Option<Found>> {
    let names = &session.names;
    let mine = [Mode::Exclusive, Mode::Shared].map(|mode| names.own(mode, session.lease));
    let mut ops = ops::look(names, 1);
    ops.extend(mine.iter().map(|own| ops::get(own)));
    let mut answers = Answers::of(client.txn(ops::read(ops)).await?)?;
    let look = answers.look(names)?;
    let (write, read) = (answers.one()?, answers.one()?);
    let Some((mode, kv)) = write.map(|kv| (Mode::Exclusive, kv)).or_else(|| read.map(|kv| (Mode::Shared, kv))) else {
        return Ok(None);
    };
    let own = if mode == Mode::Shared { &mine[1] } else { &mine[0] };
    let Some(place) = look.find(own) else { return Ok(None) };
    let Some(value) = Value::read(&kv.value)? else { return Ok(None) };
    if look.blocker(mode, place).is_some() {
        return Ok(None);
    }
    let name = names.nested_hold(session.lease, &session.token.hold_text());
    let (mut nested, mut others, mut marked) = (None, Vec::new(), false);
    for inner in look.nested_in(session.lease) {
        if inner.is_mark() {
            marked = true;
        } else if inner.name == name {
            nested = Some(Nested { name: name.clone(), lease: inner.lease, created: inner.created });
        } else {
            others.push(inner.clone());
        }
    }
    // An attempt of this process, whose answer was lost, waited for nobody to die.
    let waited = !(session.taking && matches!(session.stage, Stage::Asked { .. }));
    let dying = if waited { look.dying(mode) } else { Vec::new() };
    let is_root = value.hold == session.token.hold_text();
    Ok(Some(Found {
        own: own.clone(),
        mode,
        created: kv.create_revision,
        seen: look.revision,
        is_root,
        holds: look.holds(session.lease),
        nested,
        marked,
        others,
        dying,
    }))
}

/// Extends the leases of a hold that is still there.
pub(super) async fn renew(client: &mut Client, session: &mut Session) -> Answer<Renewal> {
    let Stage::Held(hold) = &session.stage else {
        // To look for it is to read it.
        return match find(client, session).await?.filter(Found::holds_token) {
            Some(found) => extend(client, session, found.hold()).await,
            None => Ok(Renewal::NotHeld),
        };
    };
    let mut hold = hold.clone();
    let token_name = hold.nested.as_ref().map_or(&hold.own, |nested| &nested.name);
    let mut ops = vec![ops::peek(&hold.own), ops::peek(token_name), ops::peek(&session.names.left(session.lease))];
    let dead = hold.dead().len().min(ops::MOST_OPS);
    ops.extend(hold.dying[..dead].iter().map(|name| ops::delete(name)));
    let mut answers = Answers::of(client.txn(ops::read(ops)).await?)?;
    let (own, token, left) = (answers.one()?, answers.one()?, answers.one()?);
    let ours = own.is_some_and(|kv| kv.create_revision == hold.created);
    let given_back = hold.nested.is_none() && left.is_some();
    if !ours || token.is_none() || given_back {
        return Ok(Renewal::NotHeld);
    }
    hold.dying.drain(..dead);
    hold.seen = answers.revision;
    extend(client, session, hold).await
}

async fn extend(client: &mut Client, session: &mut Session, hold: Hold) -> Answer<Renewal> {
    let Some(mut length) = client.keep_alive(session.lease).await? else { return Ok(Renewal::NotHeld) };
    if let Some(nested) = &hold.nested {
        let Some(inner) = client.keep_alive(nested.lease).await? else { return Ok(Renewal::NotHeld) };
        length = length.min(inner);
    }
    let fence = hold.fence();
    session.stage = Stage::Held(hold);
    Ok(Renewal::Renewed { ttl: ttl(length)?, fence })
}

/// Whether the token's hold is there, and how long its lease lasts yet, in etcd's whole seconds.
pub(super) async fn verify(client: &mut Client, session: &Session) -> Answer<Holding> {
    let Some(found) = find(client, session).await?.filter(Found::holds_token) else { return Ok(Holding::NotHeld) };
    let mut expires_in = None;
    for lease in [session.lease].into_iter().chain(found.nested.map(|nested| nested.lease)) {
        match holders::left(client, lease).await? {
            Left::For { left, .. } => expires_in = Some(expires_in.map_or(left, |other| left.min(other))),
            Left::Unknown => {}
            Left::Over => return Ok(Holding::NotHeld),
        }
    }
    Ok(Holding::Held { expires_in })
}

/// Gives a hold back.
pub(super) async fn release(client: &mut Client, session: &mut Session, scope: Scope) -> Answer<Release> {
    if matches!(session.stage, Stage::GivenBack) {
        // What is left to be done is to end the lease, which ends by itself too.
        let _ = client.revoke(session.lease).await;
        return Ok(Release::Released);
    }
    let own = match &session.stage {
        Stage::Held(hold) if hold.nested.is_none() => Some(hold.clone()),
        _ => None,
    };
    if let Some(hold) = own
        && let Some(released) = release_root(client, session, &hold, scope).await?
    {
        return Ok(released);
    }
    for _ in 0..TRIES {
        let Some(found) = find(client, session).await? else { return not_held(client, session).await };
        if !found.holds_token() {
            return Ok(Release::NotHeld);
        }
        let hold = found.hold();
        let released = match &found.nested {
            Some(nested) => release_nested(client, session, &found, &hold, nested).await?,
            None if scope == Scope::Tree || found.others.is_empty() => release_root(client, session, &hold, scope).await?,
            None => release_around(client, session, &found).await?,
        };
        if let Some(released) = released {
            return Ok(released);
        }
    }
    Err(failure::contended().into())
}

/// The token holds nothing, but something of what this process asked for may still come.
async fn not_held(client: &mut Client, session: &mut Session) -> Answer<Release> {
    if session.taking && !matches!(session.stage, Stage::Queued(_)) {
        // Either of them: which one was asked for is not known any more.
        for mode in [Mode::Exclusive, Mode::Shared] {
            leave(client, session, mode).await?;
        }
    }
    Ok(Release::NotHeld)
}

/// Gives back the hold that the lock was taken with, and the lock with it. `None` if something nested keeps the lock.
async fn release_root(client: &mut Client, session: &mut Session, hold: &Hold, scope: Scope) -> Answer<Option<Release>> {
    let inner = session.names.nested(session.lease);
    let mut compare = vec![ops::created_at(&hold.own, hold.created), ops::absent(&session.names.left(session.lease))];
    if scope == Scope::Hold {
        compare.push(ops::nothing_under(&inner));
    }
    free(client, session, hold, compare).await
}

/// Gives back a nested hold; the lock with it if it is the last one. `None` if something changed meanwhile.
async fn release_nested(
    client: &mut Client,
    session: &mut Session,
    found: &Found,
    hold: &Hold,
    nested: &Nested,
) -> Answer<Option<Release>> {
    let left = session.names.left(session.lease);
    let mut compare = vec![ops::created_at(&hold.own, hold.created), ops::created_at(&nested.name, nested.created)];
    if found.marked && found.others.is_empty() {
        compare.push(ops::nothing_newer_under(&session.names.nested(session.lease), found.seen));
        return free(client, session, hold, compare).await;
    }
    // Somebody must be left who keeps the lock: the outer hold, or at least one of the nested ones.
    match (found.marked, found.others.first()) {
        (true, Some(other)) => compare.push(ops::created_at(&other.name, other.created)),
        _ => compare.push(ops::absent(&left)),
    }
    let txn = TxnRequest { compare, success: vec![ops::delete(&nested.name)], failure: Vec::new() };
    if !Answers::of(client.txn(txn).await?)?.succeeded {
        return Ok(None);
    }
    session.stage = Stage::Asked { leased: false };
    // The hold is given back. A lease that nothing lies on ends by itself.
    let _ = client.revoke(nested.lease).await;
    Ok(Some(Release::StillHeld(found.holds.saturating_sub(1))))
}

/// Gives back the outer hold, while nested ones keep the lock: a mark says so. `None` if something changed meanwhile.
async fn release_around(client: &mut Client, session: &mut Session, found: &Found) -> Answer<Option<Release>> {
    let left = session.names.left(session.lease);
    let mut compare = vec![ops::created_at(&found.own, found.created), ops::absent(&left)];
    compare.extend(found.others.first().map(|other| ops::created_at(&other.name, other.created)));
    let txn = TxnRequest { compare, success: vec![ops::put(&left, "", session.lease)], failure: Vec::new() };
    let done = Answers::of(client.txn(txn).await?)?.succeeded;
    Ok(done.then(|| Release::StillHeld(found.holds.saturating_sub(1))))
}

/// Removes all of a hold if `compare` holds.
async fn free(client: &mut Client, session: &mut Session, hold: &Hold, compare: Vec<Compare>) -> Answer<Option<Release>> {
    let names = &session.names;
    let mut success =
        vec![ops::delete_under(&names.nested(session.lease)), ops::delete(&hold.own), ops::delete(&names.open_of(session.lease))];
    let dead = hold.dead();
    success.extend(dead[..dead.len().min(ops::MOST_OPS)].iter().map(|name| ops::delete(name)));
    let fence = ops::put(&names.last(), hold.created.to_string(), 0);
    let with_fence = |ops: &[RequestOp]| ops.iter().cloned().chain([fence]).collect();
    let txn = |success| TxnRequest { compare: compare.clone(), success, failure: Vec::new() };
    let answer = match client.txn(txn(with_fence(&success))).await {
        Err(Trouble::Full(_)) => client.txn(txn(success)).await?,
        answer => answer?,
    };
    let mut answers = Answers::of(answer)?;
    if !answers.succeeded {
        return Ok(None);
    }
    let inner = answers.deleted()?;
    session.stage = Stage::GivenBack;
    session.watches = None;
    // The lock is free already, which no failure from here on may hide. Leases that nothing lies on end by themselves.
    let _ = client.revoke(session.lease).await;
    for kv in inner.iter().filter(|kv| kv.lease != session.lease && kv.lease != 0) {
        let _ = client.revoke(kv.lease).await;
    }
    Ok(Some(Release::Released))
}

/// Takes back whatever of this process's own stands in the queue, or may still come to stand there.
pub(super) async fn leave(client: &mut Client, session: &mut Session, mode: Mode) -> Answer<()> {
    let (keys, lease) = match &session.inner {
        Some(inner) => (vec![inner.name.clone()], inner.lease),
        None => (vec![session.names.own(mode, session.lease), session.names.open_of(session.lease)], session.lease),
    };
    client.txn(ops::read(keys.iter().map(|key| ops::delete(key)).collect())).await?;
    client.revoke(lease).await?;
    session.watches = None;
    Ok(())
}
