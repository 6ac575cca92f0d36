//! An attempt and its position in the queue: entering the queue, answering from one look to the
//! next, and leaving.

use std::time::Duration;

use super::{
    client::{EtcdClient, EtcdResult},
    clock, failure,
    inspect::{self, Remaining},
    monitor,
    names::EtcdNames,
    ops, probe,
    queue::{AwaitedKeys, LockAtRevision},
    runs::Leases,
    session::{EtcdSession, HoldState, QueueMonitor, Queued},
    waiting,
};
use crate::{
    backends::queue,
    lock::{Attempt, Busy, Denial, Mode, Request, Ttl},
};

/// How many times a queue position is only checked before the whole queue is read again, for its
/// holders.
const CHECKS: u32 = 5;
/// The number of first waiters that learn when a holder's lease ends. A thousand waiters that ask
/// keep the server busy for seconds.
const NEAR: u32 = 3;
/// The shortest delay until a waiter for the end of a lease asks again.
const SOONEST: Duration = Duration::from_millis(250);

/// One attempt to take the lock for a token that is not nested.
pub(super) struct AcquireAttempt<'a> {
    pub client: &'a mut EtcdClient,
    pub session: &'a mut EtcdSession,
    pub request: &'a Request,
    /// The own key.
    pub own: String,
    /// The leases of the run records, if they were granted for this attempt.
    pub leases: Option<Leases>,
    /// The length of the lock's lease, if this attempt granted it.
    pub granted: Option<Ttl>,
}

