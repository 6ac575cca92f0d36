//! SQLite: locks of one host, the embedded default.
//!
//! The **database** has a row for each lock: its last fence and its document, which
//! [`cas`](super::cas) reads and swaps. The **lock file** ([`lock_file`]) tells which processes
//! live. It is the authority on attached holds (`dlock run`): the kernel keeps their bytes as long
//! as any of their processes lives, however long it is frozen and whatever the clock does, and
//! frees them with the last one. The document is the authority on detached holds (`dlock acquire`),
//! which last until their lease ends by this host's wall clock: a clock that is set forward ends
//! them early, one that is set back keeps them longer.
//!
//! An exclusive holder has the key's first byte locked for writing, sharing holders have it for
//! reading, and nested holds in other processes have the second one for reading. Each attached hold
//! has a byte of its own as well, and so has each waiter.
//!
//! | taking a lock anew | the bytes are free | another process has them |
//! |---|---|---|
//! | no holder, or one whose byte is free | granted | busy |
//! | a running detached hold, no permit left, or an earlier waiter | busy | busy |
//!
//! A waiter whom later ones may have to let go first joins by a row of its own, which the next
//! change of the document takes in: a crowd that comes at once does not wait for one document. Such
//! a row is older than any request that reads it; one that read before it was there asked at the
//! same time. A waiter that dies before its row is taken in is left out, since its byte is free.
//!
//! The order is always: bytes, then row; at a release: row, then bytes. A detached hold has the
//! bytes while its row is written.
//!
//! Worst cases:
//! - A process is killed between its bytes and its row: the kernel frees the bytes, and nothing
//!   else was done.
//! - It is killed between its row and its bytes: the row has a holder whose byte is free. The next
//!   step ends that hold.
//! - Bytes are locked, and no row says by which hold: the lock is busy in passing, since a grant or
//!   a release is under way.
//! - The answer of a grant is lost: the bytes stay until the request is asked again, released, or
//!   leaves the queue, since the row may yet be written. Tokens identify each step.
//! - The answer of a release is lost: the bytes stay, and the next release finds that one was
//!   begun.
//! - The row can't be written (a full disk, a frozen writer): an attached hold goes on, and its
//!   release frees the bytes, unless the row must tell how the hold ended.
//! - A waiter dies: its byte is free, and the next step removes it from the queue.
//! - The clock is set back: attached holds don't depend on it. No sign of life and no offer lies in
//!   the future.
//! - The database is removed: an exclusive hold goes on by its bytes. A shared hold ends, since the
//!   lock file can't count permits.
//! - The lock file is removed: holders of the old file last by their leases.
//! - Both are removed: nothing keeps others out. The holder is notified at once ([`removal`]), and
//!   the next one doesn't start before that took effect ([`lock_file::LockFile::open`]).
//!
//! This module may not: sleep (but in `wait`, in `watch`, and while a store is created), retry,
//! read a clock, start a thread or open the database before the first question (the guardian is
//! forked between [`Backend::prepare`] and that), or open the database file by itself (closing it
//! again would drop SQLite's own locks).

mod client;
mod database;
pub mod examine;
mod failure;
mod location;
mod lock_file;
mod lock_file_watch;
mod range_lock;
mod removal;
pub(super) mod schema;
mod slot;
pub(super) mod store;
#[cfg(test)]
mod tests;
mod waiting;
mod watch;

use std::{
    path::{self, PathBuf},
    time::Duration,
};

use async_trait::async_trait;

pub use self::location::default_path;
use self::{
    client::{SqliteClient, is_plain, unknown_holder},
    lock_file::Range,
    slot::Obstacle,
};
use super::cas::{CasBackend, ReadFor, Store as _, in_order};
use crate::lock::{
    Amendment, Attempt, Backend, Busy, Capabilities, Effect, Entry, Error, Fence, History,
    Identity, Intent, Key, Kind, LastResort, LockState, Mode, Namespace, Progress, Release,
    ReleaseInfo, Renewal, Request, Result, Scope, Token, Wake, Which,
};

pub(super) const CAPABILITIES: Capabilities = Capabilities {
    shared: true,
    permits: true,
    fair: true,
    history: true,
    run_policy: true,
    breakable: true,
    ..Capabilities::usual("sqlite")
};

