//! Asking a cluster: which member, logging in, and the few kinds of question.
//!
//! A question goes to one member and is answered once. It goes to another one only if the first did nothing about it
//! (nobody there, no leader, a learner), each at most once, and is asked again after a new login at most once. Nor is a member waited
//! for that has said nothing since it was connected to, if the question is one that can be asked of two.

use prost::Message;
use tokio::{sync::mpsc, task::JoinSet};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{
    Request, Status, Streaming,
    codegen::http::uri::PathAndQuery,
    metadata::{Ascii, MetadataValue},
};
use tonic_prost::ProstCodec;

use super::{
    connection::{Connection, silence},
    failure::{self, Trouble},
    messages::{
        AuthenticateRequest, AuthenticateResponse, LeaseGrantRequest, LeaseGrantResponse, LeaseKeepAliveResponse, LeaseRequest,
        LeaseRevokeResponse, LeaseTimeToLiveResponse, TxnRequest, TxnResponse, WatchRequest, WatchResponse,
    },
    options::Options,
    queue::Before,
};
use crate::lock::{Effect, Error, Kind, Result};

/// What a question comes to.
pub(super) type Answer<T> = std::result::Result<T, Trouble>;

/// A cluster and the connection to one of its members.
pub(super) struct Client {
    options: Options,
    /// The member that is asked next.
    at: usize,
    connection: Option<Connection>,
    login: Option<MetadataValue<Ascii>>,
    /// A question was asked and not answered: if that is still so at the next one, it was dropped, and the member may
    /// be frozen or cut off.
    under_way: bool,
}

impl Client {
    /// Without I/O.
    pub(super) fn new(options: Options) -> Self {
        // So that not all processes ask the same member.
        let members = options.endpoints.len().max(1);
        let at = usize::try_from(crate::lock::random() % members as u64).unwrap_or_default();
        Self { options, at, connection: None, login: None, under_way: false }
    }

    pub(super) fn options(&self) -> &Options {
        &self.options
    }

    /// Gives this member up for the next one.
    fn move_on(&mut self) {
        self.connection = None;
        self.at = (self.at + 1) % self.options.endpoints.len().max(1);
    }

    /// Connects, if need be, to the first member from here on with which that works, and logs in.
    async fn open(&mut self) -> Answer<()> {
        if std::mem::replace(&mut self.under_way, true) {
            self.move_on();
        }
        if self.connection.as_ref().is_some_and(|connection| !connection.is_open()) {
            self.connection = None;
        }
        if self.connection.is_none() {
            self.connection = Some(self.connect().await?);
        }
        if self.login.is_none()
            && let Some(user) = self.options.user.clone()
        {
            self.log_in(user).await?;
        }
        Ok(())
    }

    async fn log_in(&mut self, name: String) -> Answer<()> {
        let password = self.options.password.clone().ok_or_else(|| {
            Error::new(Kind::Config, "there is a user but no password")
                .hint("give it in DLOCK_PASSWORD, with --password-file, or as password_file in the configuration")
        })?;
        let question = AuthenticateRequest { name, password: password.reveal().into() };
        let mut others = self.others();
        let answer: AuthenticateResponse = loop {
            match self.exchange("/etcdserverpb.Auth/Authenticate", question.clone(), Style::Unary, others > 0).await {
                Ok(answer) => break answer,
                Err(Unanswered::Silent) => {
                    others -= 1;
                    self.move_on();
                    self.connection = Some(self.connect().await?);
                }
                Err(Unanswered::Said(status)) => return Err(not_yet(self.explain(failure::of(status)).await)),
            }
        };
        self.login = Some(answer.token.parse().map_err(|_| failure::unreadable())?);
        Ok(())
    }

    /// How many members there are besides the one that is asked.
    pub(super) fn others(&self) -> usize {
        self.options.endpoints.len().saturating_sub(1)
    }