impl AcquireAttempt<'_> {
    /// Keeps a waiter that is not yet first in the queue, on a lease that was granted now or is
    /// still alive.
    pub(super) async fn wait_behind(
        mut self,
        look: &LockAtRevision,
        at: usize,
    ) -> EtcdResult<Attempt> {
        let mode = self.request.mode;
        let blocker = look
            .queue
            .blocker(mode, at)
            .map(|other| &look.contenders[other]);
        if let Some(endless) = blocker.filter(|one| one.lease == 0) {
            return Err(failure::never_expires(&endless.name).into());
        }
        if !self.request.waiting {
            return self.declined(look).await;
        }
        self.drop_leases().await;
        let place = look.queue.position(at);
        let busy = Busy {
            position: Some(place),
            ..self.read_busy(look, place <= NEAR).await?
        };
        let permits = matches!(mode, Mode::Permits(_)).then_some(look.queue.permits());
        // Only the first waiter behind sees what a reader or writer in front of a permit's waiter
        // does.
        let checks = if permits.is_some() && blocker.is_some() {
            u32::MAX
        } else {
            0
        };
        let before = look.before(&self.session.names, mode, at);
        let monitor = QueueMonitor::new(look.has_monitor);
        let mut queued = Queued {
            permits,
            checks,
            before,
            monitor,
            busy: busy.clone(),
            ..self.queued(look, at, self.granted)
        };
        if let (HoldState::Queued(old), None) = (&self.session.state, self.granted) {
            // The position is the same as at the last look.
            (
                queued.alive_until,
                queued.probed,
                queued.unanswered,
                queued.monitor,
            ) = (old.alive_until, old.probed, old.unanswered, old.monitor);
        }
        queued.catch_up(look.has_monitor, look.probe_of(self.session.lease));
        self.session.state = HoldState::Queued(queued);
        Ok(Attempt::Busy(busy))
    }

    /// Returns the own position. `extended` is the lease's length if the lease was extended now.
    fn queued(&self, look: &LockAtRevision, at: usize, extended: Option<Ttl>) -> Queued {
        Queued {
            own: self.own.clone(),
            created: look.contenders[at].created,
            before: AwaitedKeys::default(),
            permits: None,
            seen: look.revision,
            busy: Busy::default(),
            checks: u32::MAX,
            ttl: extended.unwrap_or(self.request.ttl),
            alive_until: waiting::fresh_until(extended, false),
            probed: false,
            unanswered: false,
            monitor: QueueMonitor::Another,
        }
    }

    /// Handles a first contender that the run policy denies the lock. A waiter stays first, and
    /// extends its lease by asking again.
    pub(super) async fn stay_first(
        self,
        look: &LockAtRevision,
        at: usize,
        ttl: Ttl,
        denial: (Denial, i64),
    ) -> EtcdResult<Attempt> {
        let before = AwaitedKeys {
            key: Some(self.own.clone()),
            ..AwaitedKeys::default()
        };
        self.session.state = HoldState::Queued(Queued {
            before,
            ..self.queued(look, at, Some(ttl))
        });
        self.refused(look, denial).await
    }

    /// Answers a request that does not wait and does not have the lock.
    pub(super) async fn declined(mut self, look: &LockAtRevision) -> EtcdResult<Attempt> {
        let own = self.session.lease;
        let is_other = |at: usize| look.contenders[at].lease != own;
        // If another waiter is there, only an at-least is judged. It denies the lock to every
        // process, the first waiter too.
        let run_policy = self
            .request
            .run_policy
            .as_ref()
            .filter(|_| !look.queue.waiters().any(is_other));
        let denial = look.runs.judge(run_policy, &self.request.token);
        if let Some(denial) = denial.filter(|_| !look.queue.holders().any(is_other)) {
            return self.refused(look, denial).await;
        }
        self.drop_leases().await;
        self.busy(look).await
    }

    async fn refused(
        mut self,
        look: &LockAtRevision,
        denial: (Denial, i64),
    ) -> EtcdResult<Attempt> {
        self.drop_leases().await;
        let waits = match &self.session.state {
            HoldState::Queued(queued) if self.request.waiting => Some(queued.ttl.get()),
            _ => None,
        };
        let denial = add_times(self.client, denial, waits).await;
        if !self.request.waiting {
            self.withdraw(look).await?;
        }
        Ok(Attempt::Denied(denial))
    }

    /// Reports that another process has the lock to a request that does not wait. Leaves no key of
    /// this request.
    async fn busy(mut self, look: &LockAtRevision) -> EtcdResult<Attempt> {
        let (mode, end) = (self.request.mode, look.queue.len());
        let blocker = look
            .queue
            .blocker(mode, end)
            .map(|other| &look.contenders[other]);
        let endless = blocker
            .filter(|one| one.lease == 0)
            .map(|one| failure::never_expires(&one.name));
        let busy = self.read_busy(look, true).await;
        let ahead = look
            .first_waiting(self.session.lease)
            .filter(|_| busy.is_ok() && look.queue.only_waiters_block(mode));
        let removed = match &ahead {
            Some(ahead) => monitor::remove_if_gone(self.client, &self.session.names, ahead).await?,
            None => false,
        };
        let free = removed || look.queue.may_hold(mode, end);
        self.withdraw(look).await?;
        match endless {
            Some(error) => Err(error.into()),
            None => busy.map(|busy| {
                Attempt::Busy(Busy {
                    transient: busy.transient || free,
                    ..busy
                })
            }),
        }
    }

    /// Returns the holders of the lock, and whether this waiter is next. With `ends`, adds when the
    /// holders' leases end.
    async fn read_busy(&mut self, look: &LockAtRevision, ends: bool) -> EtcdResult<Busy> {
        let own = |at: &usize| look.contenders[*at].lease == self.session.lease;
        let holders = inspect::read_holders(
            self.client,
            look,
            look.queue.holders().filter(|at| !own(at)),
            ends,
        )
        .await?;
        let next = look.queue.waiters().next().is_none_or(|at| own(&at));
        Ok(queue::busy(self.request.mode, holders, None, next))
    }

    /// Ends the leases of run records that are not put.
    async fn drop_leases(&mut self) {
        if let Some(leases) = self.leases.take() {
            leases.end(self.client).await;
        }
    }

    /// Removes everything of this request. Without the lease no further key is put.
    async fn withdraw(&mut self, look: &LockAtRevision) -> EtcdResult<()> {
        if look
            .contenders
            .iter()
            .any(|one| one.lease == self.session.lease)
        {
            leave(self.client, self.session, self.request.mode).await
        } else {
            self.client.revoke(self.session.lease).await
        }
    }
}

