//! Taking the lock: the lease, the key in the queue, and whether it is our turn.
//!
//! The interleavings that this is written against:
//! - *The answer to the grant of the lease is lost.* Its id follows from the token: asked again, "exists already" is as good.
//! - *The answer to the key's transaction is lost.* Asked again it changes nothing, and tells our place.
//! - *That transaction arrives after we gave up.* Giving up revokes the lease, without which no key is put.
//! - *The lease ends while we wait.* The next transaction says so, and we queue up anew, last.
//! - *Our turn comes.* That is no renewal: the place is read first, by a quorum, and then the lease kept alive, in this
//!   order. A keep-alive alone can be answered by a leader that was frozen and deposed; after a read through the same
//!   member it can't have been deposed before the read, and a new leader extends all leases when it takes over.
//! - *The one before us vanished* (its lease ended or was revoked, its key deleted) and may still be stopping what it
//!   ran: it left the record that whoever leaves by themselves removes, and we ask for time ([`SETTLE`]). The record stays
//!   until that time is over, so that one who comes in between asks for it too.

use std::time::Duration;

use super::{
    client::{Answer, Client},
    failure::{self, Trouble},
    history,
    holders::{self, position},
    messages::{RequestOp, TxnRequest},
    ops::{self, Answers},
    queue::{Contender, Look},
    record::{Held, Record},
    session::{Hold, Inner, Nested, Queued, Session, Stage, seconds, ttl},
    value::Value,
};
use crate::lock::{Attempt, Busy, Error, Grant, Kind, Mode, Request, Result, Ttl};

/// What a holder that vanished is left to stop what it ran.
pub(super) const SETTLE: Duration = Duration::from_millis(500);
/// So many times a place in the queue is only checked before all of the queue is read again, to tell who holds.
const CHECKS: u32 = 5;

/// Takes the lock for a token of its own.
pub(super) async fn take(client: &mut Client, session: &mut Session, request: &Request) -> Answer<Attempt> {
    if let Stage::Queued(queued) = &mut session.stage
        && let Some(busy) = still_queued(client, queued).await?
    {
        return Ok(Attempt::Busy(busy));
    }
    let own = session.names.own(request.mode, session.lease);
    let mut granted = match session.stage {
        Stage::Queued(_) | Stage::Held(_) | Stage::Asked { leased: true, .. } => None,
        _ => grant(client, session, request).await?,
    };
    let was_alive = if let Stage::Queued(queued) = &session.stage { Some(queued.alive_until) } else { None };
    // Who stands there already needs no space in a store that is full.
    let stands = match session.stage {
        Stage::Queued(_) | Stage::Held(_) => Some(turn(client, session, request).await?).filter(|look| look.find(&own).is_some()),
        _ => None,
    };
    let asked = match stands {
        Some(look) => Ok(look),
        None => put(client, session, request, &own).await,
    };
    let look = match asked {
        Err(Trouble::NoLease) => {
            session.stage = Stage::Asked { leased: false };
            granted = grant(client, session, request).await?;
            put(client, session, request, &own).await?
        }
        answer => answer?,
    };
    let Some(place) = look.find(&own) else { return busy(client, session, request, &look).await };
    if let Some(blocker) = look.blocker(request.mode, place) {
        if blocker.lease == 0 {
            return Err(failure::no_end(&blocker.name).into());
        }
        if !request.waiting {
            return busy(client, session, request, &look).await;
        }
        let before = blocker.name.clone();
        let busy = Busy { position: Some(position(&look, place)), ..told(client, session, &look).await? };
        let ttl = granted.unwrap_or(request.ttl);
        let alive_until = was_alive.filter(|_| granted.is_none()).unwrap_or_else(|| super::waiting::fresh_until(granted));
        let (created, seen) = (look.contenders[place].created, look.revision);
        session.stage = Stage::Queued(Queued { own, created, before, seen, busy: busy.clone(), checks: 0, ttl, alive_until });
        return Ok(Attempt::Busy(busy));
    }
    let held = match look.record_of(&look.contenders[place]).and_then(|record| record.held.clone()) {
        Some(held) => held,
        None => note_grant(client, session, request, &look.contenders[place]).await?,
    };
    let ttl = match granted {
        Some(ttl) => ttl,
        None => confirm(client, session).await?,
    };
    let (created, dying) = (look.contenders[place].created, look.dying(request.mode));
    let grant = Grant {
        fence: look.contenders[place].fence(),
        ttl,
        holds: look.holds(session.lease),
        settle: if dying.is_empty() { Duration::ZERO } else { SETTLE },
        session: None,
    };
    history::bury_old(client, &session.names, &look).await;
    let settled_at = super::waiting::after(SETTLE);
    let (since_ms, metadata) = (held.since_ms, held.metadata);
    let hold = Hold { own, created, seen: look.revision, nested: None, since_ms, metadata, dying, settled_at };
    session.stage = Stage::Held(hold);
    Ok(Attempt::Granted(grant))
}

