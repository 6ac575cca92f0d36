//! A session: what ephemeral nodes last as long as, over whichever server.
//!
//! There is one for each hold, so that the session's timeout is the hold's lease. The client library keeps it alive as
//! long as this process runs its runtime; what the core believes in are its own renewals alone. A hold that outlives its
//! process gives its session away: nothing keeps that alive but what is asked over it.
//!
//! A session ends when [`Session::close`] says so, or by itself a timeout after its client is gone: dropped, it is left as
//! a crash would leave it. Only one that merely looks, or that is no longer waited for when it comes about, is ended
//! whatever becomes of it. Ending takes place in the background, and each question waits for it at last.

use std::{
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::{runtime::Handle, sync::oneshot, task::JoinHandle};

use zookeeper_client::{Acls, Client, Connector, EventType, OneshotWatcher, SessionState};

use super::{
    failure::{self, Asked, Fault},
    names::Names,
    options::Options,
    relay::Relay,
    send::{denial, send},
    wire::{Answer, Ask},
};
use crate::lock::{self, Error, Key, Kind, Result};

/// The ensemble, and how to get at it.
#[derive(Clone)]
pub(super) struct Ensemble {
    pub(super) options: Arc<Options>,
    /// Sessions that come about or are being ended.
    background: Arc<Mutex<Vec<JoinHandle<()>>>>,
}

/// What a session is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// A hold that lasts as long as this process keeps it.
    Hold,
    /// A hold that is handed over to the process that takes the session up.
    HandedOver,
    /// Nothing but looking.
    Visit,
}

/// What a session is asked for that only looks; as short as servers usually give one.
pub(super) const VISIT: Duration = Duration::from_secs(4);

/// How long the end of sessions is waited for. It goes on after that, as long as this process does; a lock that is free
/// already must not keep its user waiting.
const GOODBYE: Duration = Duration::from_millis(250);

/// The longest that the protocol can ask for.
pub(super) const LONGEST: Duration = Duration::from_millis(i32::MAX as u64);

/// Ready when something happened to a node, or to the session.
pub(super) type Watch = Pin<Box<dyn Future<Output = ()>>>;

impl Ensemble {
    pub(super) fn new(options: Options) -> Self {
        Self { options: Arc::new(options), background: Arc::default() }
    }

    pub(super) fn names(&self, key: &Key) -> Names {
        Names::new(&self.options.chroot, &self.options.namespace, key)
    }

    fn in_background(&self, work: impl Future<Output = ()> + Send + 'static) {
        // With its runtime, all of this process's sessions are gone.
        let Ok(runtime) = Handle::try_current() else { return };
        let mut tasks = self.background.lock().unwrap_or_else(PoisonError::into_inner);
        tasks.retain(|task| !task.is_finished());
        tasks.push(runtime.spawn(work));
    }

    /// Waits for a while until sessions that should end have ended.
    pub(super) async fn tidy(&self) {
        let tasks = std::mem::take(&mut *self.background.lock().unwrap_or_else(PoisonError::into_inner));
        if !tasks.is_empty() {
            within(GOODBYE, async {
                for task in tasks {
                    let _ = task.await;
                }
            })
            .await;
        }
    }

    /// Asks something, and waits for that too.
    pub(super) async fn tidied<T>(&self, asked: impl Future<Output = T>) -> T {
        let outcome = asked.await;
        self.tidy().await;
        outcome
    }

    /// A silent server is left for another in time for several renewals; no node is taken up or left behind by that. The
    /// library ends no session by itself.
    fn connector(&self, timeout: Duration, relay: &Relay) -> Connector {
        let (scheme, proof) = relay.login();
        let silence = (timeout / 6).clamp(Duration::from_millis(300), Duration::from_secs(5));
        let connector = Client::connector()
            .with_fail_eagerly()
            .with_detached()
            .with_session_timeout(timeout)
            .with_connection_timeout(silence)
            .with_auth(scheme, proof);
        match &self.options.login {
            Some((user, password)) => connector.with_auth("digest", format!("{user}:{}", password.reveal()).as_bytes()),
            None => connector,
        }
    }

    fn acls(&self) -> Acls<'static> {
        if self.options.login.is_some() { Acls::creator_all() } else { Acls::anyone_all() }
    }
}

