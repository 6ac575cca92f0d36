//! `mode=row` and `mode=advisory`: a session has the lock, and the lock ends with the session.
//!
//! Another process can't take over or enter a hold. dlock checks a hold over the hold's own session
//! only: an error that ended the session ended the hold. dlock counts and commits the fence once it
//! has the lock, before it reports the grant, over a second session if the first is in a
//! transaction.
//!
//! Worst interleavings, and why they are harmless:
//! - *The reply to a grant is lost.* dlock asks the same session again, which has the lock already.
//!   After two unanswered requests dlock opens another session, ends the unanswered one over it by
//!   the identity that the server gave it, and asks.
//! - *The connections are lost without a word, and the server keeps its sessions.* As before; a
//!   release that is not answered ends the session, too. dlock ends only sessions that wait, or
//!   whose hold is granted anew, undone or released: no command runs under them.
//! - *The holder's fence is counted and the holder dies.* The fence is skipped.
//! - *The request for the fence arrives after the holder died.* Over the holder's own session it is
//!   lost with it. Over the second one it may find the next holder's record: it does nothing once
//!   the holder's transaction or the last fence is another one.
//! - *The session is ended by an administrator, a restart or the idle timeout.* The socket says so
//!   at once ([`Backend::watch`]), or the next renewal does, and dlock kills the command. The next
//!   holder may have the lock in that instant: the record of the previous holder makes it wait a
//!   moment before it starts anything. The end of that drain delay is stored with the fence: a
//!   repeated request whose answer was lost has the delay, too, and so has every holder that is
//!   granted the lock meanwhile.
//! - *The server crashes or fails over, and a holder does not notice.* The holder's record names
//!   the server that had its session: the lock is busy until the holder's lease is over by the
//!   server's clock.
//! - *The server has no connection left.* With `mode=row` a request has two sessions before it
//!   asks, or none: no waiter keeps a connection while it waits for another one. A waiter far
//!   behind gives the second one back, and the first one if it can't have the second again.
//! - *Another mode is used for the same lock.* The lock's row in the table of leases names its
//!   mode: other modes are refused.
//! - *A waiter gets the lock while it is frozen.* The server ends that session after a few seconds
//!   of silence.
//! - *A holder vanishes.* Its record stays, and is reported as expired, or as broken if it was
//!   marked. The next grant writes it to the history before it replaces the record.
//! - *Readers come one after the other while a writer waits.* The server lets no reader in while a
//!   writer waits. A wait ends every few seconds and begins again: a reader that comes in just that
//!   instant gets in.
//! - *dlock is killed.* The guardian has the socket as well, and closes it when the command's tree
//!   is dead.

use std::{io, os::fd::OwnedFd, time::Duration};

use async_trait::async_trait;

use super::{
    NEAR, SqlMode,
    client::{Client, HasClient, Session},
    looks_at_the_end, micros, ms,
    session_store::{Beginning, Begun, LockOf, Over, SessionStore, Tries},
};
use crate::lock::{
    Amendment, Attempt, Backend, Busy, DRAIN_DELAY, Fence, Grant, History, Identity, Intent, Key,
    LockState, Notice, Progress, Release, ReleaseInfo, Renewal, Request, Result, Token, Ttl, Wake,
    Which,
};

/// Locks that sessions keep.
pub(in crate::backends) struct SessionLocks<S: SessionStore> {
    store: S,
    holds: Vec<SessionHold<LockOf<S>>>,
    tries: Tries<LockOf<S>>,
    /// The requests that may be in the queue.
    queued: Vec<(Key, Token)>,
}

/// A lock that one of this process's sessions has.
struct SessionHold<L> {
    key: Key,
    token: Token,
    lock: L,
    fence: Fence,
    ttl: Ttl,
    /// The end of the lease by the server's clock, in µs.
    ends_us: i64,
    /// The lock is being given back and must not be relied on.
    leaving: bool,
}

