//! An etcd v3 cluster.
//!
//! A lock is a folder of keys, one for each holder or waiter, each with a lease of its own. The
//! keys' order of creation is the order of the queue, and a key's create revision is its fence.
//! `etcdctl lock`, Go's `concurrency` package and etcd's read-write lock do the same, so they and
//! dlock exclude each other. Safety arguments are next to the code: [`acquire`] and [`hold`] list
//! the interleavings that they handle, [`names`] lists the keys.
//!
//! A holder of another library leaves no record that tells whether it left in order, so no
//! successor leaves it time to stop. `etcdctl lock` doesn't stop its command when its lease is
//! lost, and would gain nothing.
//!
//! This module never retries or prints. It limits time only where another member can answer
//! instead.

mod acquire;
mod breaking;
mod client;
mod clock;
mod connection;
mod enter;
pub mod examine;
mod failure;
mod gc;
mod history;
mod hold;
mod inspect;
mod messages;
mod monitor;
mod names;
mod ops;
mod options;
mod permits;
mod position;
mod probe;
mod questions;
mod queue;
mod record;
mod runs;
mod session;
pub mod sharing;
pub(super) mod store;
mod waiting;

use std::{future::pending, time::Duration};

use async_trait::async_trait;

pub use self::options::EtcdOptions;
use self::{
    client::EtcdClient,
    names::EtcdNames,
    session::{EtcdSession, HoldState, seconds},
};
use crate::lock::{
    Amendment, Attempt, Backend, Capabilities, Entry, Grant, History, Identity, Intent, Key,
    LockState, Notice, Progress, Release, ReleaseInfo, Renewal, Request, Result, Token, Ttl, Wake,
    Which,
};

pub(super) const CAPABILITIES: Capabilities = Capabilities {
    shared: true,
    permits: true,
    // A waiter's position follows from its arrival, and no other waiter passes it.
    fair: true,
    always_fair: true,
    history: true,
    run_policy: true,
    breakable: true,
    // A server's minimum lease may be longer: the granted length counts.
    ttl_min: Ttl::MIN,
    ttl_granularity: Duration::from_secs(1),
    // A lease's length is fixed when it is granted.
    adjustable_ttl: false,
    ..Capabilities::usual("etcd")
};

/// Locks in one etcd cluster.
///
/// The backend has at most one connection, to one member, made by the first operation that needs
/// it. An operation that is dropped or fails closes the connection, and the next one uses another
/// member.
pub struct Etcd {
    client: EtcdClient,
    /// The requests of this process, noted before they are sent: an unanswered request may have
    /// been served.
    sessions: Vec<EtcdSession>,
    notices: Vec<Notice>,
}

impl Etcd {
    /// Creates a backend for `options`, without I/O.
    pub fn new(options: EtcdOptions) -> Self {
        Self {
            client: EtcdClient::new(options),
            sessions: Vec::new(),
            notices: Vec::new(),
        }
    }

    fn at(&self, key: &Key, token: &Token) -> Option<usize> {
        self.sessions
            .iter()
            .position(|session| session.key == *key && session.token == *token)
    }

    /// Returns the index of the session of this token's hold. Creates the session if there is none.
    fn session(&mut self, key: &Key, token: &Token) -> usize {
        self.at(key, token).unwrap_or_else(|| {
            self.sessions.push(EtcdSession::new(
                &self.client.options().namespace,
                key,
                token,
            ));
            self.sessions.len() - 1
        })
    }

    /// Adds a notice if the lease's length differs from the requested TTL.
    fn note_length(&mut self, request: &Request, grant: &Grant) {
        let granted = grant.ttl.get();
        if granted.as_secs() == seconds(request.ttl).unsigned_abs() || !self.notices.is_empty() {
            return;
        }
        let length = humantime::format_duration(granted);
        let text = if granted > request.ttl.get() {
            format!("the lease lasts {length}, the shortest that the server gives")
        } else {
            format!("the lease lasts {length}, no longer than that of the lock which was entered")
        };
        self.notices.push(Notice {
            warning: false,
            text,
            hint: None,
        });
    }
}

#[async_trait(?Send)]
impl Backend for Etcd {
    fn identity(&self) -> Identity {
        let mut options = self.client.options().clone();
        let url = options.redacted_url();
        options.endpoints.sort();
        let parts = [&*options.redacted_url(), options.namespace.as_str()];
        Identity {
            has_other_servers: options.endpoints.len() > 1,
            ..Identity::new(&CAPABILITIES, url, &parts)
        }
    }

    async fn connect(&mut self, request: &Request) -> Result<()> {
        // A member out of descriptors lets a client connect, and answers nothing.
        let names = EtcdNames::new(&self.client.options().namespace, &request.key);
        let asked = self.client.run(vec![ops::get(&names.last())]).await;
        Ok(asked.map(|_| ())?)
    }

