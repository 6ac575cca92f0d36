//! Keeping a hold, giving it back, and finding it again by its token.
//!
//! The interleavings that this is written against:
//! - *The lease lives on, and the key is gone* (deleted from outside): a keep-alive says nothing of that. A renewal reads
//!   the own key, by a quorum, and keeps the lease alive then; see [`super::acquire`] for the order.
//! - *A release arrives late*, when the lock has another holder: it compares the create revision of the own key.
//! - *The answer to a release is lost*: asked again the key is gone, which is "not held". The core knows what to make of it.
//! - *Nested holds end or begin during a release*: what it assumes of them is compared in its transaction, and looked at
//!   anew if it was wrong.
//! - *There is no space left* (NOSPACE): a renewal and a release don't need any, and leave out then what they would put.

use std::time::Duration;

use super::{
    breaking,
    client::{Answer, Client},
    failure::{self, Trouble},
    history::{self, Outcome},
    look::{self, Left},
    lookout,
    messages::Compare,
    ops, permits, queue,
    record::StoredRecord,
    session::{Hold, Nested, Session, Standing, ttl},
    waiting,
};
use crate::{
    backends::queue::record::Said,
    lock::{Intent, Mode, Release, ReleaseInfo, Renewal, Scope},
};

/// All that there are; of permits, whichever number.
const MODES: [Mode; 3] = [Mode::Exclusive, Mode::Shared, Mode::Permits(1)];
/// How often nested holds may change during a release before it is given up for now.
pub(super) const TRIES: u32 = 4;

/// A hold as the store knows it.
pub(super) struct Found {
    /// That of the token, or of its owner: with the token's own nested hold, if there is one.
    pub hold: Hold,
    pub mode: Mode,
    /// Whether the token is of the hold that the lock was taken with, not of a nested one.
    pub is_root: bool,
    /// How many holds the owner has.
    pub holds: u32,
    /// Whether the hold that the lock was taken with was released.
    marked: bool,
    /// The other nested holds.
    others: Vec<queue::Inner>,
    record: Option<StoredRecord>,
}

impl Found {
    /// Whether the token's hold, and not only its owner's, is there.
    fn holds_token(&self) -> bool {
        self.hold.nested.is_some() || self.is_root && !self.marked
    }
}

/// Looks for what the token's owner holds.
pub(super) async fn find(client: &mut Client, session: &Session) -> Answer<Option<Found>> {
    let names = &session.names;
    let mine = MODES.map(|mode| names.own(mode, session.lease));
    let mut ops = ops::look(names, 1);
    ops.extend(mine.iter().map(|own| ops::get(own)));
    let mut answers = client.run(ops).await?;
    let look = answers.look(names)?;
    let mut found = None;
    for own in &mine {
        found = answers.one()?.map(|kv| (own, kv)).or(found);
    }
    let Some((own, kv)) = found else { return Ok(None) };
    let Some(at) = look.find(own).filter(|at| look.queue.holds(*at)) else { return Ok(None) };
    let Some(said) = Said::read(&kv.value)? else { return Ok(None) };
    let (mode, record) = (look.queue.all()[at].mode, look.record_of(&look.contenders[at]).cloned());
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
    // An attempt of this process, whose answer was lost, gave vanished holders no time to stop. Next to a permit, others may have vanished
    // just now.
    let unsure = session.taking && matches!(session.stage, Standing::Asked { .. }) || matches!(mode, Mode::Permits(_));
    let dying = if unsure { Vec::new() } else { look.dying(mode) };
    let is_root = said.hold.is_some_and(|hold| hold == session.token.hold_text());
    let hold = Hold {
        own: own.clone(),
        created: kv.create_revision,
        seen: look.revision,
        nested,
        since_ms: record.as_ref().and_then(|record| record.says.since_ms),
        metadata: said.metadata,
        number: look.number_of(at).cloned(),
        dying,
        settled_at: waiting::after(Duration::ZERO),
        runs: look.runs.clone(),
    };
    Ok(Some(Found { hold, mode, is_root, holds: look.holds_of(session.lease), marked, others, record }))
}

