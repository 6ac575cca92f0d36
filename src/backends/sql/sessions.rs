//! `mode=row` and `mode=advisory`: a session has the lock, and the lock ends with the session.
//!
//! A session first takes the foreign lock, which other programs see. Then it is granted the lock in
//! the document of the lock's row, by the rules of [`crate::lock::document`], as with `mode=lease`;
//! what proves that a hold lives is not its time, but its session ([`super::evidence`]). Another
//! process can't take over or enter a hold. While a session is in the transaction that keeps a row
//! locked, everything else goes over a second one.
//!
//! Worst interleavings, and why they are harmless:
//! - *The reply to a grant is lost.* dlock asks the same session again, which has the lock already,
//!   and finds its hold in the document. After two unanswered requests dlock opens another session,
//!   ends the unanswered one over it by the identity that the server gave it, and asks.
//! - *The connections are lost without a word, and the server keeps its sessions.* As before; a
//!   release that is not answered ends the session, too. dlock ends only sessions that wait, or
//!   whose hold is granted anew, undone or released: no command runs under them.
//! - *The document is written and the holder dies.* The next holder finds a hold whose session has
//!   the lock no more, ends it, and waits a moment before it starts anything. That drain delay is
//!   stored with the lock: a repeated request whose answer was lost has the delay, too, and so has
//!   every holder that is granted the lock meanwhile.
//! - *A grant arrives after the holder died.* Over the holder's own session it is lost with it. Over
//!   the second one it does nothing if the document changed meanwhile, or once the transaction that
//!   has the row is over where the server tells that; else it leaves a hold without a session.
//! - *A client reads the document, and a session takes or loses the lock before the client asks the
//!   server for its sessions.* Evidence is always later than the document. A hold that was written
//!   had the lock at that time: if its session has it no more, the hold is over. What other clients
//!   wrote since changes the document, and ends the step.
//! - *The session is ended by an administrator, a restart or the idle timeout.* The socket says so
//!   at once ([`Backend::watch`]), or the next renewal does, and dlock kills the command.
//! - *The server crashes or fails over, and a holder does not notice.* The document names the server
//!   that had the session: the lock is busy until the holder's lease is over by the server's clock.
//! - *The server has no connection left.* With `mode=row` a request has two sessions before it
//!   asks, or none: no waiter keeps a connection while it waits for another one. A waiter far
//!   behind gives the second one back, and the first one if it can't have the second again.
//! - *Another mode is used for the same lock.* The lock's row names its mode: others are refused.
//! - *A waiter gets the lock while it is frozen.* The server ends that session after a few seconds
//!   of silence.
//! - *Readers come one after the other while a writer waits.* The server lets no reader in while a
//!   writer waits. A wait ends every few seconds and begins again: a reader that comes in just that
//!   instant gets in.
//! - *A hold is released.* Its session frees the document and gives back the lock in one request, in
//!   this order: a request in between finds the lock taken for a moment.
//! - *A renewal can't be written over the second session.* The session has the lock, and the command
//!   goes on; a mark of a break is read at the next renewal.
//! - *dlock is killed.* The guardian has the socket as well, and closes it when the command's tree
//!   is dead.

mod holding;

use std::{io, os::fd::OwnedFd, time::Duration};

use async_trait::async_trait;
use tokio::time::Instant;

pub(in crate::backends) use self::holding::patience;
use super::{
    NEAR, SqlMode,
    client::{Client, HasClient, Session},
    looks_at_the_end,
    session_database::{LockOf, SessionDatabase},
    session_store::SessionStore,
};
use crate::{
    backends::cas::{CasBackend, ReadFor, Store as _},
    lock::{
        Amendment, Attempt, Backend, Busy, History, Identity, Intent, Key, LockState, Notice,
        Progress, Release, ReleaseInfo, Renewal, Request, Result, Token, Wake, Which,
    },
};

/// Locks that sessions keep.
pub(in crate::backends) struct SessionLocks<D: SessionDatabase> {
    cas: CasBackend<SessionStore<D>>,
}

impl<D: SessionDatabase> SessionLocks<D> {
    /// Returns a backend for `options`, without I/O.
    pub(in crate::backends) fn new(options: D::Options) -> Self {
        Self {
            cas: CasBackend::of(SessionStore::new(options)),
        }
    }

