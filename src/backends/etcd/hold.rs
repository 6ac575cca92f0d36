//! Keeps a hold, gives it back, and finds it again by its token.
//!
//! The code handles these interleavings:
//! - *The lease is alive, but the key was deleted from outside.* Extending the lease does not
//!   reveal that. A renewal reads the own key by a quorum, and then extends the lease; see
//!   [`super::acquire`] for the order.
//! - *A release arrives late*, when the lock has another holder. The release compares the own key's
//!   create revision.
//! - *The answer to a release is lost.* A repeated release finds no key, and returns "not held".
//!   The core interprets that.
//! - *Nested holds end or begin during a release.* Its transaction compares its assumptions. If
//!   they fail, it reads the lock again.
//! - *The store has no space left* (NOSPACE). A renewal and a release need none: they leave out
//!   their puts.

use std::time::Duration;

use super::{
    breaking,
    client::{EtcdClient, EtcdResult},
    clock,
    failure::{self, Trouble},
    history::{self, ReleaseWrites},
    inspect::{self, Remaining},
    messages::Compare,
    ops, permits, position, queue,
    record::{StoredRecord, last_fence},
    runs::RunKeys,
    session::{EtcdSession, HoldState, Nested, OwnHold, ttl},
};
use crate::{
    backends::queue::record::ContenderInfo,
    lock::{DRAIN_DELAY, Intent, Mode, Release, ReleaseInfo, Renewal, RunState, Scope},
};

/// All modes. The number of permits does not matter.
const MODES: [Mode; 3] = [Mode::Exclusive, Mode::Shared, Mode::Permits(1)];

/// A hold as the store has it.
pub(super) struct FoundHold {
    /// The hold of the token or of its owner, with the token's own nested hold if there is one.
    pub hold: OwnHold,
    pub mode: Mode,
    /// Whether the token belongs to the hold that the lock was taken with, not to a nested one.
    pub is_root: bool,
    /// How many holds the owner has.
    pub holds: u32,
    /// Whether the hold that the lock was taken with was released.
    marked: bool,
    /// The other nested holds.
    others: Vec<queue::NestedKey>,
    record: Option<StoredRecord>,
}

impl FoundHold {
    /// Returns whether the token's hold is there, and not only its owner's.
    fn holds_token(&self) -> bool {
        self.hold.nested.is_some() || self.is_root && !self.marked
    }
}

/// Finds the hold of the token's owner.
pub(super) async fn find(
    client: &mut EtcdClient,
    session: &EtcdSession,
) -> EtcdResult<Option<FoundHold>> {
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
    let Some((own, kv)) = found else {
        return Ok(None);
    };
    let Some(at) = look.find(own).filter(|at| look.queue.holds(*at)) else {
        return Ok(None);
    };
    let Some(info) = ContenderInfo::read(&kv.value)? else {
        return Ok(None);
    };
    let (mode, record) = (
        look.queue.all()[at].mode,
        look.record_of(&look.contenders[at]).cloned(),
    );
    let name = names.nested_hold(session.lease, &session.token.hold_text());
    let (mut nested, mut others, mut marked) = (None, Vec::new(), false);
    for inner in look.nested_in(session.lease) {
        if inner.is_mark() {
            marked = true;
        } else if inner.name == name {
            nested = Some(Nested {
                name: name.clone(),
                lease: inner.lease,
                created: inner.created,
            });
        } else {
            others.push(inner.clone());
        }
    }
    // An earlier attempt of this process, whose answer was lost, gave vanished holders no time to
    // stop. If the hold is a permit, other holders may have vanished just now.
    let unsure = session.taking && matches!(session.state, HoldState::Asked { .. })
        || matches!(mode, Mode::Permits(_));
    let delay = if unsure { DRAIN_DELAY } else { Duration::ZERO };
    let is_root = info
        .hold
        .is_some_and(|hold| hold == session.token.hold_text());
    let hold = OwnHold {
        own: own.clone(),
        created: kv.create_revision,
        seen: look.revision,
        nested,
        since_ms: record
            .as_ref()
            .and_then(|record| record.hold_record.since_ms),
        metadata: info.metadata,
        number: look.number_of(at).cloned(),
        dying: look.dying(mode),
        settled_at: clock::after(delay),
        runs: look.runs.clone(),
    };
    Ok(Some(FoundHold {
        hold,
        mode,
        is_root,
        holds: look.holds_of(session.lease),
        marked,
        others,
        record,
    }))
}

