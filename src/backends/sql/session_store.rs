//! The steps of `mode=row` and `mode=advisory` in which databases differ.

use std::time::Duration;

use super::{
    SqlMode,
    client::{HasClient, Session as _, SqlDatabase},
    other_mode,
};
use crate::lock::{
    Amendment, Break, Denial, Fence, History, Holder, Intent, Key, LockState, Progress,
    ReleaseInfo, Renewal, Request, Result, RunRecord, Token, Ttl, Which,
};

/// A session that asks for a lock, waits for it or has it; `own` is the database's part of its
/// state.
///
/// The session sends nothing but renewals while it has the lock. So the server's timeout for idle
/// sessions, set to the TTL, ends it about when the lease of a vanished holder ends.
#[allow(clippy::struct_excessive_bools)] // independent facts
pub(in crate::backends) struct SessionLock<S, O> {
    pub session: S,
    pub mode: SqlMode,
    /// The lock's name in the tables.
    pub name: String,
    /// The session shares the lock with other readers.
    pub shared: bool,
    /// The session was seen to have the lock.
    pub has: bool,
    /// The silence after which the server ends the session.
    pub idle_limit: Duration,
    /// Attempts without an answer since the last answered one.
    pub unanswered: u32,
    /// The session blocks in the server, or was left blocking there.
    pub blocked: bool,
    /// The session waits far behind, without a second one.
    pub far: bool,
    /// How long the lock stays busy although no session has it: the server of its holder is gone.
    pub left_for: Option<Duration>,
    pub own: O,
}

impl<S, O> SessionLock<S, O> {
    pub fn new(session: S, mode: SqlMode, name: String, shared: bool, own: O) -> Self {
        let (idle_limit, unanswered) = (Duration::ZERO, 0);
        Self {
            session,
            mode,
            name,
            shared,
            has: false,
            idle_limit,
            unanswered,
            blocked: false,
            far: false,
            left_for: None,
            own,
        }
    }

    /// Whether the lock is a row that readers share.
    pub fn shares_row(&self) -> bool {
        self.shared && self.mode == SqlMode::Row
    }
}

/// A session of a store.
pub(in crate::backends) type SessionOf<S> = <<S as HasClient>::Database as SqlDatabase>::Session;

/// The session lock of a store.
pub(in crate::backends) type LockOf<S> = SessionLock<SessionOf<S>, <S as SessionStore>::Own>;

/// How a hold was over before it was given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::backends) enum Over {
    /// This process never had it.
    Unused,
    /// Its session ended by itself.
    Lost,
    /// Its session did not answer the release: dlock ends the session.
    Silent,
}

/// A hold that has begun.
pub(in crate::backends) struct Begun {
    pub fence: Fence,
    /// The server's time, in µs.
    pub now_us: i64,
    /// Holders that vanished may not have stopped yet: see the drain delay of
    /// [`Grant`](crate::lock::Grant).
    pub drains: bool,
}

/// The outcome for a lock that a session has.
pub(in crate::backends) enum Beginning {
    Begun(Begun),
    /// An earlier run denies this one.
    Denied(Box<Denial>),
    /// The server of an earlier hold is gone, and that hold's lease may not be over; or something
    /// changed meanwhile, and it is asked again.
    Left,
}

/// What a database tells about the locks that sessions keep. Read only.
pub(in crate::backends) trait SessionReads: HasClient {
    /// The statement for the names of locks that may be held, by their start, in order.
    const HELD_NAMES: &'static str;

    /// Returns the statement for the names of [`Backend::known`](crate::lock::Backend::known), by
    /// their start, in order.
    fn known_names(which: Which) -> String;

    /// Returns the names that such a statement finds.
    async fn names(&mut self, sql: &str, start: &str, progress: &Progress) -> Result<Vec<String>>;

    /// See [`Backend::inspect`](crate::lock::Backend::inspect).
    async fn look(&mut self, key: &Key) -> Result<LockState>;

    /// Whether any process holds the lock with this token: [`Intent::Probe`].
    async fn probe(&mut self, key: &Key, token: &Token) -> Result<Renewal>;

    /// See [`Backend::history`](crate::lock::Backend::history).
    async fn history(&mut self, key: &Key) -> Result<History>;
}

/// A database whose sessions keep locks: the steps in which databases differ.
pub(in crate::backends) trait SessionStore: SessionReads {
    /// The database's part of a [`SessionLock`].
    type Own;
    /// Whether [`SessionStore::count`] removes the request from the queue.
    const GRANT_LEAVES_QUEUE: bool;

    /// Opens a session that is to have this lock; `side` is another open session of this client.
    async fn open_lock(
        &mut self,
        request: &Request,
        side: Option<&mut SessionOf<Self>>,
    ) -> Result<LockOf<Self>>;

    /// Asks for the lock once. Returns true if the session has the lock, also on a repeated
    /// request.
    async fn attempt(&mut self, lock: &mut LockOf<Self>, request: &Request) -> Result<bool>;

    /// Counts the fence of a lock that the session has, and writes the records of the hold and its
    /// run. Returns `None`, with nothing changed, if a record of another hold or run may be in the
    /// way. With `judged`, these run records were judged at this time in ms.
    async fn count(
        &mut self,
        lock: &mut LockOf<Self>,
        request: &Request,
        judged: Option<(&RunRecord, u64)>,
    ) -> Result<Option<Begun>>;

    /// Claims the lock for this mode if no other mode keeps it. Returns the mode that keeps it, and
    /// whether the server of an earlier hold is gone and that hold's lease may not be over.
    async fn claim(
        &mut self,
        lock: &mut LockOf<Self>,
        request: &Request,
    ) -> Result<(Option<String>, bool)>;