    /// Notes which request is being served, and returns its session if it asks or waits.
    fn serve(&mut self, key: &Key, token: &Token) -> Option<&mut LockOf<D>> {
        let locks = &mut self.cas.store.locks;
        locks.asks = Some((key.clone(), *token));
        locks.tries.get(key, token)
    }

    /// Notes that what follows concerns no session of this client.
    fn look(&mut self) -> &mut CasBackend<SessionStore<D>> {
        self.cas.store.locks.asks = None;
        &mut self.cas
    }

    fn hold(&mut self, key: &Key, token: &Token) -> Option<&mut LockOf<D>> {
        self.cas.store.locks.holds.get(key, token)
    }

    /// Keeps the session of a request that does not wait, for the next request.
    fn keep_session(&mut self, request: &Request) {
        let store = &mut self.cas.store;
        if let Some(lock) = store.locks.tries.take(&request.key, &request.token) {
            store.client.session.get_or_insert(lock.session);
        }
    }

    async fn acquire(&mut self, request: &Request) -> Result<Attempt> {
        self.client().capabilities().check(request)?;
        let (key, token) = (&request.key, &request.token);
        if self.hold(key, token).is_some()
            && let Some(attempt) = self.take_again(request).await?
        {
            return Ok(attempt);
        }
        if request.waiting {
            self.cas.note_queued(request);
        }
        self.open(request).await?;
        let Some(lock) = self.serve(key, token) else {
            return Ok(Attempt::Busy(Busy::default()));
        };
        lock.unanswered += 1;
        let attempt = match D::attempt(lock, request).await {
            Ok(true) => self.cas.try_acquire(request).await.map(Some),
            Ok(false) => Ok(None),
            Err(error) => Err(error),
        };
        let store = &mut self.cas.store;
        if let Err(error) = &attempt
            && (!error.is_transient() || error.ends_connection())
            && let Some(mut lock) = store.locks.tries.take(key, token)
        {
            // No request will repeat this one over this session, which would keep the lock for
            // nothing.
            let client = &mut store.client;
            client.left(error);
            client.abandon_unless_kept(&lock.session);
            if D::let_go(&mut lock).await.is_ok() {
                store.client.is_kept(&lock.session);
            }
        }
        match attempt? {
            Some(Attempt::Granted(grant)) => {
                let locks = &mut store.locks;
                if let Some(mut lock) = locks.tries.take(key, token) {
                    (lock.unanswered, lock.granted) = (0, Some(grant.clone()));
                    lock.until = Some(Instant::now() + grant.ttl.get());
                    locks.holds.put(key, token, lock);
                }
                Ok(Attempt::Granted(grant))
            }
            None => self.refuse(request).await,
            Some(refused) => {
                if let Some(lock) = store.locks.tries.get(key, token) {
                    // No session has the lock, but the document has a hold that is not over.
                    lock.left_for = match &refused {
                        Attempt::Busy(busy) if !busy.transient => busy.expires_in,
                        _ => None,
                    };
                    D::let_go(lock).await?;
                }
                if !request.waiting {
                    self.keep_session(request);
                }
                Ok(refused)
            }
        }
    }

    /// Opens the sessions that the request needs, as far as they are not open: all of them, or
    /// none. A session that was kept while another one is refused or waited for could be the one
    /// that the holder of the lock waits for.
    async fn open(&mut self, request: &Request) -> Result<()> {
        self.open_all(request)
            .await
            .inspect_err(|error| self.client().left(error))
    }

