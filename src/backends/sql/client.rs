//! One client of a SQL server, and the operator's view of that server.

use std::{io, os::fd::OwnedFd, time::Duration};

use async_trait::async_trait;

use super::{Names, SqlMode, SqlOptions, SqlServer};
use crate::{
    backends::net,
    lock::{
        Admin, Capabilities, Error, Finding, Identity, Init, Notice, Origin, Progress, Result,
        ServerTime,
    },
};

/// A session of a SQL server.
pub(in crate::backends) trait Session {
    /// The identity of a session, which its server gives to no other one.
    type Id: Clone + PartialEq;

    fn id(&self) -> Self::Id;

    /// Ends another session of this process, and waits until it is over. Does nothing if that is
    /// not proven to be this process's session.
    async fn end_other(&mut self, other: &Self::Id) -> Result<()>;

    /// Whether the session is open and no request is under way, as far as this process knows.
    fn is_open(&self) -> bool;

    /// As [`Session::is_open`], but the answer to a dropped request may still come.
    fn is_alive(&self) -> bool;

    /// Returns a duplicate of the socket.
    fn lifeline(&self) -> io::Result<OwnedFd>;

    /// Ready when the server ends the session. Never ready if the socket can't be watched.
    async fn ended(&self);
}

/// A kind of SQL server.
pub(in crate::backends) trait SqlDatabase: 'static {
    type Options;
    type Tables;
    type Session: Session;
    /// What `mode=lease`, `mode=row` and `mode=advisory` can do.
    const CAPABILITIES: [&'static Capabilities; 3];

    fn sql(options: &Self::Options) -> &SqlOptions;
    fn tables(options: &SqlOptions) -> Self::Tables;
    /// Returns the URL without user and password.
    fn url(options: &SqlOptions) -> String;

    /// Opens a session, and returns what the client noticed about the server.
    async fn open(options: &Self::Options) -> Result<(Self::Session, Vec<Notice>)>;

    /// See [`Admin::init`].
    async fn init(
        session: &mut Self::Session,
        tables: &Self::Tables,
        mode: SqlMode,
    ) -> Result<(Init, Vec<Notice>)>;

    /// Removes rows that were last used so long ago, and waiters that are gone.
    ///
    /// A row that is taken again is created anew, with a fence of the server's time in µs. A row is
    /// removed only if its fence is less than the time in µs of its last use: a fence repeats only
    /// if a clock is set back by all of `unused_for`.
    async fn collect(
        session: &mut Self::Session,
        tables: &Self::Tables,
        options: &SqlOptions,
        unused_for: Duration,
    ) -> Result<u64>;

    /// See [`Admin::examine`].
    async fn examine(options: &Self::Options, tables: &Self::Tables) -> Result<Vec<Finding>>;

    /// Returns the server's time in µs since 1970.
    async fn time_us(session: &mut Self::Session) -> Result<i64>;
}

/// One client: it has at most one session that keeps no lock, opened by the first call that needs
/// it.
///
/// A dropped or failed call loses the session, and the next call opens another.
pub(in crate::backends) struct Client<D: SqlDatabase> {
    pub options: D::Options,
    pub tables: D::Tables,
    pub names: Names,
    pub session: Option<D::Session>,
    pub notices: Vec<Notice>,
    /// Sessions that were left without an answer: the server may still have them, with a lock. No
    /// command runs under them.
    abandoned: Vec<<D::Session as Session>::Id>,
}

impl<D: SqlDatabase> Client<D> {
    /// Returns a client without I/O.
    pub fn new(options: D::Options) -> Self {
        let sql = D::sql(&options);
        let (tables, names) = (D::tables(sql), Names::new(&sql.namespace));
        Self {
            options,
            tables,
            names,
            session: None,
            notices: Vec::new(),
            abandoned: Vec::new(),
        }
    }

    pub fn mode(&self) -> SqlMode {
        D::sql(&self.options).mode
    }