/// Extends the leases of a hold that is still there; of one that is marked to be broken only so that it can stop.
pub(super) async fn renew(client: &mut Client, session: &mut Session, intent: Intent) -> Answer<Renewal> {
    let Standing::Held(hold) = &session.stage else {
        // To look for it is to read it.
        return match find(client, session).await?.filter(Found::holds_token) {
            Some(found) => extend(client, session, found.hold, found.record, intent).await,
            None => Ok(Renewal::NotHeld),
        };
    };
    let mut hold = hold.clone();
    let token_name = hold.nested.as_ref().map_or(&hold.own, |nested| &nested.name);
    let names = &session.names;
    let mut reads =
        vec![ops::peek(&hold.own), ops::peek(token_name), ops::peek(&names.left(session.lease)), ops::get(&names.open_of(session.lease))];
    reads.extend(hold.number.iter().map(|number| ops::peek(&names.number(number.number))));
    let dead = hold.dead().len();
    let mut ops = reads.clone();
    if dead > 0 {
        ops.extend(hold.dead().iter().map(|record| history::bury(names, record)));
        ops.extend(history::counts(names));
    }
    let (mut answers, buried) = match client.run(ops).await {
        // A renewal needs no space, and no right to the history.
        Err(Trouble::Full(_)) if dead > 0 => (client.run(reads).await?, false),
        Err(Trouble::Refused(_)) if dead > 0 => {
            let forget = hold.dead().iter().map(history::forget);
            (client.run(reads.into_iter().chain(forget).collect()).await?, true)
        }
        answer => (answer?, dead > 0),
    };
    let (own, token, left) = (answers.one()?, answers.one()?, answers.one()?);
    let record = answers.one()?.and_then(StoredRecord::read);
    let mut ours = own.is_some_and(|kv| kv.create_revision == hold.created);
    if let Some(number) = &hold.number {
        // Without its number others count one less than there are.
        ours &= answers.one()?.is_some_and(|kv| kv.create_revision == number.created);
    }
    let given_back = hold.nested.is_none() && left.is_some();
    if !ours || token.is_none() || given_back {
        return Ok(Renewal::NotHeld);
    }
    hold.seen = answers.revision;
    if buried {
        hold.dying.drain(..dead);
    }
    let renewal = extend(client, session, hold, record, intent).await?;
    if buried {
        history::trim(client, &session.names, history::counted(&mut answers)).await;
    }
    Ok(renewal)
}

async fn extend(client: &mut Client, session: &mut Session, hold: Hold, record: Option<StoredRecord>, intent: Intent) -> Answer<Renewal> {
    let mark = record.as_ref().and_then(|record| record.says.mark.as_ref());
    if let (Some(mark), Intent::Extend(_)) = (mark, intent) {
        return Ok(Renewal::Broken(mark.clone()));
    }
    let Some(mut length) = client.keep_alive(session.lease).await? else { return Ok(Renewal::NotHeld) };
    if let Some(nested) = &hold.nested {
        let Some(inner) = client.keep_alive(nested.lease).await? else { return Ok(Renewal::NotHeld) };
        length = length.min(inner);
    }
    if let Some(record) = record.filter(|_| intent == Intent::Drain) {
        breaking::note_seen(client, &record).await;
    }
    let fence = hold.fence();
    session.stage = Standing::Held(hold);
    Ok(Renewal::Renewed { ttl: ttl(length)?, fence })
}

