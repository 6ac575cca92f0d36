//! Joining the line, being granted the lock at its head, and waiting for the one before.

use std::time::Duration;

use super::{
    CAPABILITIES, ZooKeeper,
    alive::is_behind_waiters,
    contender::{Class, Contender, blocker},
    failure::{self, Asked, Fault},
    hold::{Hold, Place, Seen, unexpected},
    join::Joined,
    look::{Clock, Look, fence, look},
    names::{guid, meta_folder},
    record::{Granted, Last, Record, Said},
    session::{Ensemble, LONGEST, Purpose, Session},
    starts::records,
    wire::{Code, Node, Reply, Request as Ask},
};
use crate::lock::{Attempt, Busy, Entry, Error, Grant, Holder, Kind, Mode, Refusal, Request, Result, Ttl};

/// How long a holder that vanished is given to stop what it ran.
const SETTLE: Duration = Duration::from_millis(500);
/// How often what has changed meanwhile is looked at again within one question.
pub(super) const LOOKS: usize = 16;
/// A waiter is told by the server when its turn comes; what it is told of the end of a lease must not make it poll.
const SOONEST: Duration = Duration::from_millis(250);

impl ZooKeeper {
    pub(super) async fn ask_acquire(&mut self, request: &Request) -> Result<Attempt> {
        CAPABILITIES.check(request)?;
        self.options().check()?;
        if request.entry == Entry::Reenter {
            return self.enter(request).await;
        }
        let at = self.hold_or_new(request, true).await?;
        self.holds[at].waiting = request.waiting;
        let outcome = self.stand_and_ask(at, request).await;
        let keep = match &outcome {
            Ok(Attempt::Granted(_)) => true,
            Ok(_) => request.waiting,
            // What may have been done is looked for by the next attempt, or undone by a release.
            Err(error) => error.is_transient(),
        };
        if !keep {
            let hold = self.holds.remove(at);
            if let Some(session) = hold.session {
                session.close(&self.ensemble);
            }
        }
        outcome
    }

    async fn stand_and_ask(&mut self, at: usize, request: &Request) -> Result<Attempt> {
        let hold = &mut self.holds[at];
        for _ in 0..3 {
            if hold.session.is_none() {
                hold.session = Some(negotiate(&self.ensemble, request).await?);
            }
            match hold.still_waits(&self.ensemble).await {
                Ok(Some(busy)) => return Ok(Attempt::Busy(busy)),
                Ok(None) => {}
                Err(Fault::Expired) => hold.forget(),
                Err(Fault::Error(error)) => return Err(error),
            }
            if hold.session.is_none() {
                continue;
            }
            match hold.stand(&self.ensemble, request).await {
                Ok(Standing::First) => return hold.grant_of(),
                Ok(Standing::Behind(seen)) => {
                    let busy = hold.busy(&self.ensemble, request, &seen).await?;
                    if request.waiting {
                        hold.note_waiting(&seen, &busy);
                    }
                    return Ok(busy);
                }
                Ok(Standing::Kept(refusal)) => {
                    // It stays first without waiting for anything but the time. If this fails, the next question tells.
                    let _ = if request.waiting { hold.prove_life(&self.ensemble, None).await } else { Ok(false) };
                    return Ok(Attempt::Refused(refusal));
                }
                Err(Fault::Expired) => hold.forget(),
                Err(Fault::Error(error)) => return Err(error),
            }
        }
        Err(Fault::Expired.into_error())
    }
}

/// A session of the lease that is asked for, or of the nearest one if nobody asked for just that.
pub(super) async fn negotiate(ensemble: &Ensemble, request: &Request) -> Result<Session> {
    let wanted = request.ttl.get();
    let purpose = if request.detached { Purpose::HandedOver } else { Purpose::Hold };
    let session = Session::open(ensemble, wanted, purpose).await?;
    let given = session.timeout;
    if given == wanted || !request.ttl_asked {
        return Ok(session);
    }
    session.close(ensemble);
    // The other end of the range is found out by asking for what lies beyond it.
    let other = Session::open(ensemble, if given < wanted { Duration::from_millis(500) } else { LONGEST }, Purpose::Visit).await?;
    let (min, max) = (given.min(other.timeout), given.max(other.timeout));
    let text = humantime::format_duration;
    Err(Error::new(
        Kind::Unsupported,
        format!("the server can't give a lease of {}: its sessions last {} to {}", text(wanted), text(min), text(max)),
    )
    .hint("minSessionTimeout and maxSessionTimeout in its configuration set the range"))
}

