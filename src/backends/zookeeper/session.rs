//! A session: the lifetime of ephemeral nodes, over any server.
//!
//! Each hold has a session of its own, so that the session's timeout is the hold's lease. The
//! client library keeps it alive as long as this process runs its runtime; the core relies only on
//! its own renewals. A hold that outlives its process gives its session away: only the requests
//! over that session keep it alive.
//!
//! A session ends by [`ZkSession::close`], or by itself a timeout after its client is gone: a
//! dropped session stays as after a crash. Only a visiting session, or one that is no longer waited
//! for when it is opened, is always ended. Ending takes place in the background, and each request
//! waits for that at the end.

use std::{
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::{runtime::Handle, sync::oneshot, task::JoinHandle};

use zookeeper_client::{Acls, Client, Connector, EventType, OneshotWatcher, SessionState};

use super::{
    failure::{self, Fault, ZkResult},
    names::ZkNames,
    options::ZooKeeperOptions,
    relay::ZkRelay,
    send::{denial, send},
    wire::{WireReply, WireRequest},
};
use crate::lock::{self, Error, Key, Kind, Result};

/// The ensemble, and the means to connect to it.
#[derive(Clone)]
pub(super) struct Ensemble {
    pub(super) options: Arc<ZooKeeperOptions>,
    /// Sessions that are being opened or ended.
    background: Arc<Mutex<Vec<JoinHandle<()>>>>,
}

/// The purpose of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// A hold that lasts as long as this process keeps it.
    Hold,
    /// A hold that is handed over to the process that resumes the session.
    HandedOver,
    /// Reading only.
    Visit,
}

/// The timeout that a visiting session asks for, about the shortest that servers usually give.
pub(super) const VISIT: Duration = Duration::from_secs(4);

/// How long dlock waits for sessions to end. Their end goes on after that, as long as this process
/// does. A lock that is free already must not keep its user waiting.
const GOODBYE: Duration = Duration::from_millis(250);

/// The longest timeout in the protocol.
pub(super) const LONGEST: Duration = Duration::from_millis(i32::MAX as u64);

/// Completes when something happened to a node, or to the session.
pub(super) type NodeWatch = Pin<Box<dyn Future<Output = ()>>>;

impl Ensemble {
    pub(super) fn new(options: ZooKeeperOptions) -> Self {
        Self {
            options: Arc::new(options),
            background: Arc::default(),
        }
    }

    pub(super) fn names(&self, key: &Key) -> ZkNames {
        ZkNames::new(&self.options.chroot, &self.options.namespace, key)
    }

    fn in_background(&self, work: impl Future<Output = ()> + Send + 'static) {
        // All of this process's sessions end with its runtime.
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        let mut tasks = self
            .background
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        tasks.retain(|task| !task.is_finished());
        tasks.push(runtime.spawn(work));
    }

    /// Waits, up to a limit, until ending sessions have ended.
    pub(super) async fn await_ended_sessions(&self) {
        let tasks = std::mem::take(
            &mut *self
                .background
                .lock()
                .unwrap_or_else(PoisonError::into_inner),
        );
        if !tasks.is_empty() {
            within(GOODBYE, async {
                for task in tasks {
                    let _ = task.await;
                }
            })
            .await;
        }
    }

    /// Does a request, and waits likewise after it.
    pub(super) async fn then_await_ended_sessions<T>(&self, asked: impl Future<Output = T>) -> T {
        let outcome = asked.await;
        self.await_ended_sessions().await;
        outcome
    }

    /// Returns a connector that leaves a silent server in time for several renewals, without
    /// creating or leaving a node. The library ends no session by itself.
    async fn connector(&self, timeout: Duration, relay: &ZkRelay) -> Result<Connector> {
        let (scheme, proof) = relay.login();
        let silence = (timeout / 6).clamp(Duration::from_millis(300), Duration::from_secs(5));
        let connector = Client::connector()
            .with_fail_eagerly()
            .with_detached()
            .with_session_timeout(timeout)
            .with_connection_timeout(silence)
            .with_auth(scheme, proof);
        Ok(match &self.options.login {
            Some((user, password)) => connector.with_auth(
                "digest",
                format!("{user}:{}", password.reveal().await?).as_bytes(),
            ),
            None => connector,
        })
    }

