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
//! - *Nobody is before us, and an earlier run keeps the lock from everybody*: we stay first, which keeps it from other libraries
//!   too, and are told to ask again. Our record says that we only wait, by which others know ([`Look::holding`]).

use std::time::Duration;

use super::{
    client::{Answer, Client},
    failure::{self, Trouble},
    history,
    hold::TRIES,
    holders,
    lookout::{self, Lookout},
    messages::{Compare, RequestOp, TxnRequest},
    ops::{self, Answers},
    permits,
    place::{Stood, behind, go, retire, still_queued},
    queue::{Before, Look},
    record::{Held, Record},
    session::{Hold, Queued, Session, Stage, seconds, ttl},
    starts::{self, Leases, Starts},
    value::Value,
    waiting,
};
use crate::lock::{Attempt, Busy, Grant, Mode, Refusal, Request, Ttl};

/// What a holder that vanished is left to stop what it ran.
pub(super) const SETTLE: Duration = Duration::from_millis(500);
/// Takes the lock for a token of its own.
pub(super) async fn take(client: &mut Client, session: &mut Session, request: &Request) -> Answer<Attempt> {
    if let Stage::Queued(queued) = &mut session.stage
        && let Some(busy) = still_queued(client, &session.names, queued, session.watches.is_some()).await?
    {
        return Ok(Attempt::Busy(busy));
    }
    let own = session.names.own(request.mode, session.lease);
    let mut leases = None;
    let mut granted = match session.stage {
        Stage::Queued(_) | Stage::Held(_) | Stage::Asked { leased: true, .. } => None,
        _ => grant(client, session, request, &mut leases).await?,
    };
    let stood = if let Stage::Queued(queued) = &session.stage { Some(Stood::of(queued)) } else { None };
    // Who stands there already needs no space in a store that is full.
    let stands = match session.stage {
        Stage::Queued(_) | Stage::Held(_) => Some(turn(client, session, request).await?).filter(|look| look.find(&own).is_some()),
        _ => None,
    };
    let asked = match stands {
        Some(look) => Ok(look),
        None => put(client, session, request, &own, &mut leases).await,
    };
    let look = match asked {
        Err(Trouble::NoLease) => {
            session.stage = Stage::Asked { leased: false };
            granted = grant(client, session, request, &mut leases).await?;
            put(client, session, request, &own, &mut leases).await?
        }
        answer => answer?,
    };
    let (look, stands) = match request.mode {
        Mode::Permits(_) => permits::grant(client, session, request, look).await?,
        mode => {
            let stands = look.find(&own).map(|place| (place, look.lets(mode, place)));
            (look, stands)
        }
    };
    let Some((place, first)) = stands else { return declined(client, session, request, &look, leases).await };
    if !first {
        return behind(client, session, request, (&look, place, own), (granted, stood), leases).await;
    }
    let ttl = match granted {
        Some(ttl) => ttl,
        None => confirm(client, session).await?,
    };
    let fence = look.contenders[place].fence();
    let held = look.record_of(&look.contenders[place]).and_then(|record| record.held.clone());
    let (held, starts) = match held.filter(|_| !starts::records(request) || look.starts.knows(fence)) {
        Some(held) => {
            // It was granted before, and these are one more than needed.
            if let Some(unused) = leases.take_if(|leases| !look.starts.use_of(leases)) {
                unused.end(client).await;
            }
            (held, look.starts.clone())
        }
        None => match begin(client, session, request, (&look, place), &mut leases).await? {
            Ok(begun) => begun,
            Err(refusal) => {
                let seen = look.revision;
                let queued = Queued {
                    before: Before { key: Some(own.clone()), ..Before::default() },
                    permits: None,
                    own,
                    created: look.contenders[place].created,
                    seen,
                    busy: Busy::default(),
                    checks: u32::MAX,
                    ttl,
                    alive_until: waiting::fresh_until(Some(ttl), false),
                    called: false,
                    unanswered: false,
                    lookout: Lookout::Another,
                };
                session.stage = Stage::Queued(queued);
                return refused(client, session, request, &look, (refusal, leases)).await;
            }
        },
    };
    if let Some(leases) = &leases {
        leases.freshen(client).await;
    }
    retire(client, session);
    let (created, dying) = (look.contenders[place].created, look.dying(request.mode));
    let number = look.number_of(&look.contenders[place]).cloned();
    let grant = Grant {
        fence,
        ttl,
        holds: look.holds_of(session.lease),
        settle: if dying.is_empty() { Duration::ZERO } else { SETTLE },
        session: None,
        permit: number.as_ref().map(|number| number.number),
    };
    history::bury_old(client, &session.names, &look).await;
    let settled_at = waiting::after(SETTLE);
    let (since_ms, metadata) = (held.since_ms, held.metadata);
    let hold = Hold { own, created, seen: look.revision, nested: None, since_ms, metadata, starts, number, dying, settled_at };
    session.stage = Stage::Held(hold);
    Ok(Attempt::Granted(grant))
}