impl<S: SessionStore> SessionLocks<S> {
    /// Returns a backend, without I/O.
    pub(in crate::backends) fn of(store: S) -> Self {
        Self {
            store,
            holds: Vec::new(),
            tries: Tries::new(),
            queued: Vec::new(),
        }
    }

    fn hold_of(&self, key: &Key, token: &Token) -> Option<usize> {
        self.holds
            .iter()
            .position(|hold| hold.key == *key && hold.token == *token)
    }

    fn is_queued(&self, key: &Key, token: &Token) -> bool {
        self.queued.iter().any(|(of, by)| of == key && by == token)
    }

    fn leave_queued(&mut self, key: &Key, token: &Token) {
        self.queued.retain(|(of, by)| of != key || by != token);
    }

    /// Keeps the session of a request that does not wait, for the next request.
    fn keep_session(&mut self, request: &Request) {
        if let Some(lock) = self.tries.take(&request.key, &request.token) {
            self.store.client_mut().session.get_or_insert(lock.session);
        }
    }

    async fn acquire(&mut self, request: &Request) -> Result<Attempt> {
        self.store.client().capabilities().check(request)?;
        let (key, token) = (&request.key, &request.token);
        if let Some(at) = self.hold_of(key, token)
            && let Some(attempt) = self.take_again(at, request).await?
        {
            return Ok(attempt);
        }
        if request.waiting && !self.is_queued(key, token) {
            self.queued.push((key.clone(), *token));
        }
        self.open(request).await?;
        let Some(lock) = self.tries.get(key, token) else {
            return Ok(Attempt::Busy(Busy::default()));
        };
        lock.unanswered += 1;
        let begun = match self.store.attempt(lock, request).await {
            Ok(true) => self.store.begin(lock, request).await.map(Some),
            Ok(false) => Ok(None),
            Err(error) => Err(error),
        };
        if let Err(error) = &begun
            && (!error.is_transient() || error.ends_connection())
            && let Some(mut lock) = self.tries.take(key, token)
        {
            // No request will repeat this one over this session, which would keep the lock for
            // nothing.
            let client = self.store.client_mut();
            client.left(error);
            client.abandon_unless_kept(&lock.session);
            if S::let_go(&mut lock).await.is_ok() {
                self.store.client_mut().is_kept(&lock.session);
            }
        }
        let Begun {
            fence,
            now_us,
            drains,
        } = match begun? {
            Some(Beginning::Begun(begun)) => begun,
            Some(Beginning::Denied(denial)) => {
                self.let_go(request).await?;
                if !request.waiting {
                    self.keep_session(request);
                }
                return Ok(Attempt::Denied(denial));
            }
            Some(Beginning::Left) => {
                self.let_go(request).await?;
                return self.refuse(request).await;
            }
            None => return self.refuse(request).await,
        };
        if S::GRANT_LEAVES_QUEUE {
            self.leave_queued(key, token);
        }
        if let Some(mut lock) = self.tries.take(key, token) {
            lock.unanswered = 0;
            let ends_us = now_us.saturating_add(ms(request.ttl).saturating_mul(1000));
            self.holds.push(SessionHold {
                key: key.clone(),
                token: *token,
                lock,
                fence,
                ttl: request.ttl,
                ends_us,
                leaving: false,
            });
        }
        Ok(Attempt::Granted(grant(
            fence,
            request.ttl,
            if drains { DRAIN_DELAY } else { Duration::ZERO },
        )))
    }

    /// Opens the sessions that the request needs, as far as they are not open: all of them, or
    /// none. A session that was kept while another one is refused or waited for could be the one
    /// that the holder of the lock waits for.
    async fn open(&mut self, request: &Request) -> Result<()> {
        self.open_all(request)
            .await
            .inspect_err(|error| self.store.client().left(error))
    }

