//! The steps that change a lock: read, decide, and write if no other client wrote meanwhile.

use std::time::Duration;

use super::{Base, CasBackend, Change, ReadFor, Snapshot, Store, changed_meanwhile, in_order};
use crate::lock::{
    Attempt, Busy, Entry, Error, Fence, Grant, Intent, Key, Kind, Mode, Release, ReleaseInfo,
    Renewal, Request, Result, Token,
    document::{Document, RequestContext},
};

/// How often a step begins anew because other clients were faster.
const TRIES: usize = 100;
/// Fences stay below this: JSON readers have no exact numbers from here on.
const LAST_FENCE: u64 = 1 << 53;

impl<S: Store> CasBackend<S> {
    /// Takes a lock, enters it, or joins its queue.
    pub(super) async fn take(&mut self, request: &Request) -> Result<Attempt> {
        self.store.identity().capabilities.check(request)?;
        let fresh = request.entry == Entry::Fresh;
        // A waiter in the queue only looks first, and blocks no other program until it may go.
        let mut claims = fresh && !(in_order(request) && self.is_queued(request));
        if fresh && request.mode == Mode::Exclusive && S::IN_ONE_STEP {
            if request.waiting {
                self.note_queued(request);
            }
            if let Some(fence) = self.store.grant(request).await? {
                let grant = Grant {
                    fence,
                    ttl: request.ttl,
                    holds: 1,
                    drain_delay: Duration::ZERO,
                    session: None,
                    permit: None,
                };
                return Ok(self.answered(request, Attempt::Granted(grant)).await);
            }
        }
        for _ in 0..TRIES {
            let snapshot = self
                .read(&request.key, ReadFor::Acquire { request, claims })
                .await?;
            if let Some(attempt) = self.decide(request, snapshot).await? {
                return Ok(self.answered(request, attempt).await);
            }
            claims = fresh;
        }
        Ok(self.answered(request, transient()).await)
    }

    pub(super) async fn read(
        &mut self,
        key: &Key,
        purpose: ReadFor<'_>,
    ) -> Result<Snapshot<S::Version>> {
        let snapshot = self.store.read(key, purpose).await?;
        Self::check(key, &snapshot, &snapshot.document, None);
        Ok(snapshot)
    }

    /// Checks a document that was read, or is to be written over one that was.
    pub(super) fn check(
        key: &Key,
        was: &Snapshot<S::Version>,
        document: &Document,
        granted: Option<Fence>,
    ) {
        let last = granted.or(was.fence);
        document.check(key.as_str(), was.now(), last, S::READS_AT_ONCE);
    }

    /// Returns `None` if the lock must be read anew.
    pub(super) async fn decide(
        &mut self,
        request: &Request,
        snapshot: Snapshot<S::Version>,
    ) -> Result<Option<Attempt>> {
        let (now_us, apart, outside, base) = (
            snapshot.now_us,
            snapshot.apart,
            snapshot.outside.clone(),
            snapshot.base,
        );
        let moment = RequestContext {
            now: snapshot.now(),
            outside: snapshot.outside_until(),
            fence: snapshot.next_fence(),
        };
        let mut document = snapshot.document.clone();
        document.expire(moment.now);
        let asked = Request {
            waiting: request.waiting && !apart,
            ..request.clone()
        };
        let answer = document.acquire(&asked, &moment);
        let granted = matches!(&answer, Ok(Attempt::Granted(grant)) if grant.fence == moment.fence);
        let answer = match answer {
            Ok(_) if granted && base == Base::Nothing => return Ok(None),
            Ok(_) if granted && moment.fence.0 >= LAST_FENCE => Err(beyond()),
            answer => answer,
        };
        let mut answer = match answer {
            Ok(answer) => answer,
            Err(error) => {
                self.withdraw_claim(request, snapshot).await;
                return Err(error);
            }
        };
        if matches!(answer, Attempt::Busy(_)) && request.waiting {
            self.note_queued(request);
        }
        let repeats = base == Base::Claim
            || !document.only_hears(&snapshot.document, &request.token, moment.now);
        if granted {
            self.unsure = Some((request.key.clone(), request.token));
        }
        let written = self
            .write(
                &request.key,
                snapshot,
                document,
                (granted.then_some(moment.fence), base == Base::Claim),
                Some(request),
            )
            .await?;
        if granted {
            self.unsure = None;
        }
        if !written && repeats {
            // A claim is lost only if its time is over: then another client holds the lock, or soon
            // will.
            return Ok((granted && base == Base::Claim).then(transient));
        }
        if let Attempt::Busy(busy) = &mut answer {
            if apart && request.waiting {
                busy.position = self.store.note_waiter(request, now_us).await?;
            }
            if let Some(outside) = outside {
                busy.expires_in = outside.left.map(Duration::from_millis);
                (busy.holders, busy.transient) = (vec![outside.holder], outside.transient);
            }
            self.store.advise(request, busy);
        }
        Ok(Some(answer))
    }

    /// Withdraws the claim on an empty place, if there is one. One that can't be withdrawn ends by
    /// itself.
    async fn withdraw_claim(&mut self, request: &Request, snapshot: Snapshot<S::Version>) {
        if snapshot.base == Base::Claim {
            let (key, unchanged) = (&request.key, snapshot.document.clone());
            let _ = self
                .write(key, snapshot, unchanged, (None, true), Some(request))
                .await;
        }
    }

    /// Records the consequence of an answer for waiting.
    async fn answered(&mut self, request: &Request, attempt: Attempt) -> Attempt {
        self.transient = matches!(
            &attempt,
            Attempt::Busy(Busy {
                transient: true,
                ..
            })
        );
        if matches!(attempt, Attempt::Granted(_)) {
            // If this fails, the entry ends by itself.
            let _ = self.leave_list(request).await;
        }
        attempt
    }