/// Grants the lease, and with it those of a start; `None` if it was there already, from a request whose answer was lost.
async fn grant(client: &mut Client, session: &mut Session, request: &Request, leases: &mut Option<Leases>) -> Answer<Option<Ttl>> {
    let (of_start, mut wanted) = Leases::of(request);
    wanted.insert(0, (session.lease, seconds(request.ttl)));
    let mut answers = client.grant_all(&wanted).await.into_iter();
    let granted = match answers.next() {
        Some(Ok(length)) => Some(ttl(length)?),
        Some(Err(Trouble::LeaseExists)) => None,
        Some(Err(trouble)) => return Err(trouble),
        None => return Err(failure::unreadable().into()),
    };
    session.stage = Stage::Asked { leased: true };
    for answer in answers {
        answer?;
    }
    *leases = Some(of_start);
    Ok(granted)
}

/// The leases of a start, if they are not there yet.
async fn leases_of<'a>(client: &mut Client, request: &Request, leases: &'a mut Option<Leases>) -> Answer<&'a Leases> {
    Ok(match leases {
        Some(leases) => leases,
        none => none.insert(Leases::grant(client, request).await?),
    })
}

/// Keeps the lease alive that the lock is to be held with; returns its length.
async fn confirm(client: &mut Client, session: &mut Session) -> Answer<Ttl> {
    let Some(length) = client.keep_alive(session.lease).await? else {
        session.stage = Stage::Asked { leased: false };
        return Err(failure::lease_gone().into());
    };
    Ok(ttl(length)?)
}

/// Puts the key, if it isn't there: one who waits at the end of the queue, one who doesn't only if nobody is before it. In the
/// same step it becomes a hold, start and all, if nobody is and nothing else is recorded that it goes by.
async fn put(client: &mut Client, session: &Session, request: &Request, own: &str, leases: &mut Option<Leases>) -> Answer<Look> {
    let leases = leases_of(client, request, leases).await?;
    let (names, terms) = (&session.names, request.terms.as_ref());
    let value = Value::of(request)?;
    let record = |says: Vec<u8>| ops::put(&names.open_of(session.lease), says, 0);
    let held = |look: &Look| {
        let mut ops = vec![record(Held::of(request, None).write())];
        if let Mode::Permits(_) = request.mode {
            ops.push(permits::take(names, look, session.lease));
        }
        ops.extend(look.starts.begin(names, request, None, leases));
        ops
    };
    let puts = |record: RequestOp| {
        let mut ops = vec![ops::put(own, value.clone(), session.lease), record];
        ops.extend(ops::look(names, ops::SOME));
        ops
    };
    let mut free = ops::free_for(names, request.mode);
    free.extend(Starts::default().unchanged(names, terms));
    let nobody = Look::new(names, 0, Vec::new(), Vec::new(), Vec::new());
    let counted = |look: &Look| -> Vec<Compare> {
        if matches!(request.mode, Mode::Permits(_)) { permits::as_counted(names, look) } else { Vec::new() }
    };
    // Readers come beside others, and one of those may be ourselves.
    let mut compare = vec![ops::absent(own)];
    let success = if request.waiting {
        puts(ops::when(free, held(&nobody), vec![record(Record::waiting(request.mode))]))
    } else {
        compare.extend(free);
        puts(ops::when(Vec::new(), held(&nobody), Vec::new()))
    };
    let mut look = looked(client, session, TxnRequest { compare, success, failure: ops::look(names, ops::SOME) }).await?;
    for _ in 0..TRIES {
        let free = look.find(own).is_none() && look.lets(request.mode, look.contenders.len());
        if request.waiting || !free || look.starts.judge(terms, &request.token).is_some() {
            break;
        }
        // What is in the folder has no part in the lock, or leaves room, or what is recorded does not keep us from it. Nobody may
        // have come since.
        let mut compare = vec![ops::absent(own), ops::nothing_newer_under(&names.folder, look.revision)];
        compare.extend(counted(&look));
        compare.extend(look.starts.unchanged(names, terms));
        let success = puts(ops::when(Vec::new(), held(&look), Vec::new()));
        let then = looked(client, session, TxnRequest { compare, success, failure: ops::look(names, ops::SOME) }).await?;
        if then.find(own).is_some() {
            look.starts.end_before(client, leases).await;
        }
        look = then;
    }
    Ok(look)
}