/// Where one stands in the line.
pub(super) enum Standing {
    /// Nobody has to be waited for; the grant is marked and confirmed.
    First,
    /// Somebody has.
    Behind(Box<Seen>),
    /// Nobody has, but an earlier run keeps the lock from this one.
    Kept(Box<Refusal>),
}

impl Hold {
    /// Takes a place in line if there is none yet, and the lock if nobody stands before it.
    async fn stand(&mut self, ensemble: &Ensemble, request: &Request) -> Asked<Standing> {
        if self.granted {
            if self.confirm(ensemble).await? {
                return Ok(Standing::First);
            }
            // Deleted from outside: a new place at the end of the line.
            (self.granted, self.place, self.maybe_placed) = (false, None, true);
        }
        let (mut make_ways, mut conflicts) = (false, 0);
        for _ in 0..LOOKS {
            let mut seen = self.read_all(ensemble, request).await?;
            if self.place.is_none() && self.maybe_placed {
                self.find_place(ensemble, &seen.line).await?;
            }
            if self.place.is_none() {
                let mut basis = seen.basis.take().unwrap_or_default();
                let free = seen.is_free_for(request.mode);
                let refusal = if free {
                    self.judge(ensemble, request.terms.as_ref(), &mut basis).await?
                } else if !request.waiting && seen.nobody_has_it() {
                    // Who is first waits for what keeps everybody.
                    self.judge(ensemble, None, &mut basis).await?
                } else {
                    None
                };
                let refused = refusal.is_some();
                if let Some(refusal) = refusal.filter(|_| !request.waiting) {
                    return Ok(Standing::Kept(refusal));
                }
                if !free && !request.waiting {
                    if is_behind_waiters(request, &seen) && self.remove_gone(ensemble, &seen).await? {
                        continue;
                    }
                    return Ok(Standing::Behind(Box::new(seen)));
                }
                let ways = if seen.missing || make_ways { self.ways(ensemble) } else { Vec::new() };
                // One who waits and is refused joins the line all the same. And what is recorded of a start is to be true: so that is
                // left until we are known to be first.
                let at_once = free && !refused && !records(request) && (conflicts == 0 || !request.waiting);
                let goes_by = at_once.then(|| (basis.version, seen.free_number()));
                match self.join(ensemble, request, goes_by, &ways).await? {
                    Joined::Seen(joined) => seen = *joined,
                    Joined::NoWay => {
                        make_ways = true;
                        continue;
                    }
                    Joined::Changed => {
                        conflicts += 1;
                        continue;
                    }
                }
            }
            let Some(place) = self.place.clone() else { continue };
            if !seen.line.iter().any(|other| other.name == place.contender.name) {
                // Deleted, or this server hasn't heard of it yet: only another look tells.
                self.place = self.stat(ensemble, &place.path).await?.map(|_| place);
                continue;
            }
            let own = guid(&self.token);
            if let Some(double) = seen.line.iter().find(|other| other.before(&place.contender) && other.guid() == Some(&*own)) {
                self.drop_double(ensemble, double).await?;
                continue;
            }
            if let Mode::Permits(most) = request.mode {
                match self.ask_for_permit(ensemble, request, (&place, most), seen, &mut conflicts).await? {
                    Some(standing) => return Ok(standing),
                    None => continue,
                }
            }
            match blocker(&seen.line, &place.contender) {
                None => {
                    // Marked together with its making, it is confirmed, unless the answer to that was lost.
                    let marked = seen.joined && seen.is_marked(&own);
                    if !marked {
                        // What it is judged by was to be read when nobody was before it any more. Then only it may change that.
                        let Some(basis) = &mut seen.basis else { continue };
                        let refusal = self.judge(ensemble, request.terms.as_ref(), basis).await?;
                        // By our own start, it is of a grant whose answer was lost.
                        if let Some(refusal) = refusal.filter(|refusal| refusal.fence != Some(place.fence)) {
                            if !request.waiting {
                                self.leave(ensemble, &place).await?;
                            }
                            return Ok(Standing::Kept(refusal));
                        }
                    }
                    if self.take(ensemble, request, &place, &seen, marked).await? {
                        return Ok(Standing::First);
                    }
                }
                Some(_) if seen.is_marked(&own) => self.unmark(ensemble).await?,
                Some(other) if request.waiting => {
                    let path = self.names.contender(&other.name);
                    if self.blocker.as_ref().is_none_or(|(watched, _)| *watched != path) {
                        let Some(session) = &mut self.session else { return Err(Fault::Expired) };
                        let Some(watch) = session.watch(ensemble, &path).await? else { continue };
                        self.blocker = Some((path, watch));
                    }
                    return Ok(Standing::Behind(Box::new(seen)));
                }
                Some(_) => {
                    // Somebody came first between the look and the joining, and nobody waits for this try.
                    self.leave(ensemble, &place).await?;
                    seen.line.retain(|other| other.name != place.contender.name);
                    return Ok(Standing::Behind(Box::new(seen)));
                }
            }
        }
        Err(failure::unsettled().into())
    }