/// Extends the leases of a hold that is still there. A hold with a break mark is extended only so
/// that it can stop.
pub(super) async fn renew(
    client: &mut EtcdClient,
    session: &mut EtcdSession,
    intent: Intent,
) -> EtcdResult<Renewal> {
    let HoldState::Held(hold) = &session.state else {
        // Finding the hold reads it too.
        return match find(client, session).await?.filter(FoundHold::holds_token) {
            Some(found) => extend(client, session, found.hold, found.record, intent).await,
            None => Ok(Renewal::NotHeld),
        };
    };
    let mut hold = hold.clone();
    let token_name = hold
        .nested
        .as_ref()
        .map_or(&hold.own, |nested| &nested.name);
    let names = &session.names;
    let mut reads = vec![
        ops::peek(&hold.own),
        ops::peek(token_name),
        ops::peek(&names.released_mark(session.lease)),
        ops::get(&names.open_of(session.lease)),
    ];
    reads.extend(
        hold.number
            .iter()
            .map(|number| ops::peek(&names.number(number.number))),
    );
    let dead = hold.dead().len();
    let mut ops = reads.clone();
    if dead > 0 {
        ops.extend(
            hold.dead()
                .iter()
                .map(|record| history::archive(names, record)),
        );
        ops.extend(history::counts(names));
    }
    let (mut answers, buried) = match client.run(ops).await {
        // A renewal needs no space, and no right to write the history.
        Err(Trouble::Full(_)) if dead > 0 => (client.run(reads).await?, false),
        Err(Trouble::Refused(_)) if dead > 0 => {
            let forget = hold.dead().iter().map(history::forget);
            (
                client
                    .run(reads.into_iter().chain(forget).collect())
                    .await?,
                true,
            )
        }
        answer => (answer?, dead > 0),
    };
    let (own, token, left) = (answers.one()?, answers.one()?, answers.one()?);
    let record = answers.one()?.and_then(StoredRecord::read);
    let mut ours = own.is_some_and(|kv| kv.create_revision == hold.created);
    if let Some(number) = &hold.number {
        // Without this permit's key, other contenders count one permit too few.
        ours &= answers
            .one()?
            .is_some_and(|kv| kv.create_revision == number.created);
    }
    let was_released = hold.nested.is_none() && left.is_some();
    if !ours || token.is_none() || was_released {
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

async fn extend(
    client: &mut EtcdClient,
    session: &mut EtcdSession,
    hold: OwnHold,
    record: Option<StoredRecord>,
    intent: Intent,
) -> EtcdResult<Renewal> {
    let mark = record
        .as_ref()
        .and_then(|record| record.hold_record.mark.as_ref());
    if let (Some(mark), Intent::Extend(_)) = (mark, intent) {
        return Ok(Renewal::Broken(mark.clone()));
    }
    let Some(mut length) = client.keep_alive(session.lease).await? else {
        return Ok(Renewal::NotHeld);
    };
    if let Some(nested) = &hold.nested {
        let Some(inner) = client.keep_alive(nested.lease).await? else {
            return Ok(Renewal::NotHeld);
        };
        length = length.min(inner);
    }
    if let Some(record) = record.filter(|_| intent == Intent::Drain) {
        breaking::note_seen(client, &record).await;
    }
    let fence = hold.fence();
    session.state = HoldState::Held(hold);
    Ok(Renewal::Renewed {
        ttl: ttl(length)?,
        fence,
    })
}

/// Returns whether the token's hold is there, and the rest of its lease in etcd's whole seconds.
pub(super) async fn verify(client: &mut EtcdClient, session: &EtcdSession) -> EtcdResult<Renewal> {
    let Some(found) = find(client, session).await?.filter(FoundHold::holds_token) else {
        return Ok(Renewal::NotHeld);
    };
    let mut expires_in = None;
    for lease in [session.lease]
        .into_iter()
        .chain(found.hold.nested.map(|nested| nested.lease))
    {
        match inspect::remaining(client, lease).await? {
            Remaining::For { left, .. } => {
                expires_in = Some(expires_in.map_or(left, |other| left.min(other)));
            }
            Remaining::Unknown => {}
            Remaining::Over => return Ok(Renewal::NotHeld),
        }
    }
    Ok(Renewal::Kept { expires_in })
}

/// Gives a hold back.
pub(super) async fn release(
    client: &mut EtcdClient,
    session: &mut EtcdSession,
    info: &ReleaseInfo,
) -> EtcdResult<Release> {
    let scope = info.scope;
    if matches!(session.state, HoldState::Released) {
        // Only the lease is left to be revoked, and it also expires by itself.
        let _ = client.revoke(session.lease).await;
        return Ok(Release::Released);
    }
    let own = match &session.state {
        HoldState::Held(hold) if hold.nested.is_none() => Some(hold.clone()),
        _ => None,
    };
    if let Some(hold) = own
        && let Some(released) = release_root(client, session, &hold, info).await?
    {
        return Ok(released);
    }
    for _ in 0..ops::TRIES {
        let Some(found) = find(client, session).await? else {
            return not_held(client, session, info).await;
        };
        if !found.holds_token() {
            return Ok(Release::NotHeld);
        }
        let hold = &found.hold;
        let released = match &hold.nested {
            Some(nested) => release_nested(client, session, &found, nested, info).await?,
            None if scope == Scope::Tree || found.others.is_empty() => {
                release_root(client, session, hold, info).await?
            }
            None => release_around(client, session, &found, info).await?,
        };
        if let Some(released) = released {
            return Ok(released);
        }
    }
    Err(failure::contended().into())
}

/// Handles a token that holds nothing, while an earlier request of this process may still be
/// served.
async fn not_held(
    client: &mut EtcdClient,
    session: &mut EtcdSession,
    info: &ReleaseInfo,
) -> EtcdResult<Release> {
    remember_expired(client, session).await?;
    if session.taking && !matches!(session.state, HoldState::Queued(_)) {
        // Every mode is tried: the mode of the earlier request is not known any more.
        for mode in MODES {
            position::leave(client, session, mode).await?;
        }
        if info.run_state == Some(RunState::Cancelled) {
            // The earlier request may have been granted the lock after the look. From here on it
            // can't be granted.
            RunKeys::undo(client, &session.names, &session.token.hold_text()).await?;
        }
    }
    Ok(Release::NotHeld)
}

/// Moves an expired hold's data from its record to the history, before the record is removed.
async fn remember_expired(client: &mut EtcdClient, session: &EtcdSession) -> EtcdResult<()> {
    if !matches!(&session.state, HoldState::Held(hold) if hold.nested.is_none()) {
        return Ok(());
    }
    let record = client
        .run(vec![ops::get(&session.names.open_of(session.lease))])
        .await?
        .one()?
        .and_then(StoredRecord::read);
    let Some(record) = record else { return Ok(()) };
    match client
        .run(vec![history::archive(&session.names, &record)])
        .await
    {
        // A release needs neither space nor rights to the history.
        Ok(_) | Err(Trouble::Full(_) | Trouble::Refused(_)) => Ok(()),
        Err(trouble) => Err(trouble),
    }
}

/// Gives back the hold that the lock was taken with, and the lock too. Returns `None` if a nested
/// hold keeps the lock.
async fn release_root(
    client: &mut EtcdClient,
    session: &mut EtcdSession,
    hold: &OwnHold,
    info: &ReleaseInfo,
) -> EtcdResult<Option<Release>> {
    let inner = session.names.nested(session.lease);
    let mut compare = vec![
        ops::created_at(&hold.own, hold.created),
        ops::absent(&session.names.released_mark(session.lease)),
    ];
    if info.scope == Scope::Hold {
        compare.push(ops::nothing_under(&inner));
    }
    free(client, session, hold, compare, info).await
}

/// Gives back a nested hold, and the lock too if the hold is the last one. Returns `None` if
/// something changed meanwhile.
async fn release_nested(
    client: &mut EtcdClient,
    session: &mut EtcdSession,
    found: &FoundHold,
    nested: &Nested,
    info: &ReleaseInfo,
) -> EtcdResult<Option<Release>> {
    let (hold, left) = (&found.hold, session.names.released_mark(session.lease));
    let mut compare = vec![
        ops::created_at(&hold.own, hold.created),
        ops::created_at(&nested.name, nested.created),
    ];
    if found.marked && found.others.is_empty() {
        compare.push(ops::nothing_newer_under(
            &session.names.nested(session.lease),
            found.hold.seen,
        ));
        return free(client, session, hold, compare, info).await;
    }
    // One hold must remain that keeps the lock: the outer one, or at least one of the nested ones.
    match (found.marked, found.others.first()) {
        (true, Some(other)) => compare.push(ops::created_at(&other.name, other.created)),
        _ => compare.push(ops::absent(&left)),
    }
    if !client
        .run_if(compare, vec![ops::delete(&nested.name)])
        .await?
        .succeeded
    {
        return Ok(None);
    }
    session.state = HoldState::Asked { leased: false };
    // The hold is given back. A lease without keys expires by itself.
    let _ = client.revoke(nested.lease).await;
    Ok(Some(Release::StillHeld(found.holds.saturating_sub(1))))
}

/// Gives back the outer hold while nested ones keep the lock, and puts a mark. Returns `None` if
/// something changed meanwhile.
async fn release_around(
    client: &mut EtcdClient,
    session: &mut EtcdSession,
    found: &FoundHold,
    info: &ReleaseInfo,
) -> EtcdResult<Option<Release>> {
    let left = session.names.released_mark(session.lease);
    let mut compare = vec![
        ops::created_at(&found.hold.own, found.hold.created),
        ops::absent(&left),
    ];
    compare.extend(
        found
            .others
            .first()
            .map(|other| ops::created_at(&other.name, other.created)),
    );
    let mut success = vec![ops::put(&left, "", session.lease)];
    success.extend(
        found
            .hold
            .runs
            .end(&session.names, found.hold.fence(), info.run_state),
    );
    let done = client.run_if(compare, success).await?.succeeded;
    Ok(done.then(|| Release::StillHeld(found.holds.saturating_sub(1))))
}

/// Removes all keys of a hold if `compare` holds, and records its outcome.
async fn free(
    client: &mut EtcdClient,
    session: &mut EtcdSession,
    hold: &OwnHold,
    compare: Vec<Compare>,
    info: &ReleaseInfo,
) -> EtcdResult<Option<Release>> {
    let names = &session.names;
    let mut gone = vec![
        ops::delete_under(&names.nested(session.lease)),
        ops::delete(&hold.own),
        ops::delete(&names.open_of(session.lease)),
    ];
    gone.extend(
        hold.number
            .as_ref()
            .map(|number| permits::release(names, number)),
    );
    let dead = hold.dead();
    let mut history: Vec<_> = dead
        .iter()
        .map(|record| history::archive(names, record))
        .collect();
    history.push(ops::put(
        &names.last(),
        last_fence(hold.fence(), dead.len() == hold.dying.len()),
        0,
    ));
    // The outcome of a nested hold does not concern the outer run.
    let runs = hold.runs.end(
        names,
        hold.fence(),
        info.run_state.filter(|_| hold.nested.is_none()),
    );
    let past = history::history_entry(hold, info);
    let Some(freed) = history::end(
        client,
        names,
        compare,
        gone,
        ReleaseWrites { runs, history },
        past.as_ref(),
    )
    .await?
    else {
        return Ok(None);
    };
    session.state = HoldState::Released;
    session.watches = None;
    // The lock is free already, and no later failure may hide that. Leases without keys expire by
    // themselves.
    let _ = client.revoke(session.lease).await;
    for lease in freed.leases.iter().filter(|lease| **lease != session.lease) {
        let _ = client.revoke(*lease).await;
    }
    let unused = hold.runs.unused_leases(
        hold.fence(),
        info.run_state.filter(|_| hold.nested.is_none()),
    );
    for lease in unused {
        let _ = client.revoke(lease).await;
    }
    history::trim(client, &session.names, freed.runs).await;
    Ok(Some(Release::Released))
}