    pub fn capabilities(&self) -> &'static Capabilities {
        D::CAPABILITIES[self.mode() as usize]
    }

    pub fn identity(&self) -> Identity {
        let sql = D::sql(&self.options);
        let url = D::url(sql);
        Identity::new(
            self.capabilities(),
            url.clone(),
            &[&url, &sql.table, sql.namespace.as_str()],
        )
    }

    /// Takes the session out. The caller puts it back once no request is under way.
    pub async fn take(&mut self) -> Result<D::Session> {
        match self.session.take().filter(Session::is_open) {
            Some(session) => Ok(session),
            None => self.open().await,
        }
    }

    /// As [`Client::take`]; a session that is not put back counts as abandoned.
    pub async fn lend(&mut self) -> Result<D::Session> {
        let session = self.take().await?;
        self.abandon_unless_kept(&session);
        Ok(session)
    }

    /// Opens the session, and asks over it: a pooler lends a session of the server only then.
    pub async fn connect(&mut self) -> Result<()> {
        let mut session = self.take().await?;
        let answer = D::time_us(&mut session).await;
        self.put_back(session, &answer);
        answer.map(|_| ())
    }

    /// Puts the session back after a question, unless the answer says that the next one needs
    /// another connection.
    pub fn put_back<T>(&mut self, session: D::Session, answer: &Result<T>) {
        if session.is_open() {
            self.is_kept(&session);
        }
        match answer {
            Err(error) if error.ends_connection() => self.left(error),
            _ => self.session = Some(session),
        }
    }

    /// Leaves a session that is not answering, and notes it for [`Client::end_abandoned`].
    pub fn abandon(&mut self, session: D::Session) {
        self.abandon_unless_kept(&session);
        drop(session);
    }

    /// Notes a session as abandoned before it is asked, in case the call is dropped.
    /// [`Client::is_kept`] takes the note back.
    pub fn abandon_unless_kept(&mut self, session: &D::Session) {
        self.abandoned.push(session.id());
    }

    /// Leaves the client's own session, if there is one.
    pub fn abandon_own(&mut self) {
        if let Some(session) = self.session.take() {
            self.abandon(session);
        }
    }

    /// As [`Client::abandon`], for a session that was dropped.
    pub fn abandon_id(&mut self, session: <D::Session as Session>::Id) {
        self.abandoned.push(session);
    }

    /// Notes that a session answered.
    pub fn is_kept(&mut self, session: &D::Session) {
        let id = session.id();
        self.abandoned.retain(|abandoned| *abandoned != id);
    }

    /// Ends the abandoned sessions over the client's own session.
    pub async fn end_abandoned(&mut self) -> Result<()> {
        if self.abandoned.is_empty() {
            return Ok(());
        }
        let mut session = self.lend().await?;
        let ended = self.end_abandoned_over(&mut session).await;
        self.put_back(session, &ended);
        ended
    }

    /// Ends the abandoned sessions over this one. A dropped call can be repeated.
    pub async fn end_abandoned_over(&mut self, session: &mut D::Session) -> Result<()> {
        let own = session.id();
        while let Some(other) = self.abandoned.iter().find(|other| **other != own).cloned() {
            match session.end_other(&other).await {
                Err(error) if error.is_transient() => return Err(error),
                // A session that the server does not let this user end ends by itself.
                _ => self.abandoned.retain(|abandoned| *abandoned != other),
            }
        }
        Ok(())
    }

    /// Notes that a session was left after this error: another address of the server's name may
    /// lead to the right server.
    pub fn left(&self, error: &Error) {
        if let (Origin::WrongServer, SqlServer::Tcp { host, port }) =
            (error.origin, &D::sql(&self.options).server)
        {
            net::leave(host, *port);
        }
    }

    /// Opens another session.
    pub async fn open(&mut self) -> Result<D::Session> {
        let (session, notices) = D::open(&self.options)
            .await
            .inspect_err(|error| self.left(error))?;
        if !notices.is_empty() {
            self.notices = notices;
        }
        Ok(session)
    }
}

/// A backend with a [`Client`], whose [`Admin`] follows from the client.
pub(in crate::backends) trait HasClient {
    type Database: SqlDatabase;

    fn client(&self) -> &Client<Self::Database>;

    fn client_mut(&mut self) -> &mut Client<Self::Database>;
}

#[async_trait(?Send)]
impl<T: HasClient> Admin for T {
    async fn init(&mut self) -> Result<Init> {
        let client = self.client_mut();
        let mut session = client.take().await?;
        let (done, notices) =
            T::Database::init(&mut session, &client.tables, client.mode()).await?;
        client.notices.extend(notices);
        client.session = Some(session);
        Ok(done)
    }

    // One statement, whose answer has one part.
    async fn collect(&mut self, unused_for: Duration, _: &Progress) -> Result<Option<u64>> {
        let client = self.client_mut();
        if client.mode() != SqlMode::Lease {
            return Ok(None);
        }
        let mut session = client.take().await?;
        let removed = T::Database::collect(
            &mut session,
            &client.tables,
            T::Database::sql(&client.options),
            unused_for,
        )
        .await?;
        client.session = Some(session);
        Ok(Some(removed))
    }

    async fn examine(&mut self) -> Result<Vec<Finding>> {
        T::Database::examine(&self.client().options, &self.client().tables).await
    }

    async fn clocks(&mut self) -> Result<Vec<ServerTime>> {
        let client = self.client_mut();
        let mut session = client.take().await?;
        let time = T::Database::time_us(&mut session).await;
        client.session = Some(session);
        Ok(vec![ServerTime {
            server: "the server".into(),
            since_epoch: super::micros(time?),
        }])
    }
}