/// Where the locks are kept.
#[derive(Clone, Debug)]
pub struct SqliteOptions {
    /// The database; `<path>.lock` next to it is the lock file.
    pub path: PathBuf,
    /// What keys are put under.
    pub namespace: Namespace,
    /// Create the directory, for its owner alone, if it doesn't exist.
    pub create_directory: bool,
}

impl SqliteOptions {
    /// A database in a directory that exists.
    pub fn at(path: impl Into<PathBuf>, namespace: Namespace) -> Self {
        Self {
            path: path.into(),
            namespace,
            create_directory: false,
        }
    }

    /// The default database, whose directory is created when it is first used.
    ///
    /// # Errors
    /// As [`default_path`].
    pub fn at_default(namespace: Namespace) -> Result<Self> {
        Ok(Self {
            path: default_path()?,
            namespace,
            create_directory: true,
        })
    }
}

/// A SQLite database and the lock file next to it.
pub struct Sqlite(CasBackend<SqliteClient>);

impl Sqlite {
    /// A backend that has opened nothing yet.
    pub fn new(mut options: SqliteOptions) -> Self {
        // Another working directory later must not mean another database, and a first `file:` no
        // URI to SQLite.
        if let Ok(absolute) = path::absolute(&options.path) {
            options.path = absolute;
        }
        Self(CasBackend::of(SqliteClient::new(options)))
    }

    fn client(&mut self) -> &mut SqliteClient {
        &mut self.0.store
    }

    /// Takes the bytes for a request. Returns what is in the way, if anything, and whether this
    /// process had this very hold before.
    fn secure(&mut self, request: &Request) -> Result<(Option<Obstacle>, bool)> {
        let prepared = self.client().prepared;
        let slot = self.client().slot(&request.key)?;
        let (obstacle, known) = slot.secure(request).map_err(|error| ours(&error))?;
        if !known && !slot.file.is_current() {
            // Other processes take another file's bytes. A guardian has inherited the old one.
            slot.undo(&request.token, known);
            let error = Error::new(
                Kind::Unavailable,
                format!("the lock file {} was replaced", slot.file.path().display()),
            );
            return Err(if prepared {
                error.hint("run it again")
            } else {
                error
            });
        }
        Ok((obstacle, known))
    }

    /// Keeps the bytes that an answer needs, and notes what a refused request waits for.
    fn settle(
        &mut self,
        request: &Request,
        (obstacle, known): (Option<Obstacle>, bool),
        answer: &Result<Attempt>,
    ) {
        let client = self.client();
        let Some(slot) = client.slots.get_mut(&request.key) else {
            return;
        };
        match answer {
            Ok(Attempt::Granted(grant)) => slot.confirm(request, grant.fence),
            // The grant may yet be written.
            Err(error) if error.effect != Effect::NotApplied => {}
            _ if obstacle.is_none() => slot.undo(&request.token, known),
            _ => {}
        }
        if let Ok(Attempt::Busy(_)) = answer {
            slot.watch_queue(&request.token);
            slot.obstacle = match obstacle {
                // The kernel hands the bytes to waiters in another order than the queue's: only its
                // first ones wait for them.
                Some(Obstacle::Bytes)
                    if in_order(request)
                        && request.mode == Mode::Exclusive
                        && !slot.is_first(&request.token) =>
                {
                    slot.give_back();
                    Obstacle::Document
                }
                Some(obstacle) => obstacle,
                None if !in_order(request) && is_plain(&slot.seen) => Obstacle::Lease,
                None => Obstacle::Document,
            };
            client.contended = true;
        }
    }

    /// Ends a step: other processes are woken if they must be, and the database's log is kept
    /// short.
    async fn finish(&mut self) {
        let client = self.client();
        client.notify_watchers();
        if let Some(database) = &mut client.database {
            database.tidy(&client.options.path, client.contended).await;
        }
    }

    /// Whether the database exists, so that there is a row to ask for.
    fn exists(&mut self) -> Result<bool> {
        let client = self.client();
        client.place()?;
        Ok(client.options.path.exists())
    }

    /// Whether the row knows nothing of a hold of this process: it is missing, or older than the
    /// hold.
    fn is_unknown(&mut self, key: &Key, token: &Token) -> bool {
        let slot = self.client().slots.get(key);
        slot.is_some_and(|slot| {
            slot.ours(token)
                .is_some_and(|ours| slot.last_fence.is_none_or(|fence| fence < ours.fence))
        })
    }
}