    async fn connect(&mut self) -> Result<Connection> {
        let mut failed = None;
        for others in (0..self.options.endpoints.len()).rev() {
            let endpoint = &self.options.endpoints[self.at];
            let opened = tokio::select! {
                opened = Connection::open(&self.options, endpoint) => Some(opened),
                () = silence(), if others > 0 => None,
            };
            match opened {
                Some(Ok(connection)) => return Ok(connection),
                Some(Err(error)) if error.is_transient() => failed = Some(error),
                Some(Err(error)) => return Err(error),
                None => {}
            }
            self.move_on();
        }
        Err(failed.unwrap_or_else(|| Error::new(Kind::Config, "there is no member to connect to")))
    }

    /// A request with what every member wants to be told.
    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        // Without it a member that is cut off from the others lets its callers wait.
        request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
        if let Some(login) = &self.login {
            request.metadata_mut().insert("token", login.clone());
        }
        request
    }

    /// Sends one question. With `or_leave`, a member that says nothing at all is not waited for; only for questions that can be
    /// asked of two members.
    async fn exchange<Q, A>(&mut self, path: &'static str, question: Q, style: Style, or_leave: bool) -> std::result::Result<A, Unanswered>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let path = PathAndQuery::from_static(path);
        let request = self.request(question);
        let Some(connection) = &mut self.connection else { return Err(Status::unavailable("not connected").into()) };
        let silent = connection.silent();
        let asked = async {
            match style {
                Style::Unary => Ok(connection.grpc.unary(request, path, ProstCodec::<Q, A>::default()).await?.into_inner()),
                Style::OneOfStream => {
                    // The requests end when the answer has come, or is not waited for any more: `etcd grpc-proxy` answers nothing
                    // after their end, and until it shares what it asks the cluster with the next one that asks.
                    let (open, requests) = mpsc::unbounded_channel();
                    // The receiver is at hand.
                    let request = request.map(|message| {
                        let _ = open.send(message);
                        UnboundedReceiverStream::new(requests)
                    });
                    let mut answers = connection.grpc.streaming(request, path, ProstCodec::<Q, A>::default()).await?.into_inner();
                    answers.message().await?.ok_or_else(|| Status::unavailable("no answer"))
                }
            }
        };
        tokio::select! {
            biased;
            answer = asked => answer.map_err(Unanswered::Said),
            () = silent, if or_leave => Err(Unanswered::Silent),
        }
    }

    fn greet(&mut self) {
        if let Some(connection) = &mut self.connection {
            connection.greeted = true;
        }
    }

    /// Says more of a connection that ended before anything came over it.
    async fn explain(&mut self, trouble: Trouble) -> Trouble {
        let greeted = self.connection.as_ref().is_none_or(|connection| connection.greeted);
        if greeted || !matches!(trouble, Trouble::Broken(_) | Trouble::Elsewhere(_)) {
            return trouble;
        }
        match Connection::why_ended(&self.options, &self.options.endpoints[self.at]).await {
            Some(error) => Trouble::Refused(error),
            None => failure::never_spoke(trouble, self.options.tls.is_some()),
        }
    }

    pub(super) async fn ask<Q, A>(&mut self, path: &'static str, question: Q, style: Style) -> Answer<A>
    where
        Q: Message + Clone + 'static,
        A: Message + Default + 'static,
    {
        let answer = self.try_ask(path, question, style).await;
        self.under_way = false;
        answer
    }

    async fn try_ask<Q, A>(&mut self, path: &'static str, question: Q, style: Style) -> Answer<A>
    where
        Q: Message + Clone + 'static,
        A: Message + Default + 'static,
    {
        let mut others = self.others();
        let mut may_log_in = self.login.is_some();
        // A transaction that a slow member carries out late is not what a second one answers.
        let repeatable = path != TXN;
        loop {
            self.open().await?;
            let status = match self.exchange(path, question.clone(), style, repeatable && others > 0).await {
                Ok(answer) => {
                    self.greet();
                    return Ok(answer);
                }
                Err(Unanswered::Said(status)) => status,
                Err(Unanswered::Silent) => {
                    others -= 1;
                    self.under_way = false;
                    self.move_on();
                    continue;
                }
            };
            match self.explain(failure::of(status)).await {
                Trouble::LoginOver(_) if may_log_in => {
                    may_log_in = false;
                    self.login = None;
                    self.under_way = false;
                }
                Trouble::Elsewhere(_) if others > 0 => {
                    others -= 1;
                    self.under_way = false;
                    self.move_on();
                }
                trouble => {
                    if matches!(trouble, Trouble::Elsewhere(_) | Trouble::Broken(_)) {
                        self.move_on();
                    }
                    return Err(trouble);
                }
            }
        }
    }

    /// Several questions of a kind that can be asked of two members, all under way at once. Where the member did nothing about one,
    /// that is asked again by itself.
    async fn ask_all<Q, A>(&mut self, path: &'static str, questions: Vec<Q>) -> Vec<Answer<A>>
    where
        Q: Message + Clone + 'static,
        A: Message + Default + 'static,
    {
        let mut answered: Vec<Option<Answer<A>>> = questions.iter().map(|_| None).collect();
        if questions.len() > 1
            && self.open().await.is_ok()
            && let Some(connection) = &self.connection
        {
            let mut under_way = JoinSet::new();
            for (nth, question) in questions.iter().cloned().enumerate() {
                let (mut grpc, request) = (connection.grpc.clone(), self.request(question));
                under_way
                    .spawn(async move { (nth, grpc.unary(request, PathAndQuery::from_static(path), ProstCodec::<Q, A>::default()).await) });
            }
            let (mut broken, others) = (false, self.others());
            let silent = connection.silent();
            tokio::pin!(silent);
            loop {
                let asked = tokio::select! {
                    biased;
                    asked = under_way.join_next() => asked,
                    () = &mut silent, if others > 0 => {
                        broken = true;
                        break;
                    }
                };
                let Some(Ok((nth, answer))) = asked else { break };
                answered[nth] = match answer {
                    Ok(answer) => {
                        self.greet();
                        Some(Ok(answer.into_inner()))
                    }
                    Err(status) => match failure::of(status) {
                        Trouble::Elsewhere(_) | Trouble::LoginOver(_) => None,
                        trouble => {
                            broken |= matches!(trouble, Trouble::Broken(_));
                            Some(Err(self.explain(trouble).await))
                        }
                    },
                };
            }
            if broken {
                self.move_on();
            }
            self.under_way = false;
        }
        let mut answers = Vec::new();
        for (question, answer) in questions.into_iter().zip(answered) {
            answers.push(match answer {
                Some(answer) => answer,
                None => self.ask(path, question, Style::Unary).await,
            });
        }
        answers
    }

    pub(super) async fn txn(&mut self, txn: TxnRequest) -> Answer<TxnResponse> {
        self.ask(TXN, txn, Style::Unary).await
    }

    /// Grants a lease with an id of our choice; returns its length in seconds, which the server may have made longer.
    pub(super) async fn grant(&mut self, id: i64, ttl: i64) -> Answer<i64> {
        let answer: LeaseGrantResponse = self.ask("/etcdserverpb.Lease/LeaseGrant", LeaseGrantRequest { ttl, id }, Style::Unary).await?;
        Ok(answer.ttl)
    }

    /// Grants several, all at once; one that was there already is an error.
    pub(super) async fn grant_all(&mut self, wanted: &[(i64, i64)]) -> Vec<Answer<i64>> {
        let questions = wanted.iter().map(|(id, ttl)| LeaseGrantRequest { ttl: *ttl, id: *id }).collect();
        let answers = self.ask_all("/etcdserverpb.Lease/LeaseGrant", questions).await;
        answers.into_iter().map(|answer| answer.map(|answer: LeaseGrantResponse| answer.ttl)).collect()
    }

    /// Ends several, all at once, that would end by themselves too.
    pub(super) async fn revoke_all(&mut self, ids: &[i64]) {
        let questions = ids.iter().map(|id| LeaseRequest { id: *id }).collect();
        let _: Vec<Answer<LeaseRevokeResponse>> = self.ask_all(REVOKE, questions).await;
    }

    /// Ends a lease that would end by itself too, while others are asked.
    pub(super) fn revoke_meanwhile(&self, id: i64) {
        let Some(connection) = &self.connection else { return };
        let (mut grpc, request) = (connection.grpc.clone(), self.request(LeaseRequest { id }));
        tokio::spawn(async move {
            let codec = ProstCodec::<LeaseRequest, LeaseRevokeResponse>::default();
            drop(grpc.unary(request, PathAndQuery::from_static(REVOKE), codec).await);
        });
    }

    /// Ends a lease and removes its keys; that there is none is as good.
    pub(super) async fn revoke(&mut self, id: i64) -> Answer<()> {
        let answer: Answer<LeaseRevokeResponse> = self.ask(REVOKE, LeaseRequest { id }, Style::Unary).await;
        match answer {
            Ok(_) | Err(Trouble::NoLease) => Ok(()),
            Err(trouble) => Err(trouble),
        }
    }

    /// Extends a lease by its own length in seconds, which it returns; `None` if there is no such lease.
    ///
    /// One message, one answer: a stream kept open would hang unnoticed when its member does.
    pub(super) async fn keep_alive(&mut self, id: i64) -> Answer<Option<i64>> {
        let answer: Answer<LeaseKeepAliveResponse> =
            self.ask("/etcdserverpb.Lease/LeaseKeepAlive", LeaseRequest { id }, Style::OneOfStream).await;
        match answer {
            Ok(answer) => Ok(Some(answer.ttl).filter(|ttl| *ttl > 0)),
            Err(Trouble::NoLease) => Ok(None),
            Err(trouble) => Err(trouble),
        }
    }

    pub(super) async fn time_to_live(&mut self, id: i64) -> Answer<LeaseTimeToLiveResponse> {
        self.ask("/etcdserverpb.Lease/LeaseTimeToLive", LeaseRequest { id }, Style::Unary).await
    }

    /// Opens a stream of watches, of which `first` is one. It ends with the connection.
    pub(super) async fn watch(&mut self, first: Vec<WatchRequest>) -> Answer<Watches> {
        self.open().await?;
        self.under_way = false;
        let (wanted, receiver) = mpsc::unbounded_channel();
        for request in first {
            // The receiver is at hand.
            let _ = wanted.send(request);
        }
        let request = self.request(UnboundedReceiverStream::new(receiver));
        let Some(connection) = &mut self.connection else { return Err(failure::unreadable().into()) };
        let path = PathAndQuery::from_static("/etcdserverpb.Watch/Watch");
        let opened = connection.grpc.streaming(request, path, ProstCodec::<WatchRequest, WatchResponse>::default()).await;
        match opened {
            Ok(answers) => Ok(Watches { wanted, answers: answers.into_inner(), before: Before::default() }),
            Err(status) => {
                let trouble = failure::of(status);
                match trouble {
                    Trouble::LoginOver(_) => self.login = None,
                    _ => self.move_on(),
                }
                Err(trouble)
            }
        }
    }
}

/// A stream of watches.
pub(super) struct Watches {
    pub wanted: mpsc::UnboundedSender<WatchRequest>,
    pub answers: Streaming<WatchResponse>,
    /// What is waited for, which is among what is watched.
    pub before: Before,
}

const TXN: &str = "/etcdserverpb.KV/Txn";
const REVOKE: &str = "/etcdserverpb.Lease/LeaseRevoke";

/// Why there is no answer.
enum Unanswered {
    Said(Status),
    /// The member has sent nothing since it was connected to: it may be frozen or cut off.
    Silent,
}

impl From<Status> for Unanswered {
    fn from(status: Status) -> Self {
        Self::Said(status)
    }
}

/// How a question crosses the network.
#[derive(Clone, Copy)]
pub(super) enum Style {
    Unary,
    /// The one message of a stream, and the first of its answers.
    OneOfStream,
}

/// Logging in comes before the question.
fn not_yet(trouble: Trouble) -> Trouble {
    let plain = |error: Error| error.effect(Effect::NotApplied);
    match trouble {
        // Whose login it is that is over then, nobody knows.
        Trouble::LoginOver(error) | Trouble::Refused(error) => Trouble::Refused(plain(error)),
        Trouble::Broken(error) | Trouble::Elsewhere(error) => Trouble::Broken(plain(error)),
        other => other,
    }
}
