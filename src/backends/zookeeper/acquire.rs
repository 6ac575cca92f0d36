//! Joins the queue, takes the lock at its head, and waits for the preceding contender.

use std::time::Duration;

use super::{
    CAPABILITIES, ZooKeeper,
    contender::{ContenderNode, fence},
    failure::{self, Fault, ZkResult, unexpected},
    hold::{LockListing, Place, ZkHold},
    join::JoinOutcome,
    names::guid,
    record::{GrantMark, write_last},
    runs::{RunRecordChange, RunRecordNode, records},
    session::{Ensemble, LONGEST, Purpose, ZkSession},
    wire::{Code, NodeKind, Reply, WireRequest},
};
use crate::{
    backends::queue::record::ContenderInfo,
    lock::{Attempt, DRAIN_DELAY, Denial, Entry, Error, Grant, Kind, Mode, Request, Result, Ttl},
};

/// How many times one request looks again after changes by other processes.
pub(super) const LOOKS: usize = 16;

impl ZooKeeper {
    pub(super) async fn ask_acquire(&mut self, request: &Request) -> Result<Attempt> {
        CAPABILITIES.check(request)?;
        self.options().check()?;
        let fresh = request.entry == Entry::Fresh;
        let at = self.hold_or_new(request, fresh).await?;
        self.holds[at].waiting = request.waiting && fresh;
        let outcome = if fresh {
            self.join_and_extend(at, request).await
        } else {
            self.ask_to_enter(at, request).await
        };
        let keep = match &outcome {
            Ok(Attempt::Granted(_)) => true,
            Ok(_) => request.waiting && fresh,
            // The next attempt looks for what this one may have done, or a release undoes it.
            Err(error) => error.is_transient(),
        };
        if !keep {
            let hold = self.holds.remove(at);
            if let Some(session) = hold.session {
                session.close();
            }
        }
        outcome
    }

    async fn join_and_extend(&mut self, at: usize, request: &Request) -> Result<Attempt> {
        let hold = &mut self.holds[at];
        for _ in 0..3 {
            if hold.session.is_none() {
                hold.session = Some(negotiate(&self.ensemble, request).await?);
            }
            match hold.still_waits().await {
                Ok(Some(busy)) => return Ok(Attempt::Busy(busy)),
                Ok(None) => {}
                Err(Fault::Expired) => hold.forget(),
                Err(Fault::Error(error)) => return Err(error),
            }
            if hold.session.is_none() {
                continue;
            }
            match hold.advance(request).await {
                Ok(ContenderState::First) => return hold.grant_of(),
                Ok(ContenderState::Behind(seen)) => {
                    let busy = hold.busy(request, &seen).await?;
                    if request.waiting {
                        hold.note_waiting(&seen, &busy);
                    }
                    return Ok(busy);
                }
                Ok(ContenderState::Denied(denial)) => {
                    // The waiter stays first, and waits only for time to pass. If this write fails,
                    // the next request reports the failure.
                    let _ = if request.waiting {
                        hold.prove_life(None).await
                    } else {
                        Ok(false)
                    };
                    return Ok(Attempt::Denied(denial));
                }
                Err(Fault::Expired) => hold.forget(),
                Err(Fault::Error(error)) => return Err(hold.explain(error).await),
            }
        }
        Err(Fault::Expired.into())
    }
}

/// Opens a session with the requested lease, or with the nearest one if the request allows that.
pub(super) async fn negotiate(ensemble: &Ensemble, request: &Request) -> Result<ZkSession> {
    let wanted = request.ttl.get();
    let purpose = if request.detached {
        Purpose::HandedOver
    } else {
        Purpose::Hold
    };
    let session = ZkSession::open(ensemble, wanted, purpose).await?;
    let given = session.timeout;
    if given == wanted || !request.ttl_asked {
        return Ok(session);
    }
    session.close();
    // A request beyond the other end of the range reveals that end.
    let other = ZkSession::open(
        ensemble,
        if given < wanted {
            Duration::from_millis(500)
        } else {
            LONGEST
        },
        Purpose::Visit,
    )
    .await?;
    let (min, max) = (given.min(other.timeout), given.max(other.timeout));
    let text = humantime::format_duration;
    Err(Error::new(
        Kind::Unsupported,
        format!(
            "the server can't give a lease of {}: its sessions last {} to {}",
            text(wanted),
            text(min),
            text(max)
        ),
    )
    .hint("minSessionTimeout and maxSessionTimeout in its configuration set the range"))
}