fn ours(error: &std::io::Error) -> Error {
    Error::new(
        Kind::Unavailable,
        format!("the lock file failed: {}", crate::lock::plain(error)),
    )
}

#[async_trait(?Send)]
impl Backend for Sqlite {
    fn identity(&self) -> Identity {
        self.0.identity()
    }

    async fn try_acquire(&mut self, request: &Request) -> Result<Attempt> {
        let secured = self.secure(request)?;
        let by_bytes = secured.0 == Some(Obstacle::Bytes);
        if secured.0.is_some() && request.entry == Entry::Reenter {
            return Ok(Attempt::NotHeld);
        }
        let mut answer = self.0.try_acquire(request).await;
        if by_bytes && !in_order(request) && answer.as_ref().is_err_and(Error::is_transient) {
            // The lock is busy, whether or not the database can say by which holder.
            answer = Ok(Attempt::Busy(Busy {
                holders: vec![unknown_holder()],
                notifies: true,
                transient: true,
                ..Busy::default()
            }));
        }
        self.settle(request, secured, &answer);
        self.client().notify_watchers();
        answer
    }

    async fn wait(&mut self, request: &Request, at_most: Duration) -> Result<Wake> {
        self.0.wait(request, at_most).await
    }

    async fn leave_queue(&mut self, request: &Request) -> Result<()> {
        let (key, token) = (&request.key, &request.token);
        let unsure = self
            .client()
            .slots
            .get(key)
            .and_then(|slot| slot.ours(token))
            .is_some_and(|ours| ours.unsure);
        if unsure {
            // A grant that was never reported. What can't be undone of it ends with its bytes, or
            // with its lease.
            let _ = self.0.release(key, token, &ReleaseInfo::UNDO).await;
        }
        let client = self.client();
        let Some(slot) = client.slots.get_mut(key) else {
            return Ok(());
        };
        if unsure {
            slot.forget(token, true);
        }
        slot.watcher.unlock();
        slot.stop_watching();
        slot.give_back();
        client.lock_file_watch = None;
        // A waiter whose byte is free is skipped.
        let _ = self.0.leave_queue(request).await;
        if let Some(slot) = self.client().slots.get_mut(key) {
            slot.stop_waiting(token);
        }
        self.client().notify_watchers();
        Ok(())
    }

    /// An attached hold of this process lasts as long as its bytes are ours and the row doesn't say
    /// that it is over. A row that can't be written does not end what the kernel still guarantees:
    /// it only tells others less.
    async fn renew(&mut self, key: &Key, token: &Token, intent: Intent) -> Result<Renewal> {
        if intent == Intent::Probe {
            // Read only.
            let mut snapshot = self.client().read(key, ReadFor::Look).await?;
            let now = snapshot.now();
            snapshot.document.expire(now);
            return Ok(snapshot.document.verify(token, now));
        }
        let exists = self.exists()?;
        if self.client().is_removed(key, token) {
            return Ok(Renewal::NotHeld);
        }
        let (has_process, current) = self.client().confirm(key, token)?;
        if !exists && let Some(slot) = self.client().slots.get_mut(key) {
            slot.last_fence = None;
        }
        let answer = if exists {
            self.0.renew(key, token, intent).await
        } else {
            Ok(Renewal::NotHeld)
        };
        self.client().notify_watchers();
        let unknown = self.is_unknown(key, token);
        let own = self
            .client()
            .slots
            .get(key)
            .and_then(|slot| slot.ours(token))
            .filter(|_| has_process && current);
        let renewed = own.map(|own| {
            (
                own.is_guarded(),
                Renewal::Renewed {
                    ttl: intent.ttl().unwrap_or(own.ttl),
                    fence: own.fence,
                },
            )
        });
        match (answer, renewed) {
            (Ok(Renewal::NotHeld), Some((true, renewed))) if unknown => Ok(renewed),
            (Err(error), renewed) => {
                self.client().give_up_on(&error);
                renewed.map(|(_, renewed)| renewed).ok_or(error)
            }
            (answer, _) => answer,
        }
    }