/// Looks whether it is our turn; in the same step our record becomes that of a hold if it is, and has no start to go with it.
async fn turn(client: &mut Client, session: &Session, request: &Request) -> Answer<Look> {
    let names = &session.names;
    let look = ops::look(names, ops::SOME);
    let mut txn = ops::read(look.clone());
    let mut puts = 0;
    // Which permit it would be is not known before it was looked.
    if let Stage::Queued(queued) = &session.stage
        && !starts::records(request)
        && !matches!(request.mode, Mode::Permits(_))
    {
        let held = ops::put(&names.open_of(session.lease), Held::of(request, Some(queued.created)).write(), 0);
        let held = ops::when(vec![ops::absent(&names.least())], vec![held], Vec::new());
        let granted = ops::when_first(names, request.mode, queued.created, held);
        let compare = vec![ops::created_at(&queued.own, queued.created)];
        txn = TxnRequest { compare, success: [vec![granted], look.clone()].concat(), failure: look.clone() };
        puts = 1;
    }
    let mut answers = match client.txn(txn).await {
        // A place in the queue needs no space.
        Err(Trouble::Full(_)) if puts > 0 => {
            puts = 0;
            Answers::of(client.txn(ops::read(look)).await?)?
        }
        answer => Answers::of(answer?)?,
    };
    if answers.succeeded {
        answers.skip(puts);
    }
    Ok(answers.look(names)?)
}

