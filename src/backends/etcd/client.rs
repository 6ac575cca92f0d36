//! Sends requests to a cluster: chooses a member, logs in, and provides the few kinds of request.
//!
//! A request goes to one member and is answered once. It goes to another member only if the first
//! did nothing about it (no process there, no leader, a learner), each at most once. After a new
//! login it is repeated at most once. A member that has sent nothing since the connection began is
//! not waited for, if the request may be sent to two members.

use prost::Message;
use tokio::{sync::mpsc, task::JoinSet};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{
    Request, Status,
    codegen::http::uri::PathAndQuery,
    metadata::{Ascii, MetadataValue},
};
use tonic_prost::ProstCodec;

use super::{
    connection::{EtcdConnection, silence},
    failure::{self, Trouble},
    messages::{AuthenticateRequest, AuthenticateResponse},
    options::EtcdOptions,
};
use crate::{
    backends::net,
    lock::{Effect, Error, Kind, Result},
};

/// The path of a transaction, which is not sent to a second member if the first one is silent.
pub(super) const TXN: &str = "/etcdserverpb.KV/Txn";

/// The outcome of a request.
pub(super) type EtcdResult<T> = std::result::Result<T, Trouble>;

/// A cluster and the connection to one of its members.
pub(super) struct EtcdClient {
    options: EtcdOptions,
    /// The member for the next request.
    at: usize,
    pub(super) connection: Option<EtcdConnection>,
    pub(super) login: Option<MetadataValue<Ascii>>,
    /// Whether a request is without an answer. If it still is at the next request, it was dropped,
    /// and the member may be frozen or cut off.
    pub(super) under_way: bool,
}

impl EtcdClient {
    /// Creates a client, without I/O.
    pub(super) fn new(options: EtcdOptions) -> Self {
        // A random member, so that not all processes use the same one.
        let members = options.endpoints.len().max(1);
        let at = usize::try_from(crate::lock::random() % members as u64).unwrap_or_default();
        Self {
            options,
            at,
            connection: None,
            login: None,
            under_way: false,
        }
    }

    pub(super) fn options(&self) -> &EtcdOptions {
        &self.options
    }

    /// Changes to the next member, or to another address of the only one.
    pub(super) fn next_member(&mut self) {
        self.connection = None;
        if let Some((host, port)) = self.options.endpoints.get(self.at) {
            net::leave(host, *port);
        }
        self.at = (self.at + 1) % self.options.endpoints.len().max(1);
    }

    /// Connects, if need be, to the first member from the current one on that accepts a connection,
    /// and logs in.
    pub(super) async fn open(&mut self) -> EtcdResult<()> {
        if std::mem::replace(&mut self.under_way, true) {
            self.next_member();
        }
        if self
            .connection
            .as_ref()
            .is_some_and(|connection| !connection.is_open())
        {
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

    async fn log_in(&mut self, name: String) -> EtcdResult<()> {
        let password = self.options.password.clone().ok_or_else(|| {
            Error::new(Kind::Config, "there is a user but no password")
                .hint("give it in DLOCK_PASSWORD, with --password-file, or as password_file in the configuration")
        })?;
        let question = AuthenticateRequest {
            name,
            password: password.reveal().await?,
        };
        let mut others = self.others();
        let answer: AuthenticateResponse = loop {
            match self
                .exchange(
                    "/etcdserverpb.Auth/Authenticate",
                    question.clone(),
                    Style::Unary,
                    others > 0,
                )
                .await
            {
                Ok(answer) => break answer,
                Err(NoAnswer::Silent) => {
                    others -= 1;
                    self.next_member();
                    self.connection = Some(self.connect().await?);
                }
                Err(NoAnswer::Failed(status)) => {
                    return Err(not_yet(self.explain(failure::of(status)).await));
                }
            }
        };
        self.login = Some(answer.token.parse().map_err(|_| failure::unreadable())?);
        Ok(())
    }

    /// Returns how many members there are besides the current one.
    pub(super) fn others(&self) -> usize {
        self.options.endpoints.len().saturating_sub(1)
    }

    async fn connect(&mut self) -> Result<EtcdConnection> {
        let mut failed = None;
        for others in (0..self.options.endpoints.len()).rev() {
            let endpoint = &self.options.endpoints[self.at];
            let opened = tokio::select! {
                opened = EtcdConnection::open(&self.options, endpoint) => Some(opened),
                () = silence(), if others > 0 => None,
            };
            match opened {
                Some(Ok(connection)) => return Ok(connection),
                Some(Err(error)) if error.is_transient() => failed = Some(error),
                Some(Err(error)) => return Err(error),
                None => {}
            }
            self.next_member();
        }
        Err(failed.unwrap_or_else(|| Error::new(Kind::Config, "there is no member to connect to")))
    }

    /// Returns a request with the metadata that every member needs.
    pub(super) fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        // Without this header, a member that is cut off from the others lets its clients wait.
        request
            .metadata_mut()
            .insert("hasleader", MetadataValue::from_static("true"));
        if let Some(login) = &self.login {
            request.metadata_mut().insert("token", login.clone());
        }
        request
    }

    /// Sends one request. With `or_leave`, a member that sends nothing at all is not waited for.
    /// This requires a request that may be sent to two members.
    async fn exchange<Q, A>(
        &mut self,
        path: &'static str,
        question: Q,
        style: Style,
        or_leave: bool,
    ) -> std::result::Result<A, NoAnswer>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let path = PathAndQuery::from_static(path);
        let request = self.request(question);
        let Some(connection) = &mut self.connection else {
            return Err(Status::unavailable("not connected").into());
        };
        let silent = connection.silent();
        let asked = async {
            match style {
                Style::Unary => Ok(connection
                    .grpc
                    .unary(request, path, ProstCodec::<Q, A>::default())
                    .await?
                    .into_inner()),
                Style::OneOfStream => {
                    // The request stream ends after the answer, or when the wait ends. `etcd
                    // grpc-proxy` answers nothing after that end, and until then the proxy shares
                    // its own request to the cluster with the next client.
                    let (open, requests) = mpsc::unbounded_channel();
                    // The receiver still exists.
                    let request = request.map(|message| {
                        let _ = open.send(message);
                        UnboundedReceiverStream::new(requests)
                    });
                    let mut answers = connection
                        .grpc
                        .streaming(request, path, ProstCodec::<Q, A>::default())
                        .await?
                        .into_inner();
                    answers
                        .message()
                        .await?
                        .ok_or_else(|| Status::unavailable("no answer"))
                }
            }
        };
        tokio::select! {
            biased;
            answer = asked => answer.map_err(NoAnswer::Failed),
            () = silent, if or_leave => Err(NoAnswer::Silent),
        }
    }