/// Grants the lease; `None` if it was there already, from a request whose answer was lost.
async fn grant(client: &mut Client, session: &mut Session, request: &Request) -> Answer<Option<Ttl>> {
    let granted = match client.grant(session.lease, seconds(request.ttl)).await {
        Ok(length) => Some(ttl(length)?),
        Err(Trouble::LeaseExists) => None,
        Err(trouble) => return Err(trouble),
    };
    session.stage = Stage::Asked { leased: true };
    Ok(granted)
}

/// Keeps the lease alive that the lock is to be held with; returns its length.
async fn confirm(client: &mut Client, session: &mut Session) -> Answer<Ttl> {
    let Some(length) = client.keep_alive(session.lease).await? else {
        session.stage = Stage::Asked { leased: false };
        return Err(failure::lease_gone().into());
    };
    Ok(ttl(length)?)
}

/// Puts the key, if it isn't there: one who waits at the end of the queue, one who doesn't only if nobody is before it.
async fn put(client: &mut Client, session: &Session, request: &Request, own: &str) -> Answer<Look> {
    let names = &session.names;
    let value = Value::of(request)?;
    let record = |says: Vec<u8>| ops::put(&names.open_of(session.lease), says, 0);
    let held = record(Held::of(request, None).write());
    let puts = |record: RequestOp| {
        let mut ops = vec![ops::put(own, value.clone(), session.lease), record];
        ops.extend(ops::look(names, ops::SOME));
        ops
    };
    let free = ops::free_for(names, request.mode);
    // Readers come beside others, and one of those may be ourselves.
    let mut compare = vec![ops::absent(own)];
    let success = if request.waiting {
        puts(ops::when(free, vec![held.clone()], vec![record(Record::waiting(request.mode).into())]))
    } else {
        compare.extend(free);
        puts(held.clone())
    };
    let look = looked(client, session, TxnRequest { compare, success, failure: ops::look(names, ops::SOME) }).await?;
    let nobody = || look.find(own).is_none() && look.blocker(request.mode, look.contenders.len()).is_none();
    if request.waiting || !nobody() {
        return Ok(look);
    }
    // What is in the folder has no part in the lock. Nobody who has may have come since.
    let compare = vec![ops::absent(own), ops::nothing_newer_under(&names.folder, look.revision)];
    looked(client, session, TxnRequest { compare, success: puts(held), failure: ops::look(names, ops::SOME) }).await
}

/// Looks whether it is our turn; in the same step our record becomes that of a hold if it is.
async fn turn(client: &mut Client, session: &Session, request: &Request) -> Answer<Look> {
    let names = &session.names;
    let look = ops::look(names, ops::SOME);
    let mut txn = ops::read(look.clone());
    if let Stage::Queued(queued) = &session.stage {
        let held = ops::put(&names.open_of(session.lease), Held::of(request, Some(queued.created)).write(), 0);
        let granted = ops::when_first(names, request.mode, queued.created, held);
        let compare = vec![ops::created_at(&queued.own, queued.created)];
        txn = TxnRequest { compare, success: [look.clone(), vec![granted]].concat(), failure: look.clone() };
    }
    let answer = match client.txn(txn).await {
        // A place in the queue needs no space.
        Err(Trouble::Full(_)) => client.txn(ops::read(look)).await,
        answer => answer,
    };
    Ok(Answers::of(answer?)?.look(names)?)
}

/// Writes a hold's record that the granting step left out: something else lies in the folder, or the store is full. Nobody
/// can come before a key that nobody is before.
async fn note_grant(client: &mut Client, session: &Session, request: &Request, own: &Contender) -> Answer<Held> {
    let held = Held::of(request, Some(own.created));
    let put = ops::put(&session.names.open_of(session.lease), held.write(), 0);
    let txn = TxnRequest { compare: vec![ops::created_at(&own.name, own.created)], success: vec![put], failure: Vec::new() };
    match client.txn(txn).await {
        // No history is worth a lock.
        Ok(_) | Err(Trouble::Full(_) | Trouble::Refused(_)) => Ok(held),
        Err(trouble) => Err(trouble),
    }
}

async fn looked(client: &mut Client, session: &Session, txn: TxnRequest) -> Answer<Look> {
    let mut answers = Answers::of(client.txn(txn).await?)?;
    if answers.succeeded {
        answers.skip(2);
    }
    Ok(answers.look(&session.names)?)
}