/// One session.
pub(super) struct Session {
    pub(super) id: i64,
    /// As negotiated: what the session lasts after it was last heard of.
    pub(super) timeout: Duration,
    client: Option<Client>,
    /// What goes between the client and the servers.
    relay: Option<Relay>,
    /// The session is given away to the next owner, so that nothing of it may be kept here.
    given_away: bool,
    /// What this session is known by.
    known: Option<lock::Session>,
    /// A question was not answered before it was given up. A watch that is given up says nothing of the server.
    unanswered: bool,
    /// Whether it is ended when it is dropped.
    ends: bool,
    ensemble: Ensemble,
}

impl Session {
    /// A new session, of the nearest timeout that the server gives.
    pub(super) async fn open(ensemble: &Ensemble, timeout: Duration, purpose: Purpose) -> Result<Self> {
        let (give, take) = oneshot::channel();
        let there = ensemble.clone();
        ensemble.in_background(async move {
            let opened = Self::opened(&there, timeout, purpose).await;
            // The server may have made it although the question was given up meanwhile.
            if let Err(Ok(unwanted)) = give.send(opened) {
                unwanted.end().await;
            }
        });
        take.await.unwrap_or_else(|_| Err(Error::new(Kind::Internal, "a session was given up before it came about")))
    }

    async fn opened(ensemble: &Ensemble, timeout: Duration, purpose: Purpose) -> Result<Self> {
        let relay = Relay::start(&ensemble.options, None).await?;
        let client = connect(ensemble.connector(timeout, &relay), &relay).await?;
        Ok(Self {
            id: client.session_id().0,
            timeout: client.session_timeout(),
            known: relay.session(),
            client: Some(client),
            relay: Some(relay),
            given_away: purpose == Purpose::HandedOver,
            unanswered: false,
            ends: purpose == Purpose::Visit,
            ensemble: ensemble.clone(),
        })
    }

    /// A session that another process handed over, and what it lasts.
    pub(super) fn handed_over(ensemble: &Ensemble, session: lock::Session, timeout: Duration) -> Self {
        Self {
            id: session.id,
            timeout,
            client: None,
            relay: None,
            given_away: true,
            known: Some(session),
            unanswered: false,
            ends: false,
            ensemble: ensemble.clone(),
        }
    }

    /// What another process needs to take the session up.
    pub(super) fn password(&self) -> Option<lock::Session> {
        self.known
    }

    pub(super) fn is_given_away(&self) -> bool {
        self.given_away
    }

    /// What another process needs to take up a session that is given away.
    pub(super) fn hand_over(&self) -> Option<lock::Session> {
        self.known.filter(|_| self.given_away)
    }

    async fn take_up(&mut self) -> Asked<()> {
        let Some(known) = self.known else { return Err(Fault::Expired) };
        let relay = Relay::start(&self.ensemble.options, Some(known)).await?;
        let client = connect(self.ensemble.connector(self.timeout, &relay), &relay).await?;
        (self.client, self.relay, self.unanswered) = (Some(client), Some(relay), false);
        Ok(())
    }