    fn greet(&mut self) {
        if let Some(connection) = &mut self.connection {
            connection.greeted = true;
        }
    }

    /// Explains a connection that ended before the member sent anything.
    async fn explain(&mut self, trouble: Trouble) -> Trouble {
        let greeted = self
            .connection
            .as_ref()
            .is_none_or(|connection| connection.greeted);
        if greeted || !matches!(trouble, Trouble::Broken(_) | Trouble::Elsewhere(_)) {
            return trouble;
        }
        match EtcdConnection::why_ended(&self.options, &self.options.endpoints[self.at]).await {
            Some(error) => Trouble::Refused(error),
            None => failure::never_spoke(trouble, self.options.tls.is_some()),
        }
    }

    pub(super) async fn ask<Q, A>(
        &mut self,
        path: &'static str,
        question: Q,
        style: Style,
    ) -> EtcdResult<A>
    where
        Q: Message + Clone + 'static,
        A: Message + Default + 'static,
    {
        let answer = self.try_ask(path, question, style).await;
        self.under_way = false;
        answer
    }

    async fn try_ask<Q, A>(
        &mut self,
        path: &'static str,
        question: Q,
        style: Style,
    ) -> EtcdResult<A>
    where
        Q: Message + Clone + 'static,
        A: Message + Default + 'static,
    {
        let mut others = self.others();
        let mut may_log_in = self.login.is_some();
        // A transaction that a slow member does late has another answer than the second one.
        let repeatable = path != TXN;
        loop {
            self.open().await?;
            let status = match self
                .exchange(path, question.clone(), style, repeatable && others > 0)
                .await
            {
                Ok(answer) => {
                    self.greet();
                    return Ok(answer);
                }
                Err(NoAnswer::Failed(status)) => status,
                Err(NoAnswer::Silent) => {
                    others -= 1;
                    self.under_way = false;
                    self.next_member();
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
                    self.next_member();
                }
                trouble => {
                    if matches!(trouble, Trouble::Elsewhere(_) | Trouble::Broken(_)) {
                        self.next_member();
                    }
                    return Err(trouble);
                }
            }
        }
    }

    /// Sends several requests at once, which must be of a kind that may be sent to two members. A
    /// request that the member did nothing about is sent again by itself.
    pub(super) async fn ask_all<Q, A>(
        &mut self,
        path: &'static str,
        questions: Vec<Q>,
    ) -> Vec<EtcdResult<A>>
    where
        Q: Message + Clone + 'static,
        A: Message + Default + 'static,
    {
        let mut answered: Vec<Option<EtcdResult<A>>> = questions.iter().map(|_| None).collect();
        if questions.len() > 1
            && self.open().await.is_ok()
            && let Some(connection) = &self.connection
        {
            let mut under_way = JoinSet::new();
            for (nth, question) in questions.iter().cloned().enumerate() {
                let (mut grpc, request) = (connection.grpc.clone(), self.request(question));
                under_way.spawn(async move {
                    (
                        nth,
                        grpc.unary(
                            request,
                            PathAndQuery::from_static(path),
                            ProstCodec::<Q, A>::default(),
                        )
                        .await,
                    )
                });
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
                let Some(Ok((nth, answer))) = asked else {
                    break;
                };
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
                self.next_member();
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
}

/// The reason for a missing answer.
enum NoAnswer {
    Failed(Status),
    /// The member has sent nothing since the connection began: it may be frozen or cut off.
    Silent,
}

impl From<Status> for NoAnswer {
    fn from(status: Status) -> Self {
        Self::Failed(status)
    }
}

/// How a request is transmitted.
#[derive(Clone, Copy)]
pub(super) enum Style {
    Unary,
    /// The request is the only message of a stream, and the first answer counts.
    OneOfStream,
}

/// Marks a trouble from before the request, at the login: the request was not applied.
fn not_yet(trouble: Trouble) -> Trouble {
    let plain = |error: Error| error.effect(Effect::NotApplied);
    match trouble {
        // At a login, the error does not tell which login is over.
        Trouble::LoginOver(error) | Trouble::Refused(error) => Trouble::Refused(plain(error)),
        Trouble::Broken(error) | Trouble::Elsewhere(error) => Trouble::Broken(plain(error)),
        other => other,
    }
}