    fn acls(&self) -> Acls<'static> {
        if self.options.login.is_some() {
            Acls::creator_all()
        } else {
            Acls::anyone_all()
        }
    }
}

/// One session.
pub(super) struct ZkSession {
    pub(super) id: i64,
    /// The negotiated timeout: how long the session lasts without a request.
    pub(super) timeout: Duration,
    client: Option<Client>,
    /// The relay between the client and the servers.
    relay: Option<ZkRelay>,
    /// The session is given away to the next owner, so this process must not keep it alive.
    given_away: bool,
    /// The session's id and password.
    known: Option<lock::StoreSession>,
    /// Whether a request was given up before its answer. A watch that is given up says nothing
    /// about the server.
    unanswered: bool,
    /// Whether the session ends when it is dropped.
    ends: bool,
    ensemble: Ensemble,
}

impl ZkSession {
    /// Opens a new session, with the nearest timeout that the server gives.
    pub(super) async fn open(
        ensemble: &Ensemble,
        timeout: Duration,
        purpose: Purpose,
    ) -> Result<Self> {
        let (give, take) = oneshot::channel();
        let there = ensemble.clone();
        ensemble.in_background(async move {
            let opened = Self::opened(&there, timeout, purpose).await;
            // The server may have opened it although the request was given up meanwhile.
            if let Err(Ok(unwanted)) = give.send(opened) {
                unwanted.end().await;
            }
        });
        take.await.unwrap_or_else(|_| {
            Err(Error::new(
                Kind::Internal,
                "a session was given up before it came about",
            ))
        })
    }