    async fn open_all(&mut self, request: &Request) -> Result<()> {
        let (key, token) = (&request.key, &request.token);
        let known = self.store.take_try(&mut self.tries, key, token);
        let client = self.store.client_mut();
        // The fence is counted over the client's own session.
        let mut side = client.session.take().filter(Session::is_open);
        let far = known.as_ref().is_some_and(|lock| lock.far && !lock.has);
        if side.is_none() && client.mode() == SqlMode::Row && !far {
            if let Some(lock) = &known {
                client.abandon_unless_kept(&lock.session);
            }
            side = Some(client.open().await?);
        }
        let lock = if let Some(lock) = known {
            lock
        } else {
            let mut lock = self.store.open_lock(request, side.as_mut()).await?;
            self.store
                .client_mut()
                .end_abandoned_over(&mut lock.session)
                .await?;
            lock
        };
        let client = self.store.client_mut();
        client.is_kept(&lock.session);
        client.session = side;
        // Among the tries, so that a dropped question can be asked again.
        self.tries.put(key, token, lock);
        Ok(())
    }

    /// Repeats a request that was granted, whose command is not started yet. Returns `None` if the
    /// session does not answer: it is abandoned.
    async fn take_again(&mut self, at: usize, request: &Request) -> Result<Option<Attempt>> {
        let (key, token) = (&request.key, &request.token);
        let SessionHold { lock, fence, .. } = &mut self.holds[at];
        if lock.unanswered >= 2 {
            let hold = self.holds.swap_remove(at);
            self.store.client_mut().abandon(hold.lock.session);
            return Ok(None);
        }
        lock.unanswered += 1;
        let (fence, session) = (*fence, lock.session.id());
        let renewal = self.extend(key, token, Some(request.ttl), None).await;
        if let Some(at) = self.hold_of(key, token) {
            self.holds[at].lock.unanswered = 0;
        }
        Ok(Some(match renewal? {
            Renewal::NotHeld => {
                self.store.client_mut().abandon_id(session);
                Attempt::Busy(Busy {
                    notifies: true,
                    transient: true,
                    ..Busy::default()
                })
            }
            _ => Attempt::Granted(grant(fence, request.ttl, Duration::ZERO)),
        }))
    }

    async fn let_go(&mut self, request: &Request) -> Result<()> {
        match self.tries.get(&request.key, &request.token) {
            Some(lock) => S::let_go(lock).await,
            None => Ok(()),
        }
    }

    /// Reports the holders. The session stays for a waiter.
    async fn refuse(&mut self, request: &Request) -> Result<Attempt> {
        let Some(lock) = self.tries.get(&request.key, &request.token) else {
            return Ok(Attempt::Busy(Busy::default()));
        };
        let (holders, position) = self.store.look_and_queue(lock, request).await?;
        if request.waiting {
            let client = self.store.client_mut();
            lock.far =
                client.mode() == SqlMode::Row && position.is_some_and(|position| position > NEAR);
            client.session.take_if(|_| lock.far);
        } else {
            self.keep_session(request);
        }
        Ok(Attempt::Busy(Busy {
            expires_in: holders
                .iter()
                .filter_map(|holder| holder.expires_in)
                .max()
                .filter(|_| looks_at_the_end(position)),
            transient: holders.is_empty(),
            holders,
            notifies: true,
            position,
        }))
    }