    fn disconnect(&mut self) {
        self.client.connection = None;
        self.client.under_way = false;
    }

    async fn try_acquire(&mut self, request: &Request) -> Result<Attempt> {
        CAPABILITIES.check(request)?;
        let at = self.session(&request.key, &request.token);
        let session = &mut self.sessions[at];
        session.taking = true;
        if request.entry == Entry::Reenter {
            // This is set before any request: if the process gives up from now on, it must not
            // remove the owner's key.
            session.inner = Some(session.inner());
        }
        let outcome = match request.entry {
            Entry::Fresh => acquire::take(&mut self.client, session, request).await,
            Entry::Reenter => enter::enter(&mut self.client, session, request).await,
        };
        match &outcome {
            Ok(Attempt::Granted(grant)) => self.note_length(request, grant),
            Ok(Attempt::Busy(_) | Attempt::Denied(_)) if request.waiting => {}
            Ok(Attempt::Busy(_) | Attempt::Denied(_) | Attempt::NotHeld) => {
                drop(self.sessions.swap_remove(at));
            }
            Err(_) => {}
        }
        Ok(outcome?)
    }

    async fn wait(&mut self, request: &Request, at_most: Duration) -> Result<Wake> {
        let at = self.session(&request.key, &request.token);
        Ok(waiting::wait(&mut self.client, &mut self.sessions[at], at_most).await?)
    }

    async fn leave_queue(&mut self, request: &Request) -> Result<()> {
        let Some(at) = self.at(&request.key, &request.token) else {
            return Ok(());
        };
        let session = &mut self.sessions[at];
        if session.taking
            && matches!(
                session.state,
                HoldState::Asked { .. } | HoldState::Queued(_)
            )
        {
            position::leave(&mut self.client, session, request.mode).await?;
            if runs::records(request) {
                // A grant may have been applied late, as in `hold::release`.
                runs::RunKeys::undo(&mut self.client, &session.names, &session.token.hold_text())
                    .await?;
            }
            self.sessions.swap_remove(at);
        }
        Ok(())
    }

    async fn renew(&mut self, key: &Key, token: &Token, intent: Intent) -> Result<Renewal> {
        if let Some(ttl) = intent.ttl() {
            CAPABILITIES.check_new_ttl(ttl)?;
        }
        let known = self.at(key, token).is_some();
        let at = self.session(key, token);
        if intent != Intent::Probe {
            return Ok(hold::renew(&mut self.client, &mut self.sessions[at], intent).await?);
        }
        let outcome = hold::verify(&mut self.client, &self.sessions[at]).await;
        if !known {
            self.sessions.swap_remove(at);
        }
        Ok(outcome?)
    }

    async fn release(&mut self, key: &Key, token: &Token, info: &ReleaseInfo) -> Result<Release> {
        let at = self.session(key, token);
        let session = &mut self.sessions[at];
        let release = hold::release(&mut self.client, session, info).await?;
        // A waiter stays in the queue, and leaves the queue by a request of its own.
        if !matches!(session.state, HoldState::Queued(_)) {
            self.sessions.swap_remove(at);
        }
        Ok(release)
    }

    async fn amend(&mut self, key: &Key, change: Amendment<'_>) -> Result<bool> {
        let client = &mut self.client;
        Ok(match change {
            Amendment::Note(note) => history::note(client, key, note).await.map(|()| true),
            Amendment::Warn(fence, level) => {
                breaking::amend(client, key, fence, |record| record.warned(level)).await
            }
            Amendment::Mark(fence, mark) => {
                breaking::amend(client, key, fence, |record| Some(record.marked(mark))).await
            }
            Amendment::Evict(fence, mark) => breaking::evict(client, key, fence, mark).await,
        }?)
    }

    async fn inspect(&mut self, key: &Key) -> Result<LockState> {
        Ok(inspect::inspect(&mut self.client, key).await?)
    }

    async fn list(&mut self, start: &str, progress: &Progress) -> Result<Vec<LockState>> {
        Ok(inspect::list(&mut self.client, start, progress).await?)
    }

    async fn known(&mut self, start: &str, which: Which, progress: &Progress) -> Result<Vec<Key>> {
        Ok(inspect::known(&mut self.client, start, which, progress).await?)
    }

    async fn history(&mut self, key: &Key) -> Result<History> {
        Ok(history::history(&mut self.client, key).await?)
    }

    fn notices(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.notices)
    }

    async fn watch(&mut self, key: &Key, token: &Token) {
        match self.at(key, token) {
            Some(at) => waiting::listen(&mut self.client, &mut self.sessions[at]).await,
            None => pending().await,
        }
    }
}