/// Whether the token's hold is there, and how long its lease lasts yet, in etcd's whole seconds.
pub(super) async fn verify(client: &mut Client, session: &Session) -> Answer<Renewal> {
    let Some(found) = find(client, session).await?.filter(Found::holds_token) else { return Ok(Renewal::NotHeld) };
    let mut expires_in = None;
    for lease in [session.lease].into_iter().chain(found.hold.nested.map(|nested| nested.lease)) {
        match look::left(client, lease).await? {
            Left::For { left, .. } => expires_in = Some(expires_in.map_or(left, |other| left.min(other))),
            Left::Unknown => {}
            Left::Over => return Ok(Renewal::NotHeld),
        }
    }
    Ok(Renewal::Kept { expires_in })
}

/// Gives a hold back.
pub(super) async fn release(client: &mut Client, session: &mut Session, info: &ReleaseInfo) -> Answer<Release> {
    let scope = info.scope;
    if matches!(session.stage, Standing::GivenBack) {
        // What is left to be done is to end the lease, which ends by itself too.
        let _ = client.revoke(session.lease).await;
        return Ok(Release::Released);
    }
    let own = match &session.stage {
        Standing::Held(hold) if hold.nested.is_none() => Some(hold.clone()),
        _ => None,
    };
    if let Some(hold) = own
        && let Some(released) = release_root(client, session, &hold, info).await?
    {
        return Ok(released);
    }
    for _ in 0..TRIES {
        let Some(found) = find(client, session).await? else { return not_held(client, session).await };
        if !found.holds_token() {
            return Ok(Release::NotHeld);
        }
        let hold = &found.hold;
        let released = match &hold.nested {
            Some(nested) => release_nested(client, session, &found, nested, info).await?,
            None if scope == Scope::Tree || found.others.is_empty() => release_root(client, session, hold, info).await?,
            None => release_around(client, session, &found, info).await?,
        };
        if let Some(released) = released {
            return Ok(released);
        }
    }
    Err(failure::contended().into())
}

/// The token holds nothing, but something of what this process asked for may still come.
async fn not_held(client: &mut Client, session: &mut Session) -> Answer<Release> {
    remember_expired(client, session).await?;
    if session.taking && !matches!(session.stage, Standing::Queued(_)) {
        // Either of them: which one was asked for is not known any more.
        for mode in MODES {
            leave(client, session, mode).await?;
        }
    }
    Ok(Release::NotHeld)
}

/// The lease ended before the hold was given back: what is known of it goes from its record to the history, before the record is removed.
async fn remember_expired(client: &mut Client, session: &Session) -> Answer<()> {
    if !matches!(&session.stage, Standing::Held(hold) if hold.nested.is_none()) {
        return Ok(());
    }
    let record = client.run(vec![ops::get(&session.names.open_of(session.lease))]).await?.one()?.and_then(StoredRecord::read);
    let Some(record) = record else { return Ok(()) };
    match client.run(vec![history::bury(&session.names, &record)]).await {
        // To give back takes neither space nor rights to the history.
        Ok(_) | Err(Trouble::Full(_) | Trouble::Refused(_)) => Ok(()),
        Err(trouble) => Err(trouble),
    }
}

/// Gives back the hold that the lock was taken with, and the lock with it. `None` if something nested keeps the lock.
async fn release_root(client: &mut Client, session: &mut Session, hold: &Hold, info: &ReleaseInfo) -> Answer<Option<Release>> {
    let inner = session.names.nested(session.lease);
    let mut compare = vec![ops::created_at(&hold.own, hold.created), ops::absent(&session.names.left(session.lease))];
    if info.scope == Scope::Hold {
        compare.push(ops::nothing_under(&inner));
    }
    free(client, session, hold, compare, info).await
}