    /// Extends a hold. With an intent it also reads the mark of a break.
    async fn extend(
        &mut self,
        key: &Key,
        token: &Token,
        ttl: Option<Ttl>,
        intent: Option<Intent>,
    ) -> Result<Renewal> {
        let Some(at) = self
            .hold_of(key, token)
            .filter(|at| !self.holds[*at].leaving)
        else {
            return Ok(Renewal::NotHeld);
        };
        let SessionHold {
            lock,
            fence,
            ttl: granted,
            ends_us,
            ..
        } = &mut self.holds[at];
        let length = ttl.unwrap_or(*granted);
        let (now_us, mark) = match self
            .store
            .renew(lock, (token, *fence), length, intent)
            .await
        {
            Ok(Some(renewed)) => renewed,
            // A statement can fail by itself; a session that is over has ended the hold.
            Err(error) if lock.session.is_open() => return Err(error),
            Ok(None) | Err(_) => {
                self.holds.swap_remove(at);
                return Ok(Renewal::NotHeld);
            }
        };
        if let Some(mark) = mark {
            return Ok(Renewal::Broken(mark));
        }
        // The session lasts for its idle limit, even if the server's clock was set back.
        let left = micros(*ends_us - now_us).min(lock.idle_limit);
        if length.get() < left {
            return Ok(Renewal::Kept {
                expires_in: Some(left),
            });
        }
        if length.get() != lock.idle_limit {
            match self
                .store
                .change_idle_limit(lock, (token, *fence), length.get())
                .await
            {
                Ok(true) => {}
                Err(error) if lock.session.is_open() => return Err(error),
                Ok(false) | Err(_) => {
                    self.holds.swap_remove(at);
                    return Ok(Renewal::NotHeld);
                }
            }
        }
        *ends_us = now_us.saturating_add(ms(length).saturating_mul(1000));
        Ok(Renewal::Renewed {
            ttl: length,
            fence: *fence,
        })
    }
}

fn grant(fence: Fence, ttl: Ttl, drain_delay: Duration) -> Grant {
    Grant {
        fence,
        ttl,
        holds: 1,
        drain_delay,
        session: None,
        permit: None,
    }
}

/// Waiting is what a backend's `wait` is for.
#[allow(clippy::disallowed_methods)]
pub(in crate::backends) async fn pause(length: Duration) {
    tokio::time::sleep(length).await;
}

impl<S: SessionStore> HasClient for SessionLocks<S> {
    type Database = S::Database;

    fn client(&self) -> &Client<S::Database> {
        self.store.client()
    }

    fn client_mut(&mut self) -> &mut Client<S::Database> {
        self.store.client_mut()
    }
}

#[async_trait(?Send)]
impl<S: SessionStore> Backend for SessionLocks<S> {
    fn identity(&self) -> Identity {
        self.store.client().identity()
    }

    async fn connect(&mut self, request: &Request) -> Result<()> {
        self.open(request).await
    }

    fn disconnect(&mut self) {
        let client = self.store.client_mut();
        client.session = None;
        for lock in self.tries.drain() {
            if lock.has || lock.blocked || lock.unanswered > 0 {
                client.abandon(lock.session);
            }
        }
    }

    async fn try_acquire(&mut self, request: &Request) -> Result<Attempt> {
        let attempt = self.acquire(request).await;
        if let Some(lock) = self.tries.get(&request.key, &request.token) {
            lock.unanswered = 0;
        }
        attempt
    }

    async fn wait(&mut self, request: &Request, at_most: Duration) -> Result<Wake> {
        let Some(lock) = self.tries.get(&request.key, &request.token) else {
            return Ok(Wake::Changed);
        };
        if lock.has || !lock.session.is_open() {
            return Ok(Wake::Changed);
        }
        if let Some(left_for) = lock.left_for.take() {
            // The lock is free: taking it would succeed at once. The server ends a session that is
            // silent for longer.
            pause(left_for.min(at_most).min(lock.idle_limit / 2)).await;
            return Ok(Wake::TimedOut);
        }
        Ok(if S::wait(lock, request.ttl, at_most).await? {
            Wake::Changed
        } else {
            Wake::TimedOut
        })
    }

    async fn leave_queue(&mut self, request: &Request) -> Result<()> {
        // Readers of the queue pass over a holder: the command need not wait for the queue.
        if self.is_queued(&request.key, &request.token)
            && self.hold_of(&request.key, &request.token).is_none()
        {
            self.store.leave(&mut self.tries, request).await?;
            self.leave_queued(&request.key, &request.token);
        }
        Ok(())
    }

    async fn renew(&mut self, key: &Key, token: &Token, intent: Intent) -> Result<Renewal> {
        if let Some(ttl) = intent.ttl() {
            self.store.client().capabilities().check_ttl(ttl)?;
        }
        if intent == Intent::Probe {
            return self.store.probe(key, token).await;
        }
        self.extend(key, token, intent.ttl(), Some(intent)).await
    }