    /// Writes the result of a step, if it changed anything or must be written. Returns false if
    /// another client wrote meanwhile.
    async fn write(
        &mut self,
        key: &Key,
        mut was: Snapshot<S::Version>,
        mut document: Document,
        (granted, must): (Option<Fence>, bool),
        request: Option<&Request>,
    ) -> Result<bool> {
        let wake = document.take_wake_ups(was.outside_until());
        let ended = document.take_ended();
        // If only the outbox is new, the next step can write it.
        was.document.take_ended();
        if !must && document == was.document {
            return Ok(true);
        }
        Self::check(key, &was, &document, granted);
        self.store
            .swap(
                key,
                was,
                Change {
                    document: &document,
                    granted,
                    ended,
                    wake,
                    request,
                    must,
                },
            )
            .await
    }

    /// Runs one step on the document of a lock. `decide` gets the time in ms, and the same rounded
    /// up.
    pub(in crate::backends) async fn step<T>(
        &mut self,
        key: &Key,
        purpose: ReadFor<'_>,
        decide: impl Fn(&mut Document, u64, u64) -> T,
    ) -> Result<T> {
        for _ in 0..TRIES {
            let snapshot = self.read(key, purpose).await?;
            let (now, up, mut document) =
                (snapshot.now(), snapshot.now_up(), snapshot.document.clone());
            document.expire(now);
            let answer = decide(&mut document, now, up);
            if self
                .write(key, snapshot, document, (None, false), None)
                .await?
            {
                return Ok(answer);
            }
        }
        Err(changed_meanwhile())
    }

    /// Extends a hold.
    pub(super) async fn extend(
        &mut self,
        key: &Key,
        token: &Token,
        intent: Intent,
    ) -> Result<Renewal> {
        if let Some(ttl) = intent.ttl() {
            self.store.identity().capabilities.check_ttl(ttl)?;
        }
        if let Some((ttl, fence)) = self.store.extend(key, token, intent).await? {
            return Ok(Renewal::Renewed { ttl, fence });
        }
        // Ends are rounded up. Without that, a recent end could be later than the end that the same
        // TTL gives now.
        self.step(key, ReadFor::Change, |document, _, up| {
            document.renew(token, intent, up)
        })
        .await
    }

    /// Whether a token has a hold. The end of a hold is written before it is reported.
    pub(super) async fn look_for(&mut self, key: &Key, token: &Token) -> Result<Renewal> {
        let snapshot = self.read(key, ReadFor::Change).await?;
        let mut document = snapshot.document.clone();
        document.expire(snapshot.now());
        let answer = document.verify(token, snapshot.now_up());
        if answer == Renewal::NotHeld && snapshot.document.lasts(token).is_some() {
            match self
                .write(key, snapshot, document, (None, false), None)
                .await
            {
                // A client that may only look changes nothing.
                Err(error) if error.kind != Kind::Denied => return Err(error),
                // A faster client has written the same end.
                _ => {}
            }
        }
        Ok(answer)
    }

    /// Releases a hold.
    pub(super) async fn release(
        &mut self,
        key: &Key,
        token: &Token,
        info: &ReleaseInfo,
    ) -> Result<Release> {
        if self.store.free(key, token, info).await? {
            return Ok(Release::Released);
        }
        for _ in 0..TRIES {
            let snapshot = self.read(key, ReadFor::Release(token, info)).await?;
            let (now, claimed, mut document) = (
                snapshot.now(),
                snapshot.base == Base::Claim,
                snapshot.document.clone(),
            );
            document.expire(now);
            let answer = document.release(token, info, now);
            // A grant that is still on its way must not find the document that it was decided on.
            let unsure = self
                .unsure
                .as_ref()
                .is_some_and(|(of, unsure)| (of, unsure) == (key, token));
            let must = claimed || (unsure && answer == Release::NotHeld);
            if self
                .write(key, snapshot, document, (None, must), None)
                .await?
            {
                if unsure {
                    self.unsure = None;
                }
                return Ok(if claimed { Release::Released } else { answer });
            }
        }
        Err(changed_meanwhile())
    }

    fn is_queued(&self, request: &Request) -> bool {
        self.queued
            .iter()
            .any(|(key, token)| *key == request.key && *token == request.token)
    }

    /// Notes that a request may be in the queue.
    pub(in crate::backends) fn note_queued(&mut self, request: &Request) {
        if !self.is_queued(request) {
            self.queued.push((request.key.clone(), request.token));
        }
    }

    /// Leaves the queue.
    pub(super) async fn leave(&mut self, request: &Request) -> Result<()> {
        if self.is_queued(request) && !self.leave_list(request).await? {
            self.step(&request.key, ReadFor::Change, |document, _, _| {
                document.leave(&request.token)
            })
            .await?;
            self.forget_queued(request);
        }
        Ok(())
    }

    /// Removes a waiter that is stored separately; returns whether it is stored so.
    async fn leave_list(&mut self, request: &Request) -> Result<bool> {
        let removed = self.is_queued(request) && self.store.remove_waiter(request).await?;
        if removed {
            self.forget_queued(request);
        }
        Ok(removed)
    }

    fn forget_queued(&mut self, request: &Request) {
        self.queued
            .retain(|(key, token)| *key != request.key || *token != request.token);
    }
}

fn transient() -> Attempt {
    Attempt::Busy(Busy {
        transient: true,
        ..Busy::default()
    })
}

fn beyond() -> Error {
    Error::new(Kind::Data, "the lock's fence counter is beyond 2^53")
        .hint("another program wrote it")
}
