//! What is done with a lock that a session has: it is extended, broken, or given back.

use std::time::Duration;

use tokio::time::Instant;

use super::{SessionLocks, within};
use crate::{
    backends::{
        cas::{ReadFor, Store as _},
        sql::{HasClient as _, Session as _, SqlMode, session_database::SessionDatabase},
    },
    lock::{
        Amendment, Backend as _, Error, Intent, Key, Kind, ReleaseInfo, Renewal, Result, RunState,
        Token,
    },
};

impl<D: SessionDatabase> SessionLocks<D> {
    /// Extends a hold: in the document, which other clients see and mark, and over its session,
    /// which decides.
    pub(super) async fn extend(
        &mut self,
        key: &Key,
        token: &Token,
        intent: Intent,
    ) -> Result<Renewal> {
        let Some((lock, granted)) = self
            .hold(key, token)
            .filter(|lock| !lock.leaving)
            .and_then(|lock| lock.granted.clone().map(|granted| (lock, granted)))
        else {
            return Ok(Renewal::NotHeld);
        };
        let intent = match intent {
            // The hold's present length may be another one.
            Intent::Extend(None) => Intent::Extend(Some(granted.ttl)),
            intent => intent,
        };
        let (marked, patience) = (lock.marked, patience(lock.idle_limit));
        lock.proved = false;
        // First, since the session's silence is counted from what is asked last. A failure or delay
        // must not stop the renewal: another session is not waited for, and the hold's own waits
        // for no locked row for long.
        let renewal = match self.write_renewal(key, token, (intent, patience)).await {
            Some(Ok(Renewal::Broken(mark))) => {
                if let Some(lock) = self.hold(key, token) {
                    lock.marked = true;
                }
                return Ok(Renewal::Broken(mark));
            }
            Some(Ok(Renewal::NotHeld)) => return Ok(self.lose(key, token)),
            Some(Ok(renewal)) => renewal,
            // The breaking client would take the hold away.
            _ if marked && intent == Intent::Drain => {
                return Err(Error::new(
                    Kind::Unavailable,
                    "the server could not note that the hold is being stopped",
                ));
            }
            _ => Renewal::Renewed {
                ttl: intent.ttl().unwrap_or(granted.ttl),
                fence: granted.fence,
            },
        };
        let Some(lock) = self.hold(key, token) else {
            return Ok(Renewal::NotHeld);
        };
        let left = lock
            .until
            .map_or(Duration::ZERO, |until| until - Instant::now());
        let (renewal, limit) = no_shorter(renewal, left);
        let limit = limit.filter(|limit| *limit != lock.idle_limit);
        let kept = if lock.proved && limit.is_none() {
            Ok(true)
        } else {
            D::keep(lock, limit).await
        };
        match kept {
            Ok(true) => {}
            // A statement can fail by itself; a session that is over has ended the hold.
            Err(error) if lock.session.is_open() => return Err(error),
            Ok(false) | Err(_) => return Ok(self.lose(key, token)),
        }
        if let Renewal::Renewed { ttl, .. } = renewal {
            lock.until = Some(Instant::now() + ttl.get());
        }
        // The session lasts for its idle limit, even if the server's clock was set back.
        let limit = lock.idle_limit;
        Ok(match renewal {
            Renewal::Kept { expires_in } => Renewal::Kept {
                expires_in: expires_in.map(|left| left.min(limit)),
            },
            renewal => renewal,
        })
    }

    /// Extends a hold in the document. Returns `None` if that takes too long.
    async fn write_renewal(
        &mut self,
        key: &Key,
        token: &Token,
        (intent, patience): (Intent, Duration),
    ) -> Option<Result<Renewal>> {
        if self.client().mode() == SqlMode::Row {
            return within(patience, self.look().renew(key, token, intent)).await;
        }
        self.serve(key, token);
        Some(self.cas.renew(key, token, intent).await)
    }

    /// Drops a hold that is over, with its session.
    fn lose(&mut self, key: &Key, token: &Token) -> Renewal {
        self.cas.store.locks.holds.take(key, token);
        Renewal::NotHeld
    }

