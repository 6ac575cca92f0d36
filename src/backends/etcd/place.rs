//! A place in the queue: taking it, what it answers from one look to the next, and leaving it.

use super::{
    acquire::Taking,
    client::{Answer, Client},
    failure, hold, look,
    lookout::{self, Lookout},
    names::Names,
    ops,
    queue::{Before, Look},
    runs,
    session::{Queued, Session, Standing},
    waiting,
};
use crate::{
    backends::queue,
    lock::{Attempt, Busy, Denial, Mode, Ttl},
};

/// How often a place in the queue is only checked before the whole queue is read again, to tell the holders.
const CHECKS: u32 = 5;
/// The first so many waiters are told when the lease of a holder ends. A thousand that ask for it keep the server busy for seconds.
const NEAR: u32 = 3;

impl Taking<'_> {
    /// It is not our turn: a waiter stays in the queue, on a lease that was granted now or is alive until then.
    pub(super) async fn behind(mut self, look: &Look, at: usize) -> Answer<Attempt> {
        let mode = self.request.mode;
        let blocker = look.queue.blocker(mode, at).map(|other| &look.contenders[other]);
        if let Some(endless) = blocker.filter(|one| one.lease == 0) {
            return Err(failure::no_end(&endless.name).into());
        }
        if !self.request.waiting {
            return self.declined(look).await;
        }
        self.drop_leases().await;
        let place = look.queue.place(at);
        let busy = Busy { position: Some(place), ..self.told(look, place <= NEAR).await? };
        let permits = matches!(mode, Mode::Permits(_)).then_some(look.queue.permits());
        // What a reader or a writer in front of a waiter for a permit does is seen by the first one behind it only.
        let checks = if permits.is_some() && blocker.is_some() { u32::MAX } else { 0 };
        let before = look.before(&self.session.names, mode, at);
        let lookout = Lookout::seen(look.looked_after);
        let mut queued = Queued { permits, checks, before, lookout, busy: busy.clone(), ..self.queued(look, at, self.granted) };
        if let (Standing::Queued(old), None) = (&self.session.stage, self.granted) {
            // The same place as at the last look.
            (queued.alive_until, queued.called, queued.unanswered, queued.lookout) =
                (old.alive_until, old.called, old.unanswered, old.lookout);
        }
        queued.catch_up(look.looked_after, look.call_of(self.session.lease));
        self.session.stage = Standing::Queued(queued);
        Ok(Attempt::Busy(busy))
    }

    /// The own place, whose lease was `extended` now if so.
    fn queued(&self, look: &Look, at: usize, extended: Option<Ttl>) -> Queued {
        Queued {
            own: self.own.clone(),
            created: look.contenders[at].created,
            before: Before::default(),
            permits: None,
            seen: look.revision,
            busy: Busy::default(),
            checks: u32::MAX,
            ttl: extended.unwrap_or(self.request.ttl),
            alive_until: waiting::fresh_until(extended, false),
            called: false,
            unanswered: false,
            lookout: Lookout::Another,
        }
    }

    /// The first contender is denied the lock by the run policy. A waiter stays first, and keeps its place alive by asking again.
    pub(super) async fn stay_first(self, look: &Look, at: usize, ttl: Ttl, denial: (Denial, i64)) -> Answer<Attempt> {
        let before = Before { key: Some(self.own.clone()), ..Before::default() };
        self.session.stage = Standing::Queued(Queued { before, ..self.queued(look, at, Some(ttl)) });
        self.refused(look, denial).await
    }

    /// The lock is not ours, and we don't wait.
    pub(super) async fn declined(mut self, look: &Look) -> Answer<Attempt> {
        let own = self.session.lease;
        let is_other = |at: usize| look.contenders[at].lease != own;
        // The first waiter waits for what keeps every process from the lock.
        let run_policy = self.request.run_policy.as_ref().filter(|_| !look.queue.waiters().any(is_other));
        let denial = look.runs.judge(run_policy, &self.request.token);
        if let Some(denial) = denial.filter(|_| !look.queue.holders().any(is_other)) {
            return self.refused(look, denial).await;
        }
        self.drop_leases().await;
        self.busy(look).await
    }

    async fn refused(mut self, look: &Look, denial: (Denial, i64)) -> Answer<Attempt> {
        self.drop_leases().await;
        let waits = match &self.session.stage {
            Standing::Queued(queued) if self.request.waiting => Some(queued.ttl.get()),
            _ => None,
        };
        let denial = runs::with_times(self.client, denial, waits).await;
        if !self.request.waiting {
            self.go(look).await?;
        }
        Ok(Attempt::Denied(denial))
    }

    /// Another process has the lock, and we don't wait: nothing of ours stays.
    async fn busy(mut self, look: &Look) -> Answer<Attempt> {
        let (mode, end) = (self.request.mode, look.queue.len());
        let blocker = look.queue.blocker(mode, end).map(|other| &look.contenders[other]);
        let endless = blocker.filter(|one| one.lease == 0).map(|one| failure::no_end(&one.name));
        let told = self.told(look, true).await;
        let ahead = look.first_waiting(self.session.lease).filter(|_| told.is_ok() && look.queue.only_waiters_block(mode));
        let removed = match &ahead {
            Some(ahead) => lookout::remove_if_gone(self.client, &self.session.names, ahead).await?,
            None => false,
        };
        let free = removed || look.queue.may_hold(mode, end);
        self.go(look).await?;
        match endless {
            Some(error) => Err(error.into()),
            None => told.map(|told| Attempt::Busy(Busy { passing: told.passing || free, ..told })),
        }
    }

    /// Returns the holders of the lock, with `ends` also when their leases end, and whether this waiter is next.
    async fn told(&mut self, look: &Look, ends: bool) -> Answer<Busy> {
        let own = |at: &usize| look.contenders[*at].lease == self.session.lease;
        let holders = look::tell(self.client, look, look.queue.holders().filter(|at| !own(at)), ends).await?;
        let next = look.queue.waiters().next().is_none_or(|at| own(&at));
        Ok(queue::busy(self.request.mode, holders, None, next))
    }

    /// Ends the leases of run records that are not put.
    async fn drop_leases(&mut self) {
        if let Some(leases) = self.leases.take() {
            leases.end(self.client).await;
        }
    }

    /// Leaves nothing of ours behind. Without the lease no key is put any more.
    async fn go(&mut self, look: &Look) -> Answer<()> {
        if look.contenders.iter().any(|one| one.lease == self.session.lease) {
            hold::leave(self.client, self.session, self.request.mode).await
        } else {
            self.client.revoke(self.session.lease).await
        }
    }
}