/// Judges one whom nobody is before, and makes its record that of a hold, start and all, where that was left out so far: it has
/// waited, something else lies in the folder, or the store is full. Nobody can come before a key that nobody is before, so that
/// what it is judged by changes only by its end. A refusal is no answer to ask again for.
async fn begin(
    client: &mut Client,
    session: &mut Session,
    request: &Request,
    (look, place): (&Look, usize),
    leases: &mut Option<Leases>,
) -> Answer<std::result::Result<(Held, Starts), (Refusal, i64)>> {
    let (own, terms) = (&look.contenders[place], request.terms.as_ref());
    if let Some(refusal) = look.starts.judge(terms, &request.token) {
        return Ok(Err(refusal));
    }
    let leases = leases_of(client, request, leases).await?;
    let (names, held) = (&session.names, Held::of(request, Some(own.created)));
    let open = names.open_of(session.lease);
    let mut success = vec![ops::put(&open, held.write(), 0)];
    success.extend(look.starts.begin(names, request, Some(own.fence()), leases));
    let puts = success.len();
    success.push(ops::under(&names.starts(), false));
    // A late request of an earlier attempt must not do it again.
    let known = look.record_of(own).map_or(0, |record| record.revision);
    let compare = vec![ops::created_at(&own.name, own.created), ops::unchanged(&open, known)];
    match client.txn(TxnRequest { compare, success, failure: Vec::new() }).await {
        Ok(answer) => {
            let mut answers = Answers::of(answer)?;
            if !answers.succeeded {
                return Err(failure::contended().into());
            }
            answers.skip(puts);
            let starts = answers.starts(names)?;
            look.starts.end_before(client, leases).await;
            Ok(Ok((held, starts)))
        }
        // No history is worth a lock; but what later runs go by is. Without a record it is not taken for one that waits.
        Err(Trouble::Full(_) | Trouble::Refused(_)) if !starts::records(request) => {
            let compare = vec![ops::created_at(&own.name, own.created)];
            let txn = TxnRequest { compare, success: vec![ops::delete(&open)], failure: Vec::new() };
            if !Answers::of(client.txn(txn).await?)?.succeeded {
                return Err(failure::contended().into());
            }
            Ok(Ok((held, look.starts.clone())))
        }
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

/// It is not ours, and we don't wait.
pub(super) async fn declined(
    client: &mut Client,
    session: &mut Session,
    request: &Request,
    look: &Look,
    leases: Option<Leases>,
) -> Answer<Attempt> {
    let nobody = (0..look.contenders.len()).filter(|place| look.has(*place)).all(|place| look.contenders[place].lease == session.lease);
    if let Some(refusal) = look.starts.judge(request.terms.as_ref(), &request.token).filter(|_| nobody) {
        return refused(client, session, request, look, (refusal, leases)).await;
    }
    if let Some(leases) = leases {
        leases.end(client).await;
    }
    busy(client, session, request, look).await
}

/// The lock is free, but an earlier run keeps it from this one. A waiter stays first, and keeps its place alive by asking again.
async fn refused(
    client: &mut Client,
    session: &mut Session,
    request: &Request,
    look: &Look,
    (refusal, leases): ((Refusal, i64), Option<Leases>),
) -> Answer<Attempt> {
    if let Some(leases) = leases {
        leases.end(client).await;
    }
    let waits = match &session.stage {
        Stage::Queued(queued) if request.waiting => Some(queued.ttl.get()),
        _ => None,
    };
    let refusal = starts::with_times(client, refusal, waits).await;
    if !request.waiting {
        go(client, session, request, look).await?;
    }
    Ok(Attempt::Refused(refusal))
}

/// Somebody else has the lock, and we don't wait: nothing of ours stays.
async fn busy(client: &mut Client, session: &mut Session, request: &Request, look: &Look) -> Answer<Attempt> {
    let blocker = look.blocker(request.mode, look.contenders.len());
    let endless = blocker.filter(|one| one.lease == 0).map(|one| failure::no_end(&one.name));
    let told = told(client, session, request.mode, look).await;
    // Only one that waits keeps it from the lock, as far as is known.
    let is_permit = |mode: Mode| matches!(mode, Mode::Permits(_));
    let beside = |mode: Mode| is_permit(request.mode) && is_permit(mode);
    let waits = matches!(&told, Ok(told) if told.holders.iter().all(|holder| beside(holder.mode)));
    let ahead = look.first_waiting(session.lease).filter(|_| waits);
    let removed = match &ahead {
        Some(ahead) => lookout::remove_if_gone(client, &session.names, ahead).await?,
        None => false,
    };
    let free = removed || look.lets(request.mode, look.contenders.len());
    go(client, session, request, look).await?;
    match endless {
        Some(error) => Err(error.into()),
        None => told.map(|told| Attempt::Busy(Busy { passing: told.passing || free, ..told })),
    }
}

/// Who holds the lock.
pub(super) async fn told(client: &mut Client, session: &Session, mode: Mode, look: &Look) -> Answer<Busy> {
    let others = look.holders().filter(|one| one.lease != session.lease);
    let holders = holders::tell(client, look, others).await?;
    // The queue passes the lock on in order: only who comes next can tell when.
    let next = look.waiters().next().is_none_or(|one| one.lease == session.lease);
    let ends: Option<Vec<Duration>> = holders.iter().map(|holder| holder.expires_in).collect();
    // Whichever permit comes back first is enough.
    let end = |ends: Vec<Duration>| if matches!(mode, Mode::Permits(_)) { ends.into_iter().min() } else { ends.into_iter().max() };
    let expires_in = ends.and_then(end).filter(|_| next);
    // Whoever they are: etcd tells when a key is gone.
    Ok(Busy { expires_in, notifies: true, passing: holders.is_empty(), position: None, holders })
}