/// Adds to a denial when its record began and when it ends, as the record's lease tells.
///
/// A waiter is told to ask again before its position's lease, of length `waits`, ends.
async fn add_times(
    client: &mut EtcdClient,
    (denial, lease): (Denial, i64),
    waits: Option<Duration>,
) -> Box<Denial> {
    // No denial depends on these times.
    let (left, began) = match inspect::remaining(client, lease).await {
        Ok(Remaining::For { left, ago }) => (Some(left), Some(ago)),
        _ => (None, None),
    };
    let again_in = match waits {
        None => left,
        Some(lasts) => Some(
            left.unwrap_or(lasts)
                .saturating_sub(Duration::from_secs(1))
                .min(lasts / 3)
                .max(SOONEST),
        ),
    };
    Box::new(Denial {
        began,
        again_in,
        ..denial
    })
}

/// Removes all keys of this process from the queue, and prevents late ones.
pub(super) async fn leave(
    client: &mut EtcdClient,
    session: &mut EtcdSession,
    mode: Mode,
) -> EtcdResult<()> {
    let (keys, lease) = match &session.inner {
        Some(inner) => (vec![inner.name.clone()], inner.lease),
        None => (
            vec![
                session.names.own(mode, session.lease),
                session.names.open_of(session.lease),
            ],
            session.lease,
        ),
    };
    client
        .run(keys.iter().map(|key| ops::delete(key)).collect())
        .await?;
    client.revoke(lease).await?;
    let monitor = session.monitor_lease();
    if let HoldState::Queued(queued) = &mut session.state {
        monitor::retire(client, queued, monitor).await;
    }
    session.watches = None;
    Ok(())
}

/// Stops a granted waiter from being the queue monitor. Its command need not wait for that.
pub(super) fn retire(client: &EtcdClient, session: &EtcdSession) {
    if let HoldState::Queued(queued) = &session.state
        && queued.monitor.is_own()
    {
        client.revoke_meanwhile(session.monitor_lease());
    }
}

/// Returns the answer for a queue position without reading the whole queue; `None` if something
/// changed.
pub(super) async fn check_position(
    client: &mut EtcdClient,
    (names, lease): (&EtcdNames, i64),
    queued: &mut Queued,
    watched: bool,
) -> EtcdResult<Option<Busy>> {
    // The farther behind a waiter is, the less its exact position matters.
    let checks = CHECKS.max(queued.busy.position.unwrap_or_default() / 8);
    if queued.checks >= checks || queued.busy.position == Some(1) {
        return Ok(None);
    }
    queued.checks += 1;
    if watched && !clock::is_past(queued.alive_until) {
        // The watch would have reported a change, through a member that answered recently.
        return Ok(Some(queued.busy.clone()));
    }
    let AwaitedKeys { key, record, .. } = &queued.before;
    let keys: Vec<_> = [&queued.own].into_iter().chain(key).chain(record).collect();
    let mut ops: Vec<_> = keys.iter().map(|key| ops::peek(key)).collect();
    ops.extend([
        ops::peek(&names.monitor()),
        ops::get(&names.probe(lease)),
        ops::count(&names.numbers()),
    ]);
    let mut answers = client.run(ops).await?;
    let mut unchanged = true;
    for _ in keys {
        // None of these keys was put since the last look, and neither was the record.
        unchanged &= answers
            .one()?
            .is_some_and(|kv| kv.mod_revision <= queued.seen);
    }
    let (monitor_key, probe) = (answers.one()?, answers.keys()?);
    queued.catch_up(
        monitor_key.is_some(),
        probe::probes(names, &probe)
            .first()
            .map(|(_, probe)| *probe),
    );
    let permits = answers.last_count();
    unchanged &= queued.permits.is_none_or(|before| before == permits);
    if unchanged {
        queued.seen = answers.revision;
    }
    Ok(unchanged.then(|| queued.busy.clone()))
}