/// Somebody else has the lock, and we don't wait: nothing of ours stays.
async fn busy(client: &mut Client, session: &mut Session, request: &Request, look: &Look) -> Answer<Attempt> {
    let blocker = look.blocker(request.mode, look.contenders.len());
    let endless = blocker.filter(|one| one.lease == 0).map(|one| failure::no_end(&one.name));
    let passing = blocker.is_none();
    let told = told(client, session, look).await;
    // Without the lease no key is put any more.
    if look.contenders.iter().any(|one| one.lease == session.lease) {
        super::hold::leave(client, session, request.mode).await?;
    } else {
        client.revoke(session.lease).await?;
    }
    match endless {
        Some(error) => Err(error.into()),
        None => Ok(Attempt::Busy(Busy { passing, ..told? })),
    }
}

/// Who holds the lock.
async fn told(client: &mut Client, session: &Session, look: &Look) -> Answer<Busy> {
    let others = look.contenders[..look.holding()].iter().filter(|one| one.lease != session.lease);
    let holders = holders::tell(client, look, others).await?;
    // The queue passes the lock on in order: only who comes next can tell when.
    let next = look.contenders.get(look.holding()).is_none_or(|one| one.lease == session.lease);
    let ends: Option<Vec<Duration>> = holders.iter().map(|holder| holder.expires_in).collect();
    let expires_in = ends.and_then(|ends| ends.into_iter().max()).filter(|_| next);
    // Whoever they are: etcd tells when a key is gone.
    Ok(Busy { holders, expires_in, notifies: true, passing: false, position: None })
}

/// What a place in the queue answers without reading all of it; `None` if something happened.
async fn still_queued(client: &mut Client, queued: &mut Queued) -> Answer<Option<Busy>> {
    if queued.checks >= CHECKS || queued.busy.position == Some(1) {
        return Ok(None);
    }
    queued.checks += 1;
    let answers = client.txn(ops::read(vec![ops::peek(&queued.own), ops::peek(&queued.before)])).await?;
    let mut answers = Answers::of(answers)?;
    let both = answers.one()?.is_some() && answers.one()?.is_some();
    if both {
        queued.seen = answers.revision;
    }
    Ok(both.then(|| queued.busy.clone()))
}

/// Enters the hold that an ancestor process has.
///
/// The nested hold is a key of its own with a lease of its own, beside the lock's folder, so that it ends by itself. It
/// lasts no longer than the lock's own lease, whose length can't be changed any more.
pub(super) async fn enter(client: &mut Client, session: &mut Session, request: &Request) -> Answer<Attempt> {
    let Some(found) = super::hold::find(client, session).await? else { return Ok(Attempt::NotHeld) };
    if found.mode == Mode::Shared && request.mode != Mode::Shared {
        let error = Error::new(Kind::Usage, "this command runs under a shared hold of the lock, which can't become an exclusive one");
        return Err(error.hint("take it exclusively from the start, or another key").into());
    }
    let Some(outer) = client.keep_alive(session.lease).await? else { return Ok(Attempt::NotHeld) };
    let granted = |length| -> Result<Grant> {
        Ok(Grant { fence: found.fence(), ttl: ttl(length)?, holds: found.holds, settle: Duration::ZERO, session: None })
    };
    if found.is_root {
        session.stage = Stage::Held(found.hold());
        return Ok(Attempt::Granted(granted(outer)?));
    }
    let Inner { name, lease } = session.inner();
    let length = match client.grant(lease, seconds(request.ttl).min(outer)).await {
        Ok(length) => length,
        Err(Trouble::LeaseExists) => client.keep_alive(lease).await?.ok_or_else(failure::lease_gone)?,
        Err(trouble) => return Err(trouble),
    };
    let folder = session.names.nested(session.lease);
    let txn = TxnRequest {
        compare: vec![ops::created_at(&found.own, found.created)],
        success: vec![ops::put(&name, "", lease), ops::peek(&name), ops::under(&folder, true)],
        failure: Vec::new(),
    };
    let mut answers = Answers::of(client.txn(txn).await?)?;
    if !answers.succeeded {
        client.revoke(lease).await?;
        return Ok(Attempt::NotHeld);
    }
    answers.skip(1);
    let created = answers.one()?.ok_or_else(failure::unreadable)?.create_revision;
    let left = session.names.left(session.lease);
    let (marks, holds): (Vec<_>, Vec<_>) = answers.keys()?.into_iter().partition(|kv| kv.key == left.as_bytes());
    let holds = u32::try_from(holds.len() + usize::from(marks.is_empty())).unwrap_or(u32::MAX);
    let hold = Hold { seen: answers.revision, nested: Some(Nested { name, lease, created }), ..found.hold() };
    session.stage = Stage::Held(hold);
    Ok(Attempt::Granted(Grant { holds, ..granted(length.min(outer))? }))
}