/// A contender's state in the queue.
pub(super) enum ContenderState {
    /// First; the grant is marked and confirmed.
    First,
    /// The contender has to wait for another one.
    Behind(Box<LockListing>),
    /// The run policy denies the lock, which no contender blocks.
    Denied(Box<Denial>),
}

/// The state that one request keeps from one look to the next.
#[derive(Default)]
pub(super) struct RequestProgress {
    /// Whether the lock's directories have to be created.
    make_parents: bool,
    /// How many times another contender was granted the lock, or the permit, after all.
    pub(super) conflicts: u32,
}

/// The outcome for a contender without a position.
enum EntryOutcome {
    /// The contender joined. The value is the queue after that.
    Joined(Box<LockListing>),
    Answered(ContenderState),
    /// The queue has to be read again.
    Again,
}

impl ZkHold {
    /// Joins the queue if the contender has no position, and takes the lock if it is first.
    async fn advance(&mut self, request: &Request) -> ZkResult<ContenderState> {
        if self.granted {
            if self.confirm().await? {
                return Ok(ContenderState::First);
            }
            // The node was deleted from outside: the contender joins again, at the end of the
            // queue.
            (self.granted, self.place, self.maybe_placed) = (false, None, true);
        }
        let mut progress = RequestProgress::default();
        for _ in 0..LOOKS {
            if let Some(standing) = self.look_and_step(request, &mut progress).await? {
                return Ok(standing);
            }
        }
        Err(failure::unsettled().into())
    }

    /// Reads the queue and takes the next step. Returns `None` if the queue must be read again.
    async fn look_and_step(
        &mut self,
        request: &Request,
        progress: &mut RequestProgress,
    ) -> ZkResult<Option<ContenderState>> {
        let mut seen = self.read_all(request).await?;
        if self.place.is_none() && self.maybe_placed {
            self.find_place(&seen.contenders).await?;
        }
        if self.place.is_none() {
            match self.enter_queue(request, seen, progress).await? {
                EntryOutcome::Joined(joined) => seen = *joined,
                EntryOutcome::Answered(standing) => return Ok(Some(standing)),
                EntryOutcome::Again => return Ok(None),
            }
        }
        let Some(place) = self.place.clone() else {
            return Ok(None);
        };
        let Some(at) = seen.find(&place.contender.name) else {
            // The node was deleted, or this server doesn't know it yet: only another look tells
            // which.
            self.place = self.stat(&place.path).await?.map(|_| place);
            return Ok(None);
        };
        let own = guid(&self.token);
        if let Some(duplicate) = seen.contenders[..at]
            .iter()
            .find(|other| other.guid() == Some(&*own))
        {
            self.drop_duplicate(duplicate).await?;
            return Ok(None);
        }
        if let Mode::Permits(_) = request.mode {
            return self
                .ask_for_permit(request, (&place, at), seen, progress)
                .await;
        }
        match seen.queue.blocker(request.mode, at) {
            None => self.grant_first(request, &place, seen).await,
            Some(_) if seen.is_marked(&own) => {
                self.unmark().await?;
                Ok(None)
            }
            Some(ahead) if request.waiting => {
                let path = self.names.contender(&seen.contenders[ahead].name);
                if self
                    .blocker
                    .as_ref()
                    .is_none_or(|(watched, _)| *watched != path)
                {
                    let Some(session) = &mut self.session else {
                        return Err(Fault::Expired);
                    };
                    let Some(watch) = session.watch(&path).await? else {
                        return Ok(None);
                    };
                    self.blocker = Some((path, watch));
                }
                Ok(Some(ContenderState::Behind(Box::new(seen))))
            }
            Some(_) => {
                // Another contender joined between the look and the joining, and this request does
                // not wait.
                self.leave(&place).await?;
                Ok(Some(ContenderState::Behind(Box::new(seen.without(at)))))
            }
        }
    }