/// Gives back a nested hold; the lock with it if it is the last one. `None` if something changed meanwhile.
async fn release_nested(
    client: &mut Client,
    session: &mut Session,
    found: &Found,
    nested: &Nested,
    info: &ReleaseInfo,
) -> Answer<Option<Release>> {
    let (hold, left) = (&found.hold, session.names.left(session.lease));
    let mut compare = vec![ops::created_at(&hold.own, hold.created), ops::created_at(&nested.name, nested.created)];
    if found.marked && found.others.is_empty() {
        compare.push(ops::nothing_newer_under(&session.names.nested(session.lease), found.hold.seen));
        return free(client, session, hold, compare, info).await;
    }
    // One hold must be left that keeps the lock: the outer one, or at least one of the nested ones.
    match (found.marked, found.others.first()) {
        (true, Some(other)) => compare.push(ops::created_at(&other.name, other.created)),
        _ => compare.push(ops::absent(&left)),
    }
    if !client.run_if(compare, vec![ops::delete(&nested.name)]).await?.succeeded {
        return Ok(None);
    }
    session.stage = Standing::Asked { leased: false };
    // The hold is given back. A lease that nothing lies on ends by itself.
    let _ = client.revoke(nested.lease).await;
    Ok(Some(Release::StillHeld(found.holds.saturating_sub(1))))
}

/// Gives back the outer hold, while nested ones keep the lock: a mark says so. `None` if something changed meanwhile.
async fn release_around(client: &mut Client, session: &mut Session, found: &Found, info: &ReleaseInfo) -> Answer<Option<Release>> {
    let left = session.names.left(session.lease);
    let mut compare = vec![ops::created_at(&found.hold.own, found.hold.created), ops::absent(&left)];
    compare.extend(found.others.first().map(|other| ops::created_at(&other.name, other.created)));
    let mut success = vec![ops::put(&left, "", session.lease)];
    success.extend(found.hold.runs.end(&session.names, found.hold.fence(), info.run_state));
    let done = client.run_if(compare, success).await?.succeeded;
    Ok(done.then(|| Release::StillHeld(found.holds.saturating_sub(1))))
}

/// Removes all of a hold if `compare` holds, and remembers how it ended.
async fn free(
    client: &mut Client,
    session: &mut Session,
    hold: &Hold,
    compare: Vec<Compare>,
    info: &ReleaseInfo,
) -> Answer<Option<Release>> {
    let names = &session.names;
    let mut gone =
        vec![ops::delete_under(&names.nested(session.lease)), ops::delete(&hold.own), ops::delete(&names.open_of(session.lease))];
    gone.extend(hold.number.as_ref().map(|number| permits::give_back(names, number)));
    let mut history: Vec<_> = hold.dead().iter().map(|record| history::bury(names, record)).collect();
    history.push(ops::put(&names.last(), hold.created.to_string(), 0));
    // The outcome of a nested hold is nothing to the run around it.
    let runs = hold.runs.end(names, hold.fence(), info.run_state.filter(|_| hold.nested.is_none()));
    let past = history::past(hold, info);
    let Some(freed) = history::end(client, names, compare, gone, Outcome { runs, history }, past.as_ref()).await? else { return Ok(None) };
    session.stage = Standing::GivenBack;
    session.watches = None;
    // The lock is free already, which no failure from here on may hide. Leases that nothing lies on end by themselves.
    let _ = client.revoke(session.lease).await;
    for lease in freed.leases.iter().filter(|lease| **lease != session.lease) {
        let _ = client.revoke(*lease).await;
    }
    history::trim(client, &session.names, freed.runs).await;
    Ok(Some(Release::Released))
}

/// Takes back whatever of this process's own stands in the queue, or may still come to stand there.
pub(super) async fn leave(client: &mut Client, session: &mut Session, mode: Mode) -> Answer<()> {
    let (keys, lease) = match &session.inner {
        Some(inner) => (vec![inner.name.clone()], inner.lease),
        None => (vec![session.names.own(mode, session.lease), session.names.open_of(session.lease)], session.lease),
    };
    client.run(keys.iter().map(|key| ops::delete(key)).collect()).await?;
    client.revoke(lease).await?;
    let lookout = session.lookout();
    if let Standing::Queued(queued) = &mut session.stage {
        lookout::retire(client, queued, lookout).await;
    }
    session.watches = None;
    Ok(())
}
