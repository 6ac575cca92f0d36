//! The sessions of `mode=row` and `mode=advisory` that ask for locks, wait for them or have them.

use std::time::Duration;

use tokio::time::Instant;

use super::{Server, SqlMode, client::Session};
use crate::lock::{Error, Grant, Holder, Key, Kind, Result, Token};

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
    /// The session's number in its server.
    pub number: i64,
    /// The server that has the session, once it is known.
    pub server: Option<Server>,
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
    /// The holders at the last look.
    pub found: Option<Vec<Holder>>,
    /// The grant, once the lock is granted.
    pub granted: Option<Grant>,
    /// Until when the hold lasts, as it was last extended.
    pub until: Option<Instant>,
    /// The last renewal in the document went over the session, and shows that it has the lock.
    pub proved: bool,
    /// The hold is being broken.
    pub marked: bool,
    /// The lock is being given back and must not be relied on.
    pub leaving: bool,
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
            number: 0,
            server: None,
            idle_limit,
            unanswered,
            blocked: false,
            far: false,
            left_for: None,
            found: None,
            granted: None,
            until: None,
            proved: false,
            marked: false,
            leaving: false,
            own,
        }
    }

    /// Whether the lock is a row that readers share.
    pub fn shares_row(&self) -> bool {
        self.shared && self.mode == SqlMode::Row
    }

    /// Whether the session is in the transaction that keeps a row locked, where nothing else can be
    /// written.
    fn keeps_transaction(&self) -> bool {
        self.has && self.mode == SqlMode::Row
    }
}

/// Returns the error that the session that had the lock is over.
pub(in crate::backends) fn session_is_over() -> Error {
    Error::new(
        Kind::Unavailable,
        "the server has ended the session that had the lock",
    )
}

/// The sessions of one client that ask for locks, wait for them or have them.
pub(in crate::backends) struct Locks<L> {
    /// Those that ask or wait.
    pub tries: ByToken<L>,
    /// Those that have their lock.
    pub holds: ByToken<L>,
    /// The request that is being served: what it asks goes over its own session if that can.
    pub asks: Option<(Key, Token)>,
}

impl<L> Default for Locks<L> {
    fn default() -> Self {
        Self {
            tries: ByToken(Vec::new()),
            holds: ByToken(Vec::new()),
            asks: None,
        }
    }
}

impl<S: Session, O> Locks<SessionLock<S, O>> {
    /// Returns the session that has or tries to get the lock for this request.
    pub fn of(&mut self, key: &Key, token: &Token) -> Option<&mut SessionLock<S, O>> {
        match self.holds.get(key, token) {
            Some(lock) => Some(lock),
            None => self.tries.get(key, token),
        }
    }

    /// Returns the session of the request that is being served.
    pub fn served(&mut self) -> Option<&mut SessionLock<S, O>> {
        let (key, token) = self.asks.clone()?;
        self.of(&key, &token)
    }

    /// Returns the session over which the request that is being served can ask: none in a
    /// transaction that keeps a row locked.
    ///
    /// # Errors
    /// The session that had the lock is over: another one can't ask in its place, since what it is
    /// told may be of the next holder.
    pub fn asking(&mut self) -> Result<Option<&mut SessionLock<S, O>>> {
        match self.served() {
            Some(lock) if lock.keeps_transaction() => Ok(None),
            Some(lock) if lock.session.is_alive() => Ok(Some(lock)),
            Some(lock) if lock.has => Err(session_is_over()),
            _ => Ok(None),
        }
    }
}

/// Sessions by the requests that they serve.
pub(in crate::backends) struct ByToken<L>(Vec<(Key, Token, L)>);

impl<L> ByToken<L> {
    pub fn put(&mut self, key: &Key, token: &Token, lock: L) {
        self.0.push((key.clone(), *token, lock));
    }

    // A loop over the locks instead would need a borrow that ends early.
    pub fn get(&mut self, key: &Key, token: &Token) -> Option<&mut L> {
        self.0
            .iter_mut()
            .find(|(of, by, _)| of == key && by == token)
            .map(|(_, _, lock)| lock)
    }

    pub fn drain(&mut self) -> impl Iterator<Item = L> {
        self.0.drain(..).map(|(_, _, lock)| lock)
    }

    pub fn iter(&self) -> impl Iterator<Item = &L> {
        self.0.iter().map(|(_, _, lock)| lock)
    }

    pub fn take(&mut self, key: &Key, token: &Token) -> Option<L> {
        let at = self
            .0
            .iter()
            .position(|(of, by, _)| of == key && by == token)?;
        Some(self.0.swap_remove(at).2)
    }
}