/// A waiter that has its turn no longer looks after the queue. Its command need not wait for that.
pub(super) fn retire(client: &Client, session: &Session) {
    if let Standing::Queued(queued) = &session.stage
        && queued.lookout.is_own()
    {
        client.revoke_meanwhile(session.lookout());
    }
}

/// What a place in the queue answers without reading all of it; `None` if something happened.
pub(super) async fn still_queued(
    client: &mut Client,
    (names, lease): (&Names, i64),
    queued: &mut Queued,
    watched: bool,
) -> Answer<Option<Busy>> {
    // The farther behind, the less is gained by knowing by how much.
    let checks = CHECKS.max(queued.busy.position.unwrap_or_default() / 8);
    if queued.checks >= checks || queued.busy.position == Some(1) {
        return Ok(None);
    }
    queued.checks += 1;
    if watched && !waiting::is_past(queued.alive_until) {
        // The watch would have told, by a member that has answered not long ago.
        return Ok(Some(queued.busy.clone()));
    }
    let Before { key, record, .. } = &queued.before;
    let keys: Vec<_> = [&queued.own].into_iter().chain(key).chain(record).collect();
    let mut ops: Vec<_> = keys.iter().map(|key| ops::peek(key)).collect();
    ops.extend([ops::peek(&names.lookout()), ops::get(&names.call(lease)), ops::count(&names.numbers())]);
    let mut answers = client.run(ops).await?;
    let mut unchanged = true;
    for _ in keys {
        // None of them was put since, the record neither.
        unchanged &= answers.one()?.is_some_and(|kv| kv.mod_revision <= queued.seen);
    }
    let (post, call) = (answers.one()?, answers.keys()?);
    queued.catch_up(post.is_some(), lookout::calls(names, &call).first().map(|(_, call)| *call));
    let permits = answers.last_count();
    unchanged &= queued.permits.is_none_or(|before| before == permits);
    if unchanged {
        queued.seen = answers.revision;
    }
    Ok(unchanged.then(|| queued.busy.clone()))
}