    /// Joins the queue, unless the request does not wait and the lock isn't free.
    async fn enter_queue(
        &mut self,
        request: &Request,
        mut seen: LockListing,
        progress: &mut RequestProgress,
    ) -> ZkResult<EntryOutcome> {
        let mut basis = seen.basis.take().unwrap_or_default();
        let free = seen.queue.may_hold(request.mode, seen.queue.len());
        let denial = if free {
            self.judge(request.run_policy.as_ref(), &mut basis).await?
        } else if !request.waiting && seen.queue.holders().next().is_none() {
            // The first waiter may be waiting for an at-least, which denies the lock to every
            // process, and to this request too.
            self.judge(None, &mut basis).await?
        } else {
            None
        };
        let refused = denial.is_some();
        if let Some(denial) = denial.filter(|_| !request.waiting) {
            return Ok(EntryOutcome::Answered(ContenderState::Denied(denial)));
        }
        if !free && !request.waiting {
            let removed =
                seen.queue.only_waiters_block(request.mode) && self.remove_gone(&seen).await?;
            return Ok(if removed {
                EntryOutcome::Again
            } else {
                EntryOutcome::Answered(ContenderState::Behind(Box::new(seen)))
            });
        }
        let parents = if seen.missing || progress.make_parents {
            self.parents()
        } else {
            Vec::new()
        };
        // A denied waiter joins the queue all the same. A run record must be true, so it is written
        // only once the contender is known to be first.
        let at_once =
            free && !refused && !records(request) && (progress.conflicts == 0 || !request.waiting);
        let at_once = at_once.then(|| (basis.version, seen.queue.free_number()));
        Ok(match self.join(request, at_once, &parents).await? {
            JoinOutcome::Listing(joined) => EntryOutcome::Joined(joined),
            JoinOutcome::NoParent => {
                progress.make_parents = true;
                EntryOutcome::Again
            }
            JoinOutcome::Changed => {
                progress.conflicts += 1;
                EntryOutcome::Again
            }
        })
    }

    /// Takes the lock as the first contender, unless the run policy denies it. Returns `None` if
    /// the queue must be read again.
    async fn grant_first(
        &mut self,
        request: &Request,
        place: &Place,
        mut seen: LockListing,
    ) -> ZkResult<Option<ContenderState>> {
        // A mark that was made together with the node is confirmed, unless the answer to that was
        // lost.
        let marked = seen.joined && seen.is_marked(&guid(&self.token));
        if !marked {
            // The run records must be read after the contender became first. Only the contender
            // itself may change them then.
            let Some(basis) = &mut seen.basis else {
                return Ok(None);
            };
            if let Some(denial) = self.judge(request.run_policy.as_ref(), basis).await? {
                if !request.waiting {
                    self.leave(place).await?;
                }
                return Ok(Some(ContenderState::Denied(denial)));
            }
        }
        Ok(self
            .take(request, place, &seen, marked)
            .await?
            .then_some(ContenderState::First))
    }

    /// Takes the lock. Returns false if the queue must be read again.
    pub(super) async fn take(
        &mut self,
        request: &Request,
        place: &Place,
        seen: &LockListing,
        marked: bool,
    ) -> ZkResult<bool> {
        let stale = seen.stale();
        // A reader may have come or gone between the two looks.
        let stale = if stale.is_empty() {
            Vec::new()
        } else {
            self.still_stale(stale).await?
        };
        if !marked && !self.mark_grant(request, place, seen).await? {
            return Ok(false);
        }
        (self.granted, self.blocker, self.stale) = (true, None, stale);
        self.archive_stale().await;
        Ok(true)
    }

    /// Finds the node of a create whose answer was lost.
    pub(super) async fn find_place(&mut self, contenders: &[ContenderNode]) -> ZkResult<()> {
        let own = guid(&self.token);
        let session = self.session.as_ref().map(|session| session.id);
        for contender in contenders
            .iter()
            .filter(|contender| contender.guid() == Some(&*own) && !contender.is_twin())
        {
            let path = self.names.contender(&contender.name);
            let Some(stat) = self.stat(&path).await? else {
                continue;
            };
            // A node of an older session, which is just ending, is only in the way.
            if let (true, Some(fence)) = (Some(stat.ephemeral_owner) == session, fence(&stat)) {
                self.place = Some(Place {
                    contender: contender.clone(),
                    path,
                    fence,
                });
                return Ok(());
            }
        }
        self.maybe_placed = false;
        Ok(())
    }

    /// Removes a second node of ours, which a late request made before the node in use. A node of
    /// another session of ours will be gone soon.
    async fn drop_duplicate(&mut self, duplicate: &ContenderNode) -> ZkResult<()> {
        let paths: Vec<_> = [&duplicate.name]
            .into_iter()
            .chain(&duplicate.second_node)
            .map(|name| self.names.contender(name))
            .collect();
        self.remove(&paths.iter().map(String::as_str).collect::<Vec<_>>())
            .await
    }

    /// Removes the contender from the queue.
    pub(super) async fn leave(&mut self, place: &Place) -> ZkResult<()> {
        self.drop_duplicate(&place.contender).await?;
        self.place = None;
        Ok(())
    }

    /// Removes a mark that was made too early.
    pub(super) async fn unmark(&mut self) -> ZkResult<()> {
        let (mark, renewal_node, number) = (
            self.names.mark(&guid(&self.token)),
            self.renewal_node(),
            self.number(),
        );
        let paths: Vec<_> = [&mark, &renewal_node]
            .into_iter()
            .chain(&number)
            .map(String::as_str)
            .collect();
        self.remove(&paths).await?;
        self.grant = None;
        Ok(())
    }