    async fn open_all(&mut self, request: &Request) -> Result<()> {
        let (key, token) = (&request.key, &request.token);
        let store = &mut self.cas.store;
        let known = store.take_try(key, token);
        let client = &mut store.client;
        // The document is written over the client's own session.
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
            let (client, checked) = (&mut store.client, store.checked);
            let mut lock = D::open_lock(client, request, side.as_mut(), checked).await?;
            store.checked = true;
            store.client.end_abandoned_over(&mut lock.session).await?;
            lock
        };
        let client = &mut store.client;
        client.is_kept(&lock.session);
        client.session = side;
        // Among the tries, so that a dropped question can be asked again.
        store.locks.tries.put(key, token, lock);
        Ok(())
    }

    /// Repeats a request that was granted, whose command is not started yet. Returns `None` if the
    /// session does not answer: it is abandoned.
    async fn take_again(&mut self, request: &Request) -> Result<Option<Attempt>> {
        let (key, token) = (&request.key, &request.token);
        let store = &mut self.cas.store;
        let Some(lock) = store.locks.holds.get(key, token) else {
            return Ok(None);
        };
        if lock.unanswered >= 2 {
            if let Some(lock) = store.locks.holds.take(key, token) {
                store.client.abandon(lock.session);
            }
            return Ok(None);
        }
        lock.unanswered += 1;
        let (granted, session) = (lock.granted.clone(), lock.session.id());
        let renewal = self
            .extend(key, token, Intent::Extend(Some(request.ttl)))
            .await;
        if let Some(lock) = self.hold(key, token) {
            lock.unanswered = 0;
        }
        // The next renewal finds the mark of a break, too.
        if let (Some(grant), Renewal::Renewed { .. } | Renewal::Kept { .. } | Renewal::Broken(_)) =
            (granted, renewal?)
        {
            return Ok(Some(Attempt::Granted(grant)));
        }
        self.client_mut().abandon_id(session);
        Ok(Some(Attempt::Busy(Busy {
            notifies: true,
            transient: true,
            ..Busy::default()
        })))
    }

    /// Reports the holders. The session stays for a waiter.
    async fn refuse(&mut self, request: &Request) -> Result<Attempt> {
        let store = &mut self.cas.store;
        let position = if request.waiting {
            store.note_waiter(request, 0).await?
        } else {
            None
        };
        let known = store
            .locks
            .tries
            .get(&request.key, &request.token)
            .and_then(|lock| lock.found.clone());
        // To answer, the server looks at all sessions that wait: a waiter far behind looks once.
        let far = position.is_some_and(|place| place > NEAR);
        let holders = if let Some(known) = known.filter(|_| far) {
            known
        } else {
            let purpose = ReadFor::Acquire {
                request,
                claims: false,
            };
            let mut snapshot = store.read(&request.key, purpose).await?;
            snapshot.document.expire(snapshot.now());
            let outside = snapshot.outside.take().map(|outside| outside.holder);
            outside
                .into_iter()
                .chain(snapshot.document.holders(snapshot.now()))
                .collect()
        };
        if request.waiting {
            let far = far && self.client().mode() == SqlMode::Row;
            if let Some(lock) = self.serve(&request.key, &request.token) {
                (lock.far, lock.found) = (far, Some(holders.clone()));
            }
            self.client_mut().session.take_if(|_| far);
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
}

/// A hold lasts by its session: what is written for others must not keep it waiting.
#[allow(clippy::disallowed_methods)]
async fn within<T>(limit: Duration, asked: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(limit, asked).await.ok()
}

/// Waiting is what a backend's `wait` is for.
#[allow(clippy::disallowed_methods)]
pub(in crate::backends) async fn pause(length: Duration) {
    tokio::time::sleep(length).await;
}

impl<D: SessionDatabase> HasClient for SessionLocks<D> {
    type Database = D;

    fn client(&self) -> &Client<D> {
        &self.cas.store.client
    }

    fn client_mut(&mut self) -> &mut Client<D> {
        &mut self.cas.store.client
    }
}

#[async_trait(?Send)]
impl<D: SessionDatabase> Backend for SessionLocks<D> {
    fn identity(&self) -> Identity {
        self.client().identity()
    }

    async fn connect(&mut self, request: &Request) -> Result<()> {
        self.open(request).await
    }

    fn disconnect(&mut self) {
        let store = &mut self.cas.store;
        store.client.session = None;
        let tries: Vec<_> = store.locks.tries.drain().collect();
        for lock in tries {
            if lock.has || lock.blocked || lock.unanswered > 0 {
                store.client.abandon(lock.session);
            }
        }
    }

    async fn try_acquire(&mut self, request: &Request) -> Result<Attempt> {
        let attempt = self.acquire(request).await;
        if let Some(lock) = self.serve(&request.key, &request.token) {
            lock.unanswered = 0;
        }
        attempt
    }

    async fn wait(&mut self, request: &Request, at_most: Duration) -> Result<Wake> {
        let Some(lock) = self.serve(&request.key, &request.token) else {
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
        Ok(if D::block(lock, request.ttl, at_most).await? {
            Wake::Changed
        } else {
            Wake::TimedOut
        })
    }

    async fn leave_queue(&mut self, request: &Request) -> Result<()> {
        let (key, token) = (&request.key, &request.token);
        // Readers of the queue pass over a holder: the command need not wait for the queue.
        if self.hold(key, token).is_some() {
            return Ok(());
        }
        let store = &mut self.cas.store;
        if let Some(mut lock) = store.take_try(key, token) {
            // A lock that the session got meanwhile is released with it, and the next waiter gets
            // it.
            store.client.abandon_unless_kept(&lock.session);
            if D::let_go(&mut lock).await.is_ok() {
                let client = &mut store.client;
                client.is_kept(&lock.session);
                client.session.get_or_insert(lock.session);
            }
        }
        store.client.end_abandoned().await?;
        self.look().leave_queue(request).await
    }

    async fn renew(&mut self, key: &Key, token: &Token, intent: Intent) -> Result<Renewal> {
        if let Some(ttl) = intent.ttl() {
            self.client().capabilities().check_ttl(ttl)?;
        }
        if intent == Intent::Probe {
            return self.look().renew(key, token, intent).await;
        }
        self.extend(key, token, intent).await
    }

    async fn release(&mut self, key: &Key, token: &Token, info: &ReleaseInfo) -> Result<Release> {
        self.serve(key, token);
        let Some(lock) = self.hold(key, token) else {
            if self.serve(key, token).is_some() {
                self.withdraw(key, token, info).await?;
            } else {
                self.bury(key, token, info, false).await?;
            }
            return Ok(Release::NotHeld);
        };
        let (is_alive, leaving) = (lock.session.is_alive(), lock.leaving);
        if !is_alive || (leaving && lock.unanswered >= 2) {
            self.bury(key, token, info, leaving).await?;
            return Ok(Release::NotHeld);
        }
        // It stays among the holds until it is done: dropped half-way and asked again, the same
        // session goes on with it.
        lock.leaving = true;
        lock.unanswered += 1;
        if leaving {
            // The session that keeps the row from being written may wait for this lock.
            D::let_go(lock).await?;
        }
        let released = self.cas.release(key, token, info).await;
        let store = &mut self.cas.store;
        let Some(lock) = store.locks.holds.get(key, token) else {
            return released;
        };
        // Without a record of the release, the next holder only waits a moment without need.
        let gone = match &released {
            Err(error) if error.is_transient() => Ok(()),
            _ if !lock.has => Ok(()),
            _ => D::let_go(lock).await,
        };
        lock.unanswered = 0;
        match (&released, gone) {
            (Err(error), _) if error.is_transient() => return released,
            (_, Err(error)) if error.is_transient() => return Err(error),
            _ => {}
        }
        if let Some(lock) = store.locks.holds.take(key, token) {
            store.client.session.get_or_insert(lock.session);
        }
        released
    }

    async fn amend(&mut self, key: &Key, change: Amendment<'_>) -> Result<bool> {
        self.look();
        self.evict(key, change).await
    }

    async fn inspect(&mut self, key: &Key) -> Result<LockState> {
        self.look().inspect(key).await
    }

    async fn list(&mut self, start: &str, progress: &Progress) -> Result<Vec<LockState>> {
        self.look().list(start, progress).await
    }

    async fn known(&mut self, start: &str, which: Which, progress: &Progress) -> Result<Vec<Key>> {
        self.look().known(start, which, progress).await
    }

    async fn history(&mut self, key: &Key) -> Result<History> {
        self.look().history(key).await
    }

    fn notices(&mut self) -> Vec<Notice> {
        self.cas.notices()
    }

    fn lifelines(&self) -> io::Result<Vec<OwnedFd>> {
        let holds = &self.cas.store.locks.holds;
        holds.iter().map(|lock| lock.session.lifeline()).collect()
    }

    async fn watch(&mut self, key: &Key, token: &Token) {
        match self.hold(key, token) {
            Some(lock) => lock.session.ended().await,
            None => std::future::pending().await,
        }
    }
}
