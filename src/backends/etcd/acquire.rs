//! Takes the lock: grants the lease, puts the key into the queue, and checks whether the contender
//! is first.
//!
//! The code handles these interleavings:
//! - *The answer to the lease's grant is lost.* The lease's id follows from the token; "exists
//!   already" is then as good as a grant.
//! - *The answer to the key's transaction is lost.* A repeated transaction changes nothing, and
//!   returns the position.
//! - *That transaction arrives after the process gave up.* Giving up revokes the lease, without
//!   which no key is put.
//! - *The answer to a waiter's grant is lost, or the grant arrives late.* A hold may have a break
//!   mark by then: only a waiter's record is replaced.
//! - *The lease ends during the wait.* The next transaction fails for that, and the waiter queues
//!   up anew, last.
//! - *The waiter becomes first.* It reads its position by a quorum, and then extends the lease. A
//!   frozen, deposed leader could answer an extension alone. A read through the same member
//!   excludes that before the read. A new leader extends all leases.
//! - *The preceding holder vanished* (its lease ended or was revoked, its key was deleted) and its
//!   command may still be stopping. Its record remains: only an orderly leave removes the record.
//!   The successor asks for the drain delay ([`DRAIN_DELAY`]). The record stays that long, so that
//!   another successor asks too.
//! - *The exclusive holder in front of an exclusive waiter released.* The waiter is then first,
//!   since no contender is before a holder. The grant compares the last fence instead of reading
//!   the queue, which takes the server longer the more contenders wait. The last fence also tells
//!   whether a vanished or evicted holder may still be stopping; then the waiter reads the queue.
//! - *The contender is first, and at-least denies the lock to every process.* It stays first, which
//!   keeps other libraries out too, and asks again later. Its record says that it only waits.

use std::time::Duration;

use super::{
    client::{EtcdClient, EtcdResult},
    clock,
    failure::{self, Trouble},
    history,
    messages::{Compare, RequestOp},
    ops::{self, Part},
    permits,
    position::{AcquireAttempt, check_position, retire},
    queue::{Keys, LockAtRevision},
    record::last_fence,
    runs::{Leases, RunKeys, records},
    session::{EtcdSession, HoldState, OwnHold, seconds, ttl},
};
use crate::{
    backends::queue::record::{ContenderInfo, HoldRecord},
    lock::{Attempt, DRAIN_DELAY, Denial, Grant, Mode, Request, Ttl},
};

/// The outcome for the first position in the queue.
enum FirstPosition {
    Granted(HoldRecord, RunKeys),
    /// The run policy denies the lock. The number is the lease with which the denial ends.
    Refused((Denial, i64)),
}

/// Takes the lock for a token that is not nested.
pub(super) async fn take(
    client: &mut EtcdClient,
    session: &mut EtcdSession,
    request: &Request,
) -> EtcdResult<Attempt> {
    if let HoldState::Queued(queued) = &mut session.state
        && let Some(busy) = check_position(
            client,
            (&session.names, session.lease),
            queued,
            session.watches.is_some(),
        )
        .await?
    {
        return Ok(Attempt::Busy(busy));
    }
    let own = session.names.own(request.mode, session.lease);
    let mut taking = AcquireAttempt {
        client,
        session,
        request,
        own,
        leases: None,
        granted: None,
    };
    let look = taking.join_queue().await?;
    let (look, own_position) = match request.mode {
        Mode::Permits(_) => taking.take_permit(look).await?,
        mode => {
            let own_position = look
                .find(&taking.own)
                .map(|at| (at, look.queue.may_hold(mode, at)));
            (look, own_position)
        }
    };
    match own_position {
        None => taking.declined(&look).await,
        Some((at, false)) => taking.wait_behind(&look, at).await,
        Some((at, true)) => taking.take_as_first(&look, at).await,
    }
}