    /// Removes nodes, if they exist.
    pub(super) async fn remove(&mut self, paths: &[&str]) -> ZkResult<()> {
        let requests: Vec<_> = paths.iter().map(|path| WireRequest::Delete(path)).collect();
        for answer in self.ask(&requests).await? {
            if !matches!(answer, Ok(_) | Err(Code::NoNode)) {
                return Err(unexpected(Some(answer)).into());
            }
        }
        Ok(())
    }

    /// Marks the grant, if our node still exists. Returns false if the queue must be read again.
    async fn mark_grant(
        &mut self,
        request: &Request,
        place: &Place,
        seen: &LockListing,
    ) -> ZkResult<bool> {
        let (names, renewal_node, mark) = (
            self.names.clone(),
            self.renewal_node(),
            self.names.mark(&guid(&self.token)),
        );
        let (last, ttl, own) = (write_last(Some(place.fence)), self.ttl(), guid(&self.token));
        let number = matches!(request.mode, Mode::Permits(_)).then(|| seen.queue.free_number());
        let numbered = number.map(|number| names.permit(number));
        let grant = GrantMark::of(request, Some(place.fence), number);
        let (mark_data, data) = (grant.write(), ContenderInfo::of(request).write());
        let run = seen
            .basis
            .as_ref()
            .and_then(|basis| basis.begin(&names, request, place.fence));
        let mut steps = vec![
            WireRequest::Check(&place.path),
            WireRequest::Create(&mark, &mark_data, NodeKind::Persistent),
            WireRequest::Create(&renewal_node, ttl.as_bytes(), NodeKind::Ephemeral),
            match (&seen.basis, request.mode) {
                (Some(basis), Mode::Permits(_)) => {
                    WireRequest::WriteSince(&names.meta, &last, basis.version)
                }
                _ => WireRequest::Write(&names.meta, &last),
            },
        ];
        if let Some(path) = &numbered {
            steps.push(WireRequest::Create(
                path,
                own.as_bytes(),
                NodeKind::Ephemeral,
            ));
            // This write notifies the waiter behind.
            steps.push(WireRequest::Write(&place.path, &data));
        }
        steps.extend(run.iter().map(RunRecordChange::step));
        match self.ask(&[WireRequest::All(steps)]).await?.pop() {
            Some(Ok(Reply::AllDone { made, .. })) => {
                (self.grant, self.since) = (
                    Some(grant),
                    made.and_then(|(_, stat)| stat).map(|stat| stat.ctime),
                );
                self.runs = run.map_or_else(
                    || Some(RunRecordNode::default()),
                    |run| run.done(self.since),
                );
                Ok(true)
            }
            Some(Ok(Reply::RolledBack {
                at: 0,
                code: Code::NoNode,
            })) => {
                self.place = None;
                Ok(false)
            }
            Some(Ok(Reply::RolledBack {
                code: Code::NoNode, ..
            })) => {
                let parents = self.parents();
                let requests: Vec<_> = parents
                    .iter()
                    .map(|(path, node, data)| WireRequest::Create(path, data, *node))
                    .collect();
                self.ask(&requests).await?;
                Ok(false)
            }
            // The grant was marked before and the answer was lost, or an earlier session of ours
            // left its mark.
            Some(Ok(Reply::RolledBack {
                at: 1..=2,
                code: Code::NodeExists,
            })) => {
                let held = self.confirm().await?;
                if !held {
                    self.remove(&[&mark]).await?;
                }
                Ok(held)
            }
            Some(Ok(Reply::RolledBack {
                code: Code::BadVersion | Code::NodeExists,
                ..
            })) => Ok(false),
            answer => Err(unexpected(answer).into()),
        }
    }

    pub(super) fn ttl(&self) -> String {
        self.session
            .as_ref()
            .map(|session| session.timeout.as_millis().to_string())
            .unwrap_or_default()
    }

    fn grant_of(&mut self) -> Result<Attempt> {
        let (Some(place), Some(session)) = (&self.place, &mut self.session) else {
            return Err(failure::unsettled());
        };
        let grant = Grant {
            fence: place.fence,
            ttl: Ttl::new(session.timeout)?,
            holds: 1,
            drain_delay: if self.stale.is_empty() {
                Duration::ZERO
            } else {
                DRAIN_DELAY
            },
            session: session.hand_over(),
            permit: self.grant.as_ref().and_then(|granted| granted.hold.number),
        };
        session.stop_keeping_alive();
        Ok(Attempt::Granted(grant))
    }
}
