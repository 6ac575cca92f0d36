//! A session: what ephemeral nodes last as long as, over whichever server.
//!
//! There is one for each hold, so that the session's timeout is the hold's lease. The client library keeps it alive as
//! long as this process runs its runtime; what the core believes in are its own renewals alone. A hold that outlives its
//! process gives its session away: nothing keeps that alive but what is asked over it.
//!
//! A session ends when [`Session::close`] says so, or by itself a timeout after its client is gone: dropped, it is left as
//! a crash would leave it. Only one that merely looks, or that nobody waits for any more when it comes about, is ended
//! whatever becomes of it. Ending takes place in the background, and each question waits for it at last.

use std::{
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::{runtime::Handle, sync::oneshot, task::JoinHandle};

use zookeeper_client::{Acls, Client, Connector, CreateMode, EventType, MultiWriteError, MultiWriteResult, OneshotWatcher, SessionState};

use super::{
    failure::{self, Asked, Fault},
    options::Options,
    relay::Relay,
    wire::{Answer, Code, Node, Reply, Request, Stat},
};
use crate::lock::{self, Error, Kind, Result};

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
    /// A hold that is handed over to whoever takes the session up.
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

    fn in_background(&self, work: impl Future<Output = ()> + Send + 'static) {
        // With its runtime, all of this process's sessions are gone.
        let Ok(runtime) = Handle::try_current() else { return };
        let mut tasks = self.background.lock().unwrap_or_else(PoisonError::into_inner);
        tasks.retain(|task| !task.is_finished());
        tasks.push(runtime.spawn(work));
    }

    /// Waits until those sessions are ended that are to be, for a while.
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
    /// The session is given away to who takes it up, so that nothing may be kept of it here.
    given_away: bool,
    /// What this session is known by.
    known: Option<lock::Session>,
    /// A question was not answered before it was given up. A watch that is given up says nothing of the server.
    unanswered: bool,
    /// Where it is ended when it is dropped, if it is.
    ends_in: Option<Ensemble>,
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
                unwanted.end(&there).await;
            }
        });
        take.await.unwrap_or_else(|_| Err(Error::new(Kind::Internal, "a session was given up before it came about")))
    }

    async fn opened(ensemble: &Ensemble, timeout: Duration, purpose: Purpose) -> Result<Self> {
        let relay = Relay::start(&ensemble.options, None).await?;
        let client = connect(ensemble.connector(timeout, &relay), &relay).await.map_err(Fault::into_error)?;
        Ok(Self {
            id: client.session_id().0,
            timeout: client.session_timeout(),
            known: relay.session(),
            client: Some(client),
            relay: Some(relay),
            given_away: purpose == Purpose::HandedOver,
            unanswered: false,
            ends_in: (purpose == Purpose::Visit).then(|| ensemble.clone()),
        })
    }

    /// A session that another process handed over, and what it lasts.
    pub(super) fn handed_over(session: lock::Session, timeout: Duration) -> Self {
        Self {
            id: session.id,
            timeout,
            client: None,
            relay: None,
            given_away: true,
            known: Some(session),
            unanswered: false,
            ends_in: None,
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

    async fn take_up(&mut self, ensemble: &Ensemble) -> Asked<()> {
        let Some(known) = self.known else { return Err(Fault::Expired) };
        let relay = Relay::start(&ensemble.options, Some(known)).await?;
        let client = connect(ensemble.connector(self.timeout, &relay), &relay).await?;
        (self.client, self.relay, self.unanswered) = (Some(client), Some(relay), false);
        Ok(())
    }

    /// The client, and what its connection goes by; taken out of a session that is given away, so that a question that is
    /// given up doesn't keep that alive.
    async fn reach(&mut self, ensemble: &Ensemble) -> Asked<Reached<'_>> {
        if self.client.is_none() {
            self.take_up(ensemble).await?;
        }
        let (Some(client), Some(relay)) = (self.client.take(), self.relay.take()) else { return Err(Fault::Expired) };
        let mut reached = Reached { client: Some((client, relay)), session: self };
        reached.keep_unless_given_away();
        if reached.session.unanswered {
            reached.by_another_server().await?;
        }
        Ok(reached)
    }

    /// Asks several things in one go. What was asked once is done, even if nobody awaits it any more.
    pub(super) async fn ask(&mut self, ensemble: &Ensemble, requests: &[Request<'_>]) -> Asked<Vec<Answer>> {
        let reached = self.reach(ensemble).await?;
        reached.session.unanswered = true;
        let mut answers = Vec::with_capacity(requests.len());
        {
            let client = reached.client()?;
            // Each is sent when its future is made.
            let asked: Vec<_> = requests.iter().map(|request| send(client, request, ensemble.acls())).collect();
            for answer in asked {
                answers.push(answer.await);
            }
        }
        reached.answered();
        answers.into_iter().collect()
    }

    /// Watches a node; `None` if it isn't there.
    pub(super) async fn watch(&mut self, ensemble: &Ensemble, path: &str) -> Asked<Option<Watch>> {
        let reached = self.reach(ensemble).await?;
        let answer = reached.client()?.check_and_watch_stat(path).await;
        let watch = match answer {
            Ok((Some(_), watcher)) => Ok(Some(Box::pin(something(watcher)) as Watch)),
            Ok((None, _)) => Ok(None),
            Err(error) => match refusal(error) {
                Ok(code) => Err(failure::refused(&code).into()),
                Err(fault) => Err(fault),
            },
        };
        reached.answered();
        watch
    }

    /// Watches what lies in a directory, which is to be there: the names, and what tells that they are others.
    pub(super) async fn watch_children(&mut self, ensemble: &Ensemble, path: &str) -> Asked<(Vec<String>, Watch)> {
        let reached = self.reach(ensemble).await?;
        let answer = reached.client()?.list_and_watch_children(path).await;
        let watch = match answer {
            Ok((names, watcher)) => Ok((names, Box::pin(something(watcher)) as Watch)),
            Err(error) => match refusal(error) {
                Ok(code) => Err(failure::refused(&code).into()),
                Err(fault) => Err(fault),
            },
        };
        reached.answered();
        watch
    }

    /// Ends the session and all that is ephemeral of it, in the background: only one that holds nothing any more, so that
    /// nobody needs to know that it is done.
    pub(super) fn close(self, ensemble: &Ensemble) {
        let there = ensemble.clone();
        ensemble.in_background(async move { self.end(&there).await });
    }

    async fn end(mut self, ensemble: &Ensemble) {
        if self.client.is_none() && self.take_up(ensemble).await.is_err() {
            return;
        }
        let (Some(client), Some(relay)) = (self.client.take(), self.relay.take()) else { return };
        goodbye(client, relay, self.timeout).await;
    }

    /// Asks for what nobody needs to hear the answer to.
    pub(super) fn tell(&self, ensemble: &Ensemble, requests: &[Request<'_>]) {
        if let Some(client) = &self.client {
            for request in requests {
                drop(send(client, request, ensemble.acls()));
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
        if let (Some(ensemble), Some(client), Some(relay)) = (self.ends_in.take(), self.client.take(), self.relay.take()) {
            ensemble.in_background(goodbye(client, relay, self.timeout));
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
    fn keep_unless_given_away(&mut self) {
        if !self.session.given_away {
            self.keep();
        }
    }

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

async fn something(watcher: OneshotWatcher) {
    let event = watcher.changed().await;
    // Session events other than its end are none of a one-shot watcher's.
    debug_assert!(event.event_type != EventType::Session || event.session_state.is_terminated());
}

type Sent<'a> = Pin<Box<dyn Future<Output = Asked<Answer>> + 'a>>;

fn send<'a>(client: &'a Client, request: &Request<'a>, acls: Acls<'static>) -> Sent<'a> {
    match *request {
        Request::Create { path, data, node } => {
            let made = client.create(path, data, &mode(node).with_acls(acls));
            Box::pin(async move {
                answer(made.await.map(|(stat, sequence)| {
                    let path = if node == Node::Contender { format!("{path}{sequence}") } else { path.to_owned() };
                    Reply::Made { path, stat: stat_of(&stat) }
                }))
            })
        }
        Request::Delete { path } => {
            let done = client.delete(path, None);
            Box::pin(async move { answer(done.await.map(|()| Reply::Done)) })
        }
        Request::DeleteSince { path, version } => {
            let done = client.delete(path, Some(version));
            Box::pin(async move { answer(done.await.map(|()| Reply::Done)) })
        }
        Request::Exists { path } => {
            let stat = client.check_stat(path);
            Box::pin(async move {
                match stat.await {
                    Ok(Some(stat)) => Ok(Ok(Reply::Stat(stat_of(&stat)))),
                    Ok(None) => Ok(Err(Code::NoNode)),
                    Err(error) => answer(Err(error)),
                }
            })
        }
        Request::Read { path } => {
            let read = client.get_data(path);
            Box::pin(async move { answer(read.await.map(|(data, stat)| Reply::Data { data, stat: stat_of(&stat) })) })
        }
        Request::Write { path, data } => {
            let written = client.set_data(path, data, None);
            Box::pin(async move { answer(written.await.map(|stat| Reply::Stat(stat_of(&stat)))) })
        }
        Request::WriteSince { path, data, version } => {
            let written = client.set_data(path, data, Some(version));
            Box::pin(async move { answer(written.await.map(|stat| Reply::Stat(stat_of(&stat)))) })
        }
        Request::Children { path } => {
            let names = client.list_children(path);
            Box::pin(async move { answer(names.await.map(Reply::Children)) })
        }
        Request::Sync { path } => {
            let done = client.sync(path);
            Box::pin(async move { answer(done.await.map(|()| Reply::Done)) })
        }
        Request::Check { .. } => Box::pin(async { Err(failure::unreadable().into()) }),
        Request::All(ref steps) => {
            let mut writer = client.new_multi_writer();
            let added: Result<(), _> = steps.iter().try_for_each(|step| match *step {
                Request::Create { path, data, node } => writer.add_create(path, data, &mode(node).with_acls(acls)),
                Request::Delete { path } => writer.add_delete(path, None),
                Request::DeleteSince { path, version } => writer.add_delete(path, Some(version)),
                Request::Write { path, data } => writer.add_set_data(path, data, None),
                Request::WriteSince { path, data, version } => writer.add_set_data(path, data, Some(version)),
                Request::Check { path } => writer.add_check_version(path, -1),
                _ => Err(zookeeper_client::Error::BadArguments(&"no step of a transaction")),
            });
            let done = added.map(|()| writer.commit());
            Box::pin(async move {
                match done {
                    Err(error) => answer(Err(error)),
                    Ok(done) => match done.await {
                        Ok(done) => {
                            let mut all = done.into_iter().filter_map(made);
                            let first = all.next();
                            Ok(Ok(Reply::AllDone { made: first, last: all.next_back().map(|(path, _)| path) }))
                        }
                        Err(MultiWriteError::OperationFailed { index, source }) => {
                            Ok(Ok(Reply::RolledBack { at: index, code: refusal(source)? }))
                        }
                        Err(MultiWriteError::RequestFailed { source }) => answer(Err(source)),
                    },
                }
            })
        }
    }
}

/// Some servers tell nothing of what a transaction made but its path.
fn made(step: MultiWriteResult) -> Option<(String, Option<Stat>)> {
    match step {
        MultiWriteResult::Create { path, stat } => Some((path, (!stat.is_invalid()).then(|| stat_of(&stat)))),
        _ => None,
    }
}

fn mode(node: Node) -> CreateMode {
    match node {
        Node::Persistent => CreateMode::Persistent,
        Node::Ephemeral => CreateMode::Ephemeral,
        Node::Contender => CreateMode::EphemeralSequential,
        Node::Container => CreateMode::Container,
    }
}

fn stat_of(stat: &zookeeper_client::Stat) -> Stat {
    Stat {
        czxid: stat.czxid,
        ctime: stat.ctime,
        mtime: stat.mtime,
        mzxid: stat.mzxid,
        version: stat.version,
        session: stat.ephemeral_owner,
        children: stat.num_children,
    }
}

/// A refusal is an answer; all else says something of the session or of the way to the server.
fn answer(outcome: Result<Reply, zookeeper_client::Error>) -> Asked<Answer> {
    match outcome {
        Ok(reply) => Ok(Ok(reply)),
        Err(error) => refusal(error).map(Err),
    }
}

fn refusal(error: zookeeper_client::Error) -> Asked<Code> {
    use zookeeper_client::Error as Failure;
    Ok(match error {
        Failure::NoNode => Code::NoNode,
        Failure::NodeExists => Code::NodeExists,
        Failure::NotEmpty => Code::NotEmpty,
        Failure::BadVersion => Code::BadVersion,
        Failure::NoAuth => Code::NoAuth,
        Failure::InvalidAcl => Code::InvalidAcl,
        Failure::Unimplemented => Code::Unimplemented,
        Failure::QuotaExceeded => Code::QuotaExceeded,
        Failure::Throttled => Code::Throttled,
        Failure::SessionMoved => Code::SessionMoved,
        Failure::SessionExpired => return Err(Fault::Expired),
        Failure::AuthFailed => return Err(failure::login_refused().into()),
        Failure::BadArguments(why) => return Err(Error::new(Kind::Internal, format!("a request was malformed: {why}")).into()),
        Failure::NoChildrenForEphemerals => Code::NoChildren,
        error @ (Failure::NotReadOnly | Failure::UnexpectedErrorCode(_)) => Code::Other(error.to_string()),
        error => return Err(failure::broken(error).into()),
    })
}