impl AcquireAttempt<'_> {
    /// Puts the own key into the queue, if it belongs there. Returns the lock after that.
    async fn join_queue(&mut self) -> EtcdResult<LockAtRevision> {
        match self.session.state {
            HoldState::Queued(_) | HoldState::Held(_) => {
                let look = self.check_first().await?;
                // A key that is already there needs no space in a full store.
                if look.find(&self.own).is_some() {
                    return Ok(look);
                }
            }
            HoldState::Asked { leased: true } => {}
            _ => self.grant().await?,
        }
        match self.put().await {
            Err(Trouble::NoLease) => {
                self.session.state = HoldState::Asked { leased: false };
                self.grant().await?;
                self.put().await
            }
            answer => answer,
        }
    }

    /// Grants the lease and the run records' leases. The lease may exist already, from a request
    /// whose answer was lost.
    async fn grant(&mut self) -> EtcdResult<()> {
        let (of_runs, mut wanted) = Leases::of(self.request);
        wanted.insert(0, (self.session.lease, seconds(self.request.ttl)));
        let mut answers = self.client.grant_all(&wanted).await.into_iter();
        self.granted = match answers.next() {
            Some(Ok(length)) => Some(ttl(length)?),
            Some(Err(Trouble::LeaseExists)) => None,
            Some(Err(trouble)) => return Err(trouble),
            None => return Err(failure::unreadable().into()),
        };
        self.session.state = HoldState::Asked { leased: true };
        Leases::granted(answers)?;
        self.leases = Some(of_runs);
        Ok(())
    }

    /// Returns the leases of the run records.
    async fn leases(&mut self) -> EtcdResult<Leases> {
        if self.leases.is_none() {
            self.leases = Some(Leases::grant(self.client, self.request).await?);
        }
        self.leases
            .clone()
            .ok_or_else(|| failure::unreadable().into())
    }

    /// Extends the lock's lease, and returns the lease's length.
    async fn confirm(&mut self) -> EtcdResult<Ttl> {
        let Some(length) = self.client.keep_alive(self.session.lease).await? else {
            self.session.state = HoldState::Asked { leased: false };
            return Err(failure::lease_gone().into());
        };
        Ok(ttl(length)?)
    }

    /// Puts the key if it isn't there. A waiter's key is put at the end of the queue, another
    /// request's key only if the lock is free. The same step makes it a hold, with run records, if
    /// the lock is free and no run record has to be judged.
    async fn put(&mut self) -> EtcdResult<LockAtRevision> {
        let leases = self.leases().await?;
        let (names, request, own, lease) = (
            &self.session.names,
            self.request,
            &*self.own,
            self.session.lease,
        );
        let run_policy = request.run_policy.as_ref();
        let value = ContenderInfo {
            hold: Some(request.token.hold_text()),
            ..ContenderInfo::of(request)
        }
        .write();
        let record =
            |hold_record: HoldRecord| ops::put(&names.open_of(lease), hold_record.write(), 0);
        let held = |look: &LockAtRevision| {
            let mut ops = vec![record(HoldRecord::of(request, None))];
            if let Mode::Permits(_) = request.mode {
                ops.push(permits::take(names, look, lease));
            }
            ops.extend(look.runs.begin(names, request, None, &leases));
            ops
        };
        let puts = |record: RequestOp| vec![ops::put(own, value.clone(), lease), record];
        let mut free = ops::free_for(names, request.mode);
        free.extend(RunKeys::default().unchanged(names, run_policy));
        let empty = LockAtRevision::new(names, 0, Keys::default())?;
        let counted = |look: &LockAtRevision| -> Vec<Compare> {
            if matches!(request.mode, Mode::Permits(_)) {
                permits::permits_unchanged(names, look)
            } else {
                Vec::new()
            }
        };
        // A reader joins other readers, and one of those may be this contender.
        let mut compare = vec![ops::absent(own)];
        let success = if request.waiting {
            puts(ops::when(
                free,
                held(&empty),
                vec![record(HoldRecord::of_waiter(request))],
            ))
        } else {
            compare.extend(free);
            puts(ops::when(Vec::new(), held(&empty), Vec::new()))
        };
        let mut look = self.client.put_and_look(names, compare, success).await?;
        for _ in 0..ops::TRIES {
            let free =
                look.find(own).is_none() && look.queue.may_hold(request.mode, look.queue.len());
            if request.waiting || !free || look.runs.judge(run_policy, &request.token).is_some() {
                break;
            }
            // The folder's keys are no contenders or leave room, or the run records allow this run.
            // No contender may have come since.
            let mut compare = vec![
                ops::absent(own),
                ops::nothing_newer_under(&names.folder, look.revision),
            ];
            compare.extend(counted(&look));
            compare.extend(look.runs.unchanged(names, run_policy));
            let then = self
                .client
                .put_and_look(
                    names,
                    compare,
                    puts(ops::when(Vec::new(), held(&look), Vec::new())),
                )
                .await?;
            look = then;
        }
        Ok(look)
    }

    /// Checks whether this contender is first. If so, and no run record is needed, the same step
    /// turns its record into a hold's.
    async fn check_first(&mut self) -> EtcdResult<LockAtRevision> {
        let (names, lease, mode) = (&self.session.names, self.session.lease, self.request.mode);
        let HoldState::Queued(queued) = &self.session.state else {
            return self
                .client
                .put_and_look(names, Vec::new(), Vec::new())
                .await;
        };
        let part = if mode == Mode::Exclusive {
            Part::Ahead(lease, queued.created)
        } else {
            Part::All
        };
        // The number of the permit is known only after the look.
        if records(self.request) || matches!(mode, Mode::Permits(_)) {
            return self
                .client
                .put_and_look_at(names, part, Vec::new(), Vec::new())
                .await;
        }
        let open = names.open_of(lease);
        let held = ops::put(
            &open,
            HoldRecord::of(self.request, Some(queued.fence())).write(),
            0,
        );
        let still_waits = ops::unchanged(&open, queued.created);
        let held = ops::when(
            vec![ops::absent(&names.least()), still_waits],
            vec![held],
            Vec::new(),
        );
        let is_there = ops::created_at(&queued.own, queued.created);
        let if_first = (
            vec![is_there.clone()],
            ops::when_first(names, mode, queued.created, held.clone()),
            part,
        );
        let look = match queued.before.writer {
            Some(writer) => {
                let next = vec![
                    is_there,
                    ops::has_value(&names.last(), last_fence(writer, true)),
                ];
                self.client
                    .put_either_and_look(
                        names,
                        (next, held, Part::Own(&queued.own, lease)),
                        if_first,
                    )
                    .await
            }
            None => {
                self.client
                    .put_and_look_at(names, part, if_first.0, vec![if_first.1])
                    .await
            }
        };
        match look {
            // A queue position needs no space.
            Err(Trouble::Full(_)) => {
                self.client
                    .put_and_look_at(names, part, Vec::new(), Vec::new())
                    .await
            }
            look => look,
        }
    }

    /// Takes the lock for the first contender, unless the run policy denies it.
    async fn take_as_first(mut self, look: &LockAtRevision, at: usize) -> EtcdResult<Attempt> {
        let ttl = match self.granted {
            Some(ttl) => ttl,
            None => self.confirm().await?,
        };
        let one = &look.contenders[at];
        let granted = look
            .record_of(one)
            .map(|record| &record.hold_record)
            .filter(|hold_record| hold_record.is_hold);
        let (hold_record, runs) =
            match granted.filter(|_| !records(self.request) || look.runs.knows(one.fence())) {
                Some(hold_record) => {
                    // The lock was granted before, and these leases are not needed.
                    if let Some(unused) = self.leases.take_if(|leases| !look.runs.use_of(leases)) {
                        unused.end(self.client).await;
                    }
                    (hold_record.clone(), look.runs.clone())
                }
                None => match self.begin(look, at).await? {
                    FirstPosition::Granted(hold_record, runs) => (hold_record, runs),
                    FirstPosition::Refused(denial) => {
                        return self.stay_first(look, at, ttl, denial).await;
                    }
                },
            };
        if let Some(leases) = &self.leases {
            leases.extend_if_late(self.client).await;
        }
        retire(self.client, self.session);
        let dying = look.dying(self.request.mode);
        let number = look.number_of(at).cloned();
        let grant = Grant {
            fence: one.fence(),
            ttl,
            holds: look.holds_of(self.session.lease),
            drain_delay: if dying.is_empty() {
                Duration::ZERO
            } else {
                DRAIN_DELAY
            },
            session: None,
            permit: number.as_ref().map(|number| number.number),
        };
        history::archive_outdated(self.client, &self.session.names, look).await;
        self.session.state = HoldState::Held(OwnHold {
            own: self.own,
            created: one.created,
            seen: look.revision,
            nested: None,
            since_ms: hold_record.since_ms,
            metadata: hold_record.metadata,
            runs,
            number,
            dying,
            settled_at: clock::after(DRAIN_DELAY),
        });
        Ok(Attempt::Granted(grant))
    }

    /// Judges the first contender, and makes its record a hold's, with run records, if that was not
    /// done: it waited, the folder was not empty, or the store is full. No contender can come
    /// before it, so the judged run records change only by expiring.
    async fn begin(&mut self, look: &LockAtRevision, at: usize) -> EtcdResult<FirstPosition> {
        if let Some(denial) = look
            .runs
            .judge(self.request.run_policy.as_ref(), &self.request.token)
        {
            return Ok(FirstPosition::Refused(denial));
        }
        let leases = self.leases().await?;
        let own = &look.contenders[at];
        let (names, hold_record) = (
            &self.session.names,
            HoldRecord::of(self.request, Some(own.fence())),
        );
        let open = names.open_of(self.session.lease);
        let mut success = vec![ops::put(&open, hold_record.write(), 0)];
        success.extend(
            look.runs
                .begin(names, self.request, Some(own.fence()), &leases),
        );
        let puts = success.len();
        success.push(ops::under(&names.below_fence(), false));
        // A late request of an earlier attempt must not begin the hold again.
        let known = look.record_of(own).map_or(0, |record| record.revision);
        let compare = vec![
            ops::created_at(&own.name, own.created),
            ops::unchanged(&open, known),
        ];
        match self.client.run_if(compare, success).await {
            Ok(mut answers) => {
                if !answers.succeeded {
                    return Err(failure::contended().into());
                }
                answers.skip(puts);
                let runs = RunKeys::read(names, answers.keys()?)?;
                Ok(FirstPosition::Granted(hold_record, runs))
            }
            // The lock has precedence over its history, but not over its run records. A contender
            // without a record is no waiter.
            Err(Trouble::Full(_) | Trouble::Refused(_)) if !records(self.request) => {
                let compare = vec![ops::created_at(&own.name, own.created)];
                if !self
                    .client
                    .run_if(compare, vec![ops::delete(&open)])
                    .await?
                    .succeeded
                {
                    return Err(failure::contended().into());
                }
                Ok(FirstPosition::Granted(hold_record, look.runs.clone()))
            }
            Err(trouble) => Err(trouble),
        }
    }
}