    async fn opened(ensemble: &Ensemble, timeout: Duration, purpose: Purpose) -> Result<Self> {
        let relay = ZkRelay::start(&ensemble.options, None).await?;
        let client = connect(ensemble.connector(timeout, &relay).await?, &relay).await?;
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

    /// Returns a session that another process handed over, with its timeout.
    pub(super) fn handed_over(
        ensemble: &Ensemble,
        session: lock::StoreSession,
        timeout: Duration,
    ) -> Self {
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

    /// Returns the data that another process needs to resume the session.
    pub(super) fn password(&self) -> Option<lock::StoreSession> {
        self.known
    }

    pub(super) fn is_given_away(&self) -> bool {
        self.given_away
    }

    /// Returns the data that another process needs to resume a session that is given away.
    pub(super) fn hand_over(&self) -> Option<lock::StoreSession> {
        self.known.filter(|_| self.given_away)
    }

    async fn resume(&mut self) -> ZkResult<()> {
        let Some(known) = self.known else {
            return Err(Fault::Expired);
        };
        let relay = ZkRelay::start(&self.ensemble.options, Some(known)).await?;
        let client = connect(self.ensemble.connector(self.timeout, &relay).await?, &relay).await?;
        (self.client, self.relay, self.unanswered) = (Some(client), Some(relay), false);
        Ok(())
    }

    /// Returns the client and its relay. They are taken out of a session that is given away, so
    /// that a dropped request doesn't keep that session alive.
    async fn reach(&mut self) -> ZkResult<ActiveClient<'_>> {
        if self.client.is_none() {
            self.resume().await?;
        }
        let (Some(client), Some(relay)) = (self.client.take(), self.relay.take()) else {
            return Err(Fault::Expired);
        };
        let mut reached = ActiveClient {
            client: Some((client, relay)),
            session: self,
        };
        if !reached.session.given_away {
            reached.keep();
        }
        if reached.session.unanswered {
            reached.move_to_another_server().await?;
        }
        Ok(reached)
    }

    /// Sends several requests in one batch. They are done even if their answers are not awaited.
    pub(super) async fn ask(&mut self, requests: &[WireRequest<'_>]) -> ZkResult<Vec<WireReply>> {
        let reached = self.reach().await?;
        reached.session.unanswered = true;
        let mut answers = Vec::with_capacity(requests.len());
        {
            let client = reached.client()?;
            // Creating the future sends the request.
            let asked: Vec<_> = requests
                .iter()
                .map(|request| send(client, request, reached.session.ensemble.acls()))
                .collect();
            for answer in asked {
                answers.push(answer.await);
            }
        }
        reached.answered();
        answers.into_iter().collect()
    }

    /// Watches a node; returns `None` if it doesn't exist.
    pub(super) async fn watch(&mut self, path: &str) -> ZkResult<Option<NodeWatch>> {
        let reached = self.reach().await?;
        let answer = reached.client()?.check_and_watch_stat(path).await;
        let watch = match answer {
            Ok((Some(_), watcher)) => Ok(Some(Box::pin(fired(watcher)) as NodeWatch)),
            Ok((None, _)) => Ok(None),
            Err(error) => Err(not_watched(error)),
        };
        reached.answered();
        watch
    }

    /// Watches the children of a directory, which must exist. Returns their names, and a watch for
    /// their change.
    pub(super) async fn watch_children(
        &mut self,
        path: &str,
    ) -> ZkResult<(Vec<String>, NodeWatch)> {
        let reached = self.reach().await?;
        let answer = reached.client()?.list_and_watch_children(path).await;
        let watch = match answer {
            Ok((names, watcher)) => Ok((names, Box::pin(fired(watcher)) as NodeWatch)),
            Err(error) => Err(not_watched(error)),
        };
        reached.answered();
        watch
    }

    /// Ends the session and its ephemeral nodes, in the background. The session must hold nothing
    /// any more, so that its end need not be waited for.
    pub(super) fn close(self) {
        let ensemble = self.ensemble.clone();
        ensemble.in_background(self.end());
    }

    async fn end(mut self) {
        if self.client.is_none() && self.resume().await.is_err() {
            return;
        }
        let (Some(client), Some(relay)) = (self.client.take(), self.relay.take()) else {
            return;
        };
        end_session(client, relay, self.timeout).await;
    }

    /// Sends requests without waiting for the answers.
    pub(super) fn tell(&self, requests: &[WireRequest<'_>]) {
        if let Some(client) = &self.client {
            for request in requests {
                drop(send(client, request, self.ensemble.acls()));
            }
        }
    }

    /// Stops keeping alive a session that is given away: it lasts its timeout from now.
    pub(super) fn stop_keeping_alive(&mut self) {
        if self.given_away {
            (self.client, self.relay) = (None, None);
        }
    }
}

impl Drop for ZkSession {
    fn drop(&mut self) {
        if let (true, Some(client), Some(relay)) =
            (self.ends, self.client.take(), self.relay.take())
        {
            self.ensemble
                .in_background(end_session(client, relay, self.timeout));
        }
    }
}

/// Ends a session, which would end by itself after `timeout` at the latest.
async fn end_session(client: Client, relay: ZkRelay, timeout: Duration) {
    let mut states = client.state_watcher();
    if client.state().is_terminated() {
        return;
    }
    relay.end_session();
    // The client ends once all its requests are answered. The server is told then.
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

/// A session's client during a request.
struct ActiveClient<'a> {
    session: &'a mut ZkSession,
    client: Option<(Client, ZkRelay)>,
}

impl ActiveClient<'_> {
    fn keep(&mut self) {
        if let Some((client, relay)) = self.client.take() {
            (self.session.client, self.session.relay) = (Some(client), Some(relay));
        }
    }

    fn client(&self) -> ZkResult<&Client> {
        self.client
            .as_ref()
            .map(|(client, _)| client)
            .or(self.session.client.as_ref())
            .ok_or(Fault::Expired)
    }

    fn answered(mut self) {
        self.keep();
        self.session.unanswered = false;
    }

    /// Continues the session by way of another server. Earlier requests stay unanswered.
    async fn move_to_another_server(&mut self) -> ZkResult<()> {
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
                    SessionState::Closed => {
                        return Err(failure::broken(zookeeper_client::Error::ClientClosed).into());
                    }
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

async fn connect(connector: Connector, relay: &ZkRelay) -> ZkResult<Client> {
    use zookeeper_client::Error as Failure;
    connector
        .connect(&relay.addresses())
        .await
        .map_err(|error| match error {
            Failure::SessionExpired => Fault::Expired,
            Failure::AuthFailed => failure::login_refused().into(),
            error => relay
                .failure()
                .unwrap_or_else(|| failure::unreachable(error))
                .into(),
        })
}

fn not_watched(error: zookeeper_client::Error) -> Fault {
    denial(error).map_or_else(|fault| fault, |code| failure::refused(&code).into())
}

async fn fired(watcher: OneshotWatcher) {
    let event = watcher.changed().await;
    // A one-shot watcher gets no session events but the session's end.
    debug_assert!(event.event_type != EventType::Session || event.session_state.is_terminated());
}
