//! A place in the queue: taking it, and what it answers from one look at the queue to the next.

use tokio::time::Instant;

use super::{
    acquire::{declined, told},
    client::{Answer, Client},
    failure, hold,
    lookout::Lookout,
    names::Names,
    ops::{self, Answers},
    queue::{Before, Look},
    session::{Queued, Session, Stage},
    starts::Leases,
    waiting,
};
use crate::lock::{Attempt, Busy, Mode, Request, Ttl};

/// How often a place in the queue is only checked before the whole queue is read again, to tell the holders.
const CHECKS: u32 = 5;

/// It is not our turn: a waiter stays in the queue, on a lease that was granted now or is alive until then.
pub(super) async fn behind(
    client: &mut Client,
    session: &mut Session,
    request: &Request,
    (look, place, own): (&Look, usize, String),
    (granted, stood): (Option<Ttl>, Option<Stood>),
    leases: Option<Leases>,
) -> Answer<Attempt> {
    if let Some(blocker) = look.blocker(request.mode, place).filter(|blocker| blocker.lease == 0) {
        return Err(failure::no_end(&blocker.name).into());
    }
    if !request.waiting {
        return declined(client, session, request, look, leases).await;
    }
    if let Some(leases) = leases {
        leases.end(client).await;
    }
    let before = look.before(&session.names, request.mode, place);
    let busy = Busy { position: Some(look.position(place)), ..told(client, session, request.mode, look).await? };
    let ttl = granted.unwrap_or(request.ttl);
    let lookout = Lookout::seen(look.looked_after);
    let stood = stood.filter(|_| granted.is_none());
    let alive_until = waiting::fresh_until(granted, false);
    let stood = stood.unwrap_or(Stood { alive_until, called: false, unanswered: false, lookout });
    let (created, seen) = (look.contenders[place].created, look.revision);
    let permits = matches!(request.mode, Mode::Permits(_)).then_some(look.numbers.len());
    // What a reader or a writer in front of one that wants a permit does is seen by the first one behind it only.
    let checks = if permits.is_some() && look.blocker(request.mode, place).is_some() { u32::MAX } else { 0 };
    let Stood { alive_until, called, unanswered, lookout } = stood;
    let queued = Queued { own, created, before, permits, seen, busy: busy.clone(), checks, ttl, alive_until, called, unanswered, lookout };
    session.stage = Stage::Queued(queued);
    Ok(Attempt::Busy(busy))
}

/// What stays of a place in the queue from one look to the next.
pub(super) struct Stood {
    alive_until: Instant,
    called: bool,
    unanswered: bool,
    lookout: Lookout,
}

impl Stood {
    pub(super) fn of(queued: &Queued) -> Self {
        Self { alive_until: queued.alive_until, called: queued.called, unanswered: queued.unanswered, lookout: queued.lookout }
    }
}

/// A waiter that has its turn no longer looks after the queue. Its command need not wait for that.
pub(super) fn retire(client: &Client, session: &Session) {
    if let Stage::Queued(queued) = &session.stage
        && queued.lookout.is_own()
    {
        client.revoke_meanwhile(session.lookout());
    }
}

/// What a place in the queue answers without reading all of it; `None` if something happened.
pub(super) async fn still_queued(client: &mut Client, names: &Names, queued: &mut Queued, watched: bool) -> Answer<Option<Busy>> {
    // The farther behind, the less is gained by knowing by how much.
    let checks = CHECKS.max(queued.busy.position.unwrap_or_default() / 8);
    if queued.checks >= checks || queued.busy.position == Some(1) {
        return Ok(None);
    }
    queued.checks += 1;
    if watched && !waiting::is_past(queued.alive_until) {
        // It would have been told, by a member that has answered not long ago.
        return Ok(Some(queued.busy.clone()));
    }
    let Before { key, record, .. } = &queued.before;
    let keys: Vec<_> = [&queued.own].into_iter().chain(key).chain(record).collect();
    let mut ops: Vec<_> = keys.iter().map(|key| ops::peek(key)).collect();
    ops.push(ops::count(&names.numbers()));
    let mut answers = Answers::of(client.txn(ops::read(ops)).await?)?;
    let mut unchanged = true;
    for _ in keys {
        // None of them was put since, the record neither.
        unchanged &= answers.one()?.is_some_and(|kv| kv.mod_revision <= queued.seen);
    }
    let permits = answers.last_count();
    unchanged &= queued.permits.is_none_or(|before| before == permits);
    if unchanged {
        queued.seen = answers.revision;
    }
    Ok(unchanged.then(|| queued.busy.clone()))
}

/// Leaves nothing of ours behind. Without the lease no key is put any more.
pub(super) async fn go(client: &mut Client, session: &mut Session, request: &Request, look: &Look) -> Answer<()> {
    if look.contenders.iter().any(|one| one.lease == session.lease) {
        hold::leave(client, session, request.mode).await
    } else {
        client.revoke(session.lease).await
    }
}