    /// Returns the lock's run records, and the server's time in ms; `None` if the lock had no run.
    async fn run_record(&mut self, lock: &mut LockOf<Self>) -> Result<Option<(RunRecord, u64)>>;

    /// Gives back whatever the session has.
    async fn let_go(lock: &mut LockOf<Self>) -> Result<()>;

    /// Puts a waiting request into the queue, and returns the lock's holders and the request's
    /// position.
    async fn look_and_queue(
        &mut self,
        lock: &mut LockOf<Self>,
        request: &Request,
    ) -> Result<(Vec<Holder>, Option<u32>)>;

    /// Waits in the server for the lock, at most for the given time. Returns true if the session
    /// may have the lock then.
    async fn wait(lock: &mut LockOf<Self>, ttl: Ttl, at_most: Duration) -> Result<bool>;

    /// Takes a waiter out of the queue, and gives back the lock if its session got the lock
    /// meanwhile.
    async fn leave(&mut self, tries: &mut Tries<LockOf<Self>>, request: &Request) -> Result<()>;

    /// Extends a hold: returns the server's time in µs, or `None` if the hold is over. With
    /// [`Intent::Extend`] it also returns the mark of a break. [`Intent::Drain`] records that the
    /// holder knows the mark.
    async fn renew(
        &mut self,
        lock: &mut LockOf<Self>,
        hold: (&Token, Fence),
        length: Ttl,
        intent: Option<Intent>,
    ) -> Result<Option<(i64, Option<Break>)>>;

    /// Sets another [`SessionLock::idle_limit`]. Returns false if the hold is over.
    async fn change_idle_limit(
        &mut self,
        lock: &mut LockOf<Self>,
        hold: (&Token, Fence),
        limit: Duration,
    ) -> Result<bool>;

    /// Withdraws a request that was not granted as far as this process knows. Returns true if
    /// nothing is left of the request. Abandons the session if that does not answer.
    async fn withdraw(
        &mut self,
        tries: &mut Tries<LockOf<Self>>,
        key: &Key,
        token: &Token,
        info: &ReleaseInfo,
    ) -> bool;

    /// Removes the records of a hold whose session is over. A failure leaves the records, so that
    /// the next holder waits.
    async fn forget(&mut self, key: &Key, token: &Token, info: &ReleaseInfo, over: Over);

    /// Records how the hold ended, and gives the lock back. Returns false if the lock was lost
    /// before.
    async fn give_back(
        &mut self,
        lock: &mut LockOf<Self>,
        hold: (&Token, Fence),
        info: &ReleaseInfo,
    ) -> Result<bool>;

    /// Puts away the session of a released hold, which may still be in the queue.
    async fn put_away(&mut self, lock: LockOf<Self>, token: &Token, queued: bool);

    /// See [`Backend::amend`](crate::lock::Backend::amend).
    async fn amend(&mut self, key: &Key, change: Amendment<'_>) -> Result<bool>;

    /// Begins the hold of a lock that the session has. The holder alone reads and writes the lock's
    /// run records.
    ///
    /// # Errors
    /// Also if the lock is kept in another mode, which does not exclude this one.
    async fn begin(&mut self, lock: &mut LockOf<Self>, request: &Request) -> Result<Beginning> {
        if let Some(begun) = self.count(lock, request, None).await? {
            return Ok(Beginning::Begun(begun));
        }
        match self.claim(lock, request).await? {
            (Some(mode), _) if mode != lock.mode.name() => return Err(other_mode(&mode)),
            (_, true) => return Ok(Beginning::Left),
            _ => {}
        }
        let judged = self.run_record(lock).await?;
        let judged = judged.as_ref().map(|(record, now_ms)| (record, *now_ms));
        if let Some(denial) = judged.and_then(|(record, now_ms)| {
            record.judge(request.run_policy.as_ref(), &request.token, now_ms)
        }) {
            return Ok(Beginning::Denied(Box::new(denial)));
        }
        Ok(self
            .count(lock, request, judged)
            .await?
            .map_or(Beginning::Left, Beginning::Begun))
    }

    /// Takes out the session that asks for this request, if it may still answer. Otherwise it is
    /// abandoned, and so is the client's own session: what made the one silent may have made the
    /// other silent, too.
    fn take_try(
        &mut self,
        tries: &mut Tries<LockOf<Self>>,
        key: &Key,
        token: &Token,
    ) -> Option<LockOf<Self>> {
        let lock = tries.take(key, token)?;
        let ended = !lock.session.is_alive();
        if !ended && lock.unanswered < 2 && !lock.blocked {
            return Some(lock);
        }
        let client = self.client_mut();
        if !ended {
            client.abandon_own();
        }
        client.abandon(lock.session);
        None
    }
}

/// Requests that ask or wait, each with its own session.
pub(in crate::backends) struct Tries<L>(Vec<(Key, Token, L)>);

impl<L> Tries<L> {
    pub fn new() -> Self {
        Self(Vec::new())
    }

    pub fn put(&mut self, key: &Key, token: &Token, lock: L) -> &mut L {
        self.0.push((key.clone(), *token, lock));
        let last = self.0.len() - 1;
        &mut self.0[last].2
    }

    pub fn get(&mut self, key: &Key, token: &Token) -> Option<&mut L> {
        self.0
            .iter_mut()
            .find(|(of, by, _)| of == key && by == token)
            .map(|(_, _, lock)| lock)
    }

    pub fn drain(&mut self) -> impl Iterator<Item = L> {
        self.0.drain(..).map(|(_, _, lock)| lock)
    }

    pub fn take(&mut self, key: &Key, token: &Token) -> Option<L> {
        let at = self
            .0
            .iter()
            .position(|(of, by, _)| of == key && by == token)?;
        Some(self.0.swap_remove(at).2)
    }
}