    async fn release(&mut self, key: &Key, token: &Token, info: &ReleaseInfo) -> Result<Release> {
        if self.tries.get(key, token).is_some()
            && self.store.withdraw(&mut self.tries, key, token, info).await
        {
            return Ok(Release::NotHeld);
        }
        let Some(at) = self.hold_of(key, token) else {
            // The hold of an abandoned session ends before its absence is reported.
            self.store.client_mut().end_abandoned().await?;
            self.store.forget(key, token, info, Over::Unused).await;
            return Ok(Release::NotHeld);
        };
        let SessionHold { lock, leaving, .. } = &self.holds[at];
        if *leaving && (lock.unanswered >= 2 || !lock.session.is_alive()) {
            // The command has ended, and the session does not answer the release: it is ended. Its
            // records go first, since the next holder would take them for those of a holder that
            // vanished.
            let (session, over) = (
                self.holds[at].lock.session.id(),
                if info.end.is_none() {
                    Over::Unused
                } else {
                    Over::Silent
                },
            );
            let client = self.store.client_mut();
            client.abandon_own();
            client.abandon_id(session);
            self.store.forget(key, token, info, over).await;
            self.store.client_mut().end_abandoned().await?;
            self.holds.swap_remove(at);
            return Ok(Release::NotHeld);
        }
        if !self.holds[at].lock.session.is_alive() {
            self.holds.swap_remove(at);
            self.store.forget(key, token, info, Over::Lost).await;
            return Ok(Release::NotHeld);
        }
        // It stays here until it is done: dropped half-way and asked again, the same session goes
        // on with it.
        let SessionHold {
            lock,
            fence,
            leaving,
            ..
        } = &mut self.holds[at];
        *leaving = true;
        lock.unanswered += 1;
        let released = self.store.give_back(lock, (token, *fence), info).await;
        lock.unanswered = 0;
        if let Err(error) = &released
            && error.is_transient()
        {
            return released.map(|_| Release::NotHeld);
        }
        let hold = self.holds.swap_remove(at);
        let released = released?;
        let queued = self.is_queued(key, token);
        self.store.put_away(hold.lock, token, queued).await;
        self.leave_queued(key, token);
        Ok(if released {
            Release::Released
        } else {
            Release::NotHeld
        })
    }

    async fn amend(&mut self, key: &Key, change: Amendment<'_>) -> Result<bool> {
        self.store.amend(key, change).await
    }

    async fn inspect(&mut self, key: &Key) -> Result<LockState> {
        self.store.look(key).await
    }

    async fn list(&mut self, start: &str, progress: &Progress) -> Result<Vec<LockState>> {
        let start = self.store.client().names.starting_with(start);
        let mut states = Vec::new();
        for name in self.store.names(S::HELD_NAMES, &start, progress).await? {
            let Some(key) = self.store.client().names.key(&name) else {
                continue;
            };
            let state = self.store.look(&key).await?;
            progress.part();
            if !state.holders.is_empty() {
                states.push(state);
            }
        }
        Ok(states)
    }

    async fn known(&mut self, start: &str, which: Which, progress: &Progress) -> Result<Vec<Key>> {
        let start = self.store.client().names.starting_with(start);
        let names = self
            .store
            .names(&S::known_names(which), &start, progress)
            .await?;
        Ok(names
            .iter()
            .filter_map(|name| self.store.client().names.key(name))
            .collect())
    }

    async fn history(&mut self, key: &Key) -> Result<History> {
        self.store.history(key).await
    }

    fn notices(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.store.client_mut().notices)
    }

    fn lifelines(&self) -> io::Result<Vec<OwnedFd>> {
        self.holds
            .iter()
            .map(|hold| hold.lock.session.lifeline())
            .collect()
    }

    async fn watch(&mut self, key: &Key, token: &Token) {
        match self.hold_of(key, token) {
            Some(at) => self.holds[at].lock.session.ended().await,
            None => std::future::pending().await,
        }
    }
}