    /// The client and its relay; taken out of a session that is given away, so that a question that is
    /// given up doesn't keep that alive.
    async fn reach(&mut self) -> Asked<Reached<'_>> {
        if self.client.is_none() {
            self.take_up().await?;
        }
        let (Some(client), Some(relay)) = (self.client.take(), self.relay.take()) else { return Err(Fault::Expired) };
        let mut reached = Reached { client: Some((client, relay)), session: self };
        if !reached.session.given_away {
            reached.keep();
        }
        if reached.session.unanswered {
            reached.by_another_server().await?;
        }
        Ok(reached)
    }

    /// Asks several things in one go. What was asked once is done, even if it is not awaited any more.
    pub(super) async fn ask(&mut self, requests: &[Ask<'_>]) -> Asked<Vec<Answer>> {
        let reached = self.reach().await?;
        reached.session.unanswered = true;
        let mut answers = Vec::with_capacity(requests.len());
        {
            let client = reached.client()?;
            // Each is sent when its future is made.
            let asked: Vec<_> = requests.iter().map(|request| send(client, request, reached.session.ensemble.acls())).collect();
            for answer in asked {
                answers.push(answer.await);
            }
        }
        reached.answered();
        answers.into_iter().collect()
    }

    /// Watches a node; `None` if it isn't there.
    pub(super) async fn watch(&mut self, path: &str) -> Asked<Option<Watch>> {
        let reached = self.reach().await?;
        let answer = reached.client()?.check_and_watch_stat(path).await;
        let watch = match answer {
            Ok((Some(_), watcher)) => Ok(Some(Box::pin(something(watcher)) as Watch)),
            Ok((None, _)) => Ok(None),
            Err(error) => Err(not_watched(error)),
        };
        reached.answered();
        watch
    }

    /// Watches the children of a directory, which must exist: their names, and what tells that they have changed.
    pub(super) async fn watch_children(&mut self, path: &str) -> Asked<(Vec<String>, Watch)> {
        let reached = self.reach().await?;
        let answer = reached.client()?.list_and_watch_children(path).await;
        let watch = match answer {
            Ok((names, watcher)) => Ok((names, Box::pin(something(watcher)) as Watch)),
            Err(error) => Err(not_watched(error)),
        };
        reached.answered();
        watch
    }

    /// Ends the session and all that is ephemeral of it, in the background: only one that holds nothing any more, so that
    /// the end need not be waited for.
    pub(super) fn close(self) {
        let ensemble = self.ensemble.clone();
        ensemble.in_background(self.end());
    }

    async fn end(mut self) {
        if self.client.is_none() && self.take_up().await.is_err() {
            return;
        }
        let (Some(client), Some(relay)) = (self.client.take(), self.relay.take()) else { return };
        goodbye(client, relay, self.timeout).await;
    }

    /// Asks without waiting for the answer.
    pub(super) fn tell(&self, requests: &[Ask<'_>]) {
        if let Some(client) = &self.client {
            for request in requests {
                drop(send(client, request, self.ensemble.acls()));
            }
        }
    }

    /// Leaves a session that is given away to itself: it lasts its timeout from now.
    pub(super) fn let_go(&mut self) {
        if self.given_away {
            (self.client, self.relay) = (None, None);
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if let (true, Some(client), Some(relay)) = (self.ends, self.client.take(), self.relay.take()) {
            self.ensemble.in_background(goodbye(client, relay, self.timeout));
        }
    }
}

/// Ends a session. By itself it would end at the latest so long after.
async fn goodbye(client: Client, relay: Relay, timeout: Duration) {
    let mut states = client.state_watcher();
    if client.state().is_terminated() {
        return;
    }
    relay.end_session();
    // It goes once it has heard all that it asked for; then the server is told.
    drop(client);
    within(timeout, async {
        let last = loop {
            let state = states.changed().await;
            if state.is_terminated() {
                break state;
            }
        };
        if last == SessionState::Closed {
            relay.ended().await;
        }
    })
    .await;
}

/// A session's client while something is asked of it.
struct Reached<'a> {
    session: &'a mut Session,
    client: Option<(Client, Relay)>,
}

impl Reached<'_> {
    fn keep(&mut self) {
        if let Some((client, relay)) = self.client.take() {
            (self.session.client, self.session.relay) = (Some(client), Some(relay));
        }
    }

    fn client(&self) -> Asked<&Client> {
        self.client.as_ref().map(|(client, _)| client).or(self.session.client.as_ref()).ok_or(Fault::Expired)
    }

    fn answered(mut self) {
        self.keep();
        self.session.unanswered = false;
    }

    /// What was asked before is not answered: the client goes on with its session by way of another server.
    async fn by_another_server(&mut self) -> Asked<()> {
        let client = self.client()?;
        let mut states = client.state_watcher();
        if client.state() == SessionState::SyncConnected {
            if let Some(relay) = &self.session.relay {
                relay.cut();
            }
            loop {
                match states.changed().await {
                    SessionState::SyncConnected => break,
                    SessionState::Expired => return Err(Fault::Expired),
                    SessionState::AuthFailed => return Err(failure::login_refused().into()),
                    SessionState::Closed => return Err(failure::broken(zookeeper_client::Error::ClientClosed).into()),
                    _ => {}
                }
            }
        }
        Ok(())
    }
}

#[allow(clippy::disallowed_methods)] // a lock that is free already must not wait for its session's end for long
async fn within<T>(limit: Duration, work: impl Future<Output = T>) {
    let _ = tokio::time::timeout(limit, work).await;
}

async fn connect(connector: Connector, relay: &Relay) -> Asked<Client> {
    use zookeeper_client::Error as Failure;
    connector.connect(&relay.addresses()).await.map_err(|error| match error {
        Failure::SessionExpired => Fault::Expired,
        Failure::AuthFailed => failure::login_refused().into(),
        error => relay.failure().unwrap_or_else(|| failure::unreachable(error)).into(),
    })
}

fn not_watched(error: zookeeper_client::Error) -> Fault {
    denial(error).map_or_else(|fault| fault, |code| failure::refused(&code).into())
}

async fn something(watcher: OneshotWatcher) {
    let event = watcher.changed().await;
    // Session events other than its end are none of a one-shot watcher's.
    debug_assert!(event.event_type != EventType::Session || event.session_state.is_terminated());
}