    /// Takes the lock at the head of the line. False if the line has to be looked at again.
    pub(super) async fn take(&mut self, ensemble: &Ensemble, request: &Request, place: &Place, seen: &Seen, marked: bool) -> Asked<bool> {
        let stale = seen.stale();
        // A reader may have come or gone between the two looks.
        let stale = if stale.is_empty() { Vec::new() } else { self.still_stale(ensemble, stale).await? };
        if !marked && !self.mark_grant(ensemble, request, place, seen).await? {
            return Ok(false);
        }
        (self.granted, self.blocker, self.stale) = (true, None, stale);
        self.bury_old(ensemble).await;
        Ok(true)
    }

    /// Finds the node that a create made whose answer was lost.
    pub(super) async fn find_place(&mut self, ensemble: &Ensemble, line: &[Contender]) -> Asked<()> {
        let own = guid(&self.token);
        let session = self.session.as_ref().map(|session| session.id);
        for contender in line.iter().filter(|contender| contender.guid() == Some(&*own) && !contender.is_twin()) {
            let path = self.names.contender(&contender.name);
            let Some(stat) = self.stat(ensemble, &path).await? else { continue };
            // Of an older session that is just ending, it is only in the way.
            if let (true, Some(fence)) = (Some(stat.session) == session, fence(&stat)) {
                self.place = Some(Place { contender: contender.clone(), path, fence });
                return Ok(());
            }
        }
        self.maybe_placed = false;
        Ok(())
    }

    /// Removes a second node of our own that a late request made before the one that we know. One of another session
    /// of ours is gone soon.
    async fn drop_double(&mut self, ensemble: &Ensemble, double: &Contender) -> Asked<()> {
        let paths: Vec<_> = [&double.name].into_iter().chain(&double.twin).map(|name| self.names.contender(name)).collect();
        self.remove(ensemble, &paths.iter().map(String::as_str).collect::<Vec<_>>()).await
    }

    /// Leaves a place in line.
    pub(super) async fn leave(&mut self, ensemble: &Ensemble, place: &Place) -> Asked<()> {
        self.drop_double(ensemble, &place.contender).await?;
        self.place = None;
        Ok(())
    }

    /// Takes back a mark that proved too early.
    pub(super) async fn unmark(&mut self, ensemble: &Ensemble) -> Asked<()> {
        let (mark, beat, number) = (self.names.mark(&guid(&self.token)), self.beat(), self.number());
        let paths: Vec<_> = [&mark, &beat].into_iter().chain(&number).map(String::as_str).collect();
        self.remove(ensemble, &paths).await?;
        self.grant = None;
        Ok(())
    }

    /// Removes nodes, if they are there.
    pub(super) async fn remove(&mut self, ensemble: &Ensemble, paths: &[&str]) -> Asked<()> {
        let requests: Vec<_> = paths.iter().map(|path| Ask::Delete { path }).collect();
        for answer in self.ask(ensemble, &requests).await? {
            if !matches!(answer, Ok(_) | Err(Code::NoNode)) {
                return Err(unexpected(Some(answer)).into());
            }
        }
        Ok(())
    }