    /// The row first, then the bytes, so that the next holder finds the row free. If the row can't
    /// be written, the bytes of an attached hold are given back all the same, unless the row must
    /// tell how the hold ended: then the release fails, and keeps them ([`Backend::cut`]).
    async fn release(&mut self, key: &Key, token: &Token, info: &ReleaseInfo) -> Result<Release> {
        let exists = self.exists()?;
        let (has_process, current) = self.client().confirm(key, token)?;
        let mut begun = false;
        if let Some(slot) = self.client().slots.get_mut(key) {
            begun = slot.begin_to_leave(token);
            slot.last_fence = slot.last_fence.filter(|_| exists);
        }
        let answer = if exists {
            self.0.release(key, token, info).await
        } else {
            Ok(Release::NotHeld)
        };
        let unknown = self.is_unknown(key, token);
        let slot = self.client().slots.get_mut(key);
        let others = slot
            .map_or(Ok(false), |slot| slot.others_hold(token))
            .map_err(|error| ours(&error))?;
        let by_bytes = if others && info.scope != Scope::Tree {
            Release::StillHeld(1)
        } else {
            Release::Released
        };
        let answer = match answer {
            Ok(Release::NotHeld) if has_process && (begun || unknown) => Ok(by_bytes),
            Err(error) => {
                self.client().give_up_on(&error);
                if has_process && current && !info.is_reported() {
                    Ok(by_bytes)
                } else {
                    Err(error)
                }
            }
            answer => answer,
        };
        if let (Ok(answer), Some(slot)) = (&answer, self.client().slots.get_mut(key)) {
            slot.forget(
                token,
                info.scope == Scope::Tree && *answer == Release::Released,
            );
        }
        self.finish().await;
        answer
    }

    async fn amend(&mut self, key: &Key, change: Amendment<'_>) -> Result<bool> {
        if !self.exists()? && !matches!(change, Amendment::Note(_)) {
            return Ok(false);
        }
        if let Amendment::Evict(fence, _) = change {
            self.check_detached(key, fence).await?;
        }
        let done = self.0.amend(key, change).await;
        self.client().notify_watchers();
        done
    }

    async fn inspect(&mut self, key: &Key) -> Result<LockState> {
        self.0.inspect(key).await
    }

    async fn list(&mut self, start: &str, progress: &Progress) -> Result<Vec<LockState>> {
        self.0.list(start, progress).await
    }

    async fn known(&mut self, start: &str, which: Which, progress: &Progress) -> Result<Vec<Key>> {
        self.0.known(start, which, progress).await
    }

    async fn history(&mut self, key: &Key) -> Result<History> {
        self.0.history(key).await
    }

    fn prepare(&mut self, command_keeps: bool) -> Result<Option<LastResort>> {
        let client = self.client();
        let file = client.open_lock_file(command_keeps)?;
        client.file = Some(file.clone());
        client.prepared = true;
        Ok(Some(Box::new(move || {
            file.unlock(Range::EVERYTHING);
            // Nothing else would announce the release to waiters in the document's queue.
            file.notify_watchers();
        })))
    }

    async fn watch(&mut self, key: &Key, token: &Token) {
        self.client().await_removal(key, token).await;
    }

    /// Gives the bytes back, whatever the row says.
    async fn cut(&mut self, key: &Key, token: &Token) -> bool {
        let client = self.client();
        let Some(slot) = client.slots.get_mut(key) else {
            return false;
        };
        // Behind a lock file that was removed, the row counts.
        let freed = slot.forget(token, true) && slot.file.is_current();
        client.wake_watchers();
        client.notify_watchers();
        freed
    }
}

impl Sqlite {
    /// Refuses to evict a hold of a living process: the kernel keeps its bytes.
    async fn check_detached(&mut self, key: &Key, fence: Fence) -> Result<()> {
        let mut snapshot = self.client().read(key, ReadFor::Change).await?;
        let now = snapshot.now();
        snapshot.document.expire(now);
        if snapshot.document.is_detached(fence) != Some(false) {
            return Ok(());
        }
        let holder = snapshot
            .document
            .holders(now)
            .into_iter()
            .find(|holder| holder.fence == Some(fence));
        let pid = holder
            .and_then(|holder| holder.metadata?.pid)
            .map(|pid| format!(" (dlock pid {pid})"))
            .unwrap_or_default();
        let why = format!(
            "the process that has the lock lives{pid}: this store can't take a lock away from a living process"
        );
        Err(Error::new(Kind::Unsupported, why)
            .hint("without --now its dlock is asked to stop; or kill the process"))
    }
}