    /// Gives back a request that was not granted, as far as this process knows.
    pub(super) async fn withdraw(
        &mut self,
        key: &Key,
        token: &Token,
        info: &ReleaseInfo,
    ) -> Result<()> {
        let store = &mut self.cas.store;
        if let Some(mut lock) = store.take_try(key, token) {
            // It stays among the tries until it is done.
            lock.unanswered += 1;
            store.locks.tries.put(key, token, lock);
        }
        store.client.end_abandoned().await?;
        let undone = self.cas.release(key, token, info).await;
        let store = &mut self.cas.store;
        if let Some(mut lock) = store.locks.tries.take(key, token) {
            store.client.abandon_unless_kept(&lock.session);
            if D::let_go(&mut lock).await.is_ok() {
                let client = &mut store.client;
                client.is_kept(&lock.session);
                client.session.get_or_insert(lock.session);
            }
        }
        match undone {
            Err(error) if error.is_transient() => Err(error),
            // Otherwise the next holder only waits a moment without need.
            _ => Ok(()),
        }
    }

    /// Ends a hold whose session is over or does not answer. `unused`: no command ran under it.
    pub(super) async fn bury(
        &mut self,
        key: &Key,
        token: &Token,
        info: &ReleaseInfo,
        is_silent: bool,
    ) -> Result<()> {
        let unused = info.end.is_none() || info.run_state == Some(RunState::Cancelled);
        let store = &mut self.cas.store;
        let session = store.locks.holds.take(key, token).map(|lock| lock.session);
        if let Some(session) = session.as_ref().filter(|_| is_silent) {
            let client = &mut store.client;
            client.abandon_unless_kept(session);
            client.abandon_own();
        }
        // The hold of a session that ended by itself is over: the next holder waits a moment for
        // what its command may still run. One that a server left behind is given back.
        if is_silent
            || unused
            || matches!(
                self.cas.renew(key, token, Intent::Probe).await,
                Ok(Renewal::Kept { .. })
            )
        {
            // Before its session is ended: the next holder would take it for one that vanished. If
            // this fails, it does, and waits a moment without need.
            let _ = self.cas.release(key, token, info).await;
        }
        drop(session);
        self.client_mut().end_abandoned().await
    }

    /// Marks the hold with this fence, and ends its session. The mark comes first, so that all see
    /// a broken hold even if this process dies.
    pub(super) async fn evict(&mut self, key: &Key, change: Amendment<'_>) -> Result<bool> {
        let Amendment::Evict(fence, mark) = change else {
            return self.cas.amend(key, change).await;
        };
        let found = self.cas.store.read(key, ReadFor::Change).await?;
        let marked = found
            .document
            .holders(0)
            .into_iter()
            .any(|holder| holder.fence == Some(fence) && holder.broken.is_some());
        let Some(session) = found.document.session_of(fence).map(str::to_owned) else {
            return self.cas.amend(key, change).await;
        };
        if !self.cas.amend(key, Amendment::Mark(fence, mark)).await? {
            return Ok(false);
        }
        let ended = self
            .cas
            .store
            .ask(async |client, table| D::end_holder(client, table, key, &session).await);
        if let Err(error) = ended.await {
            // This mark must not stop the hold later.
            let unmark = |document: &mut crate::lock::document::Document, _, _| {
                document.unmark(fence);
            };
            if !marked {
                self.cas.step(key, ReadFor::Change, unmark).await?;
            }
            return Err(error);
        }
        // What is written now is the hold's end.
        self.cas
            .step(key, ReadFor::Change, |_, _, _| ())
            .await
            .map(|()| true)
    }
}

/// Returns a renewal and the idle limit of the session, if a hold lasts for `left`: what was last
/// written for others may be shorter.
fn no_shorter(renewal: Renewal, left: Duration) -> (Renewal, Option<Duration>) {
    match renewal {
        Renewal::Renewed { ttl, .. } if ttl.get() >= left => (renewal, Some(ttl.get())),
        Renewal::Renewed { .. } => {
            let expires_in = Some(left);
            (Renewal::Kept { expires_in }, None)
        }
        renewal => (renewal, None),
    }
}

/// Returns how long a renewal may take that is only written for others, over a session that may
/// have to be opened first.
pub(in crate::backends) fn patience(limit: Duration) -> Duration {
    (limit / 12).clamp(Duration::from_millis(100), Duration::from_secs(1))
}