    /// Marks the grant, if our node is still there. False if the line has to be looked at again.
    async fn mark_grant(&mut self, ensemble: &Ensemble, request: &Request, place: &Place, seen: &Seen) -> Asked<bool> {
        let (names, beat, mark) = (self.names.clone(), self.beat(), self.names.mark(&guid(&self.token)));
        let fence = Last::Fence(place.fence.0);
        let (record, ttl) = (Record::write(fence), self.ttl());
        let number = seen.free_number();
        let (grant, numbered) = (Granted::of(request, fence, number), names.permit(number));
        let (says, own) = (grant.write(), guid(&self.token));
        let data = Said::write(request.detached, request.metadata.as_ref());
        let beginning = seen.basis.as_ref().map(|basis| basis.begin(&names, request, place.fence)).unwrap_or_default();
        let mut steps = vec![
            Ask::Check { path: &place.path },
            Ask::Create { path: &mark, data: &says, node: Node::Persistent },
            Ask::Create { path: &beat, data: ttl.as_bytes(), node: Node::Ephemeral },
            match (&seen.basis, request.mode) {
                (Some(basis), Mode::Permits(_)) => Ask::WriteSince { path: &names.meta, data: &record, version: basis.version },
                _ => Ask::Write { path: &names.meta, data: &record },
            },
        ];
        if grant.number().is_some() {
            steps.push(Ask::Create { path: &numbered, data: own.as_bytes(), node: Node::Ephemeral });
            // Which tells who stands behind.
            steps.push(Ask::Write { path: &place.path, data: &data });
        }
        steps.extend(beginning.steps());
        match self.ask(ensemble, &[Ask::All(steps)]).await?.pop() {
            Some(Ok(Reply::AllDone { made, .. })) => {
                (self.grant, self.since) = (Some(grant), made.and_then(|(_, stat)| stat).map(|stat| stat.ctime));
                self.starts = beginning.done(self.since);
                Ok(true)
            }
            Some(Ok(Reply::RolledBack { at: 0, code: Code::NoNode })) => {
                self.place = None;
                Ok(false)
            }
            Some(Ok(Reply::RolledBack { code: Code::NoNode, .. })) => {
                let ways = self.ways(ensemble);
                let requests: Vec<_> = ways.iter().map(|(path, node, data)| Ask::Create { path, data, node: *node }).collect();
                self.ask(ensemble, &requests).await?;
                Ok(false)
            }
            // It was marked before, and the answer lost; or an earlier session of ours left its mark.
            Some(Ok(Reply::RolledBack { at: 1..=2, code: Code::NodeExists })) => {
                let held = self.confirm(ensemble).await?;
                if !held {
                    self.remove(ensemble, &[&mark]).await?;
                }
                Ok(held)
            }
            Some(Ok(Reply::RolledBack { code: Code::BadVersion | Code::NodeExists, .. })) => Ok(false),
            answer => Err(unexpected(answer).into()),
        }
    }

    pub(super) fn ttl(&self) -> String {
        self.session.as_ref().map(|session| session.timeout.as_millis().to_string()).unwrap_or_default()
    }

    fn grant_of(&mut self) -> Result<Attempt> {
        let (Some(place), Some(session)) = (&self.place, &mut self.session) else { return Err(failure::unsettled()) };
        let grant = Grant {
            fence: place.fence,
            ttl: Ttl::new(session.timeout)?,
            holds: 1,
            settle: if self.stale.is_empty() { Duration::ZERO } else { SETTLE },
            session: session.hand_over(),
            permit: self.grant.as_ref().and_then(Granted::number),
        };
        session.let_go();
        Ok(Attempt::Granted(grant))
    }

    /// Who has the lock, for somebody who stands in line or only looked at it.
    async fn busy(&mut self, ensemble: &Ensemble, request: &Request, seen: &Seen) -> Result<Attempt> {
        let folder = meta_folder(&ensemble.options.chroot, &ensemble.options.namespace);
        // Who stands in line is told the time by what the others do: one write less for each look.
        let clock = if self.place.is_some() { Clock::Known(0) } else { Clock::Make(&folder) };
        let Some(session) = &mut self.session else { return Err(failure::unsettled()) };
        let line = &seen.line;
        // A waiter for a permit may stand before a holder of one.
        let permits = matches!(line.first().map(|first| first.class), Some(Class::Permit(_)));
        let with_permits = if permits { seen.with_permits() } else { Vec::new() };
        let told = if permits { &with_permits } else { line };
        let Look { holders, .. } = look(session, ensemble, &self.names, told, false, clock).await.map_err(Fault::into_error)?;
        let position = self.place.as_ref().filter(|_| request.waiting).and_then(|place| {
            if permits {
                return Some(seen.place_for_permit(&place.contender));
            }
            let at = line.iter().position(|other| other.name == place.contender.name)?;
            u32::try_from(at + 1 - holders.len().min(at)).ok()
        });
        let soonest = if request.waiting { SOONEST } else { Duration::ZERO };
        let head = position.is_none_or(|position| position == 1);
        let known = |holder: &Holder| holder.expires_in;
        let ends = holders.iter().filter_map(known);
        // Whichever permit comes back first is enough.
        let expires_in = if matches!(request.mode, Mode::Permits(_)) { ends.min() } else { ends.max() };
        let expires_in = expires_in.filter(|_| head && holders.iter().all(|h| h.expires_in.is_some()));
        // Nobody has it just now; who waits is told of its turn.
        let expires_in = if holders.is_empty() && head { Some(soonest) } else { expires_in };
        Ok(Attempt::Busy(Busy {
            expires_in: expires_in.map(|left| left.max(soonest)),
            notifies: true,
            passing: holders.is_empty(),
            position,
            holders,
        }))
    }
}
