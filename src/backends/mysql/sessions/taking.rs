//! Taking a lock with a session, waiting for it, and giving up.

use std::time::Duration;

use super::{
    super::{
        connection::Connection,
        keeper::{Beginning, Keeper},
        readers::own_lamp,
        reading::Fields,
        session_look::{read_holders, rests},
        table::{join, leaving, place},
    },
    DRAIN_DELAY, Hold, Mode, Sessions, grant,
};
use crate::{
    backends::sql::{NEAR, looks_at_the_end, ms},
    lock::{Attempt, Busy, Denial, Fence, Grant, Key, Mode as How, Renewal, Request, Result, Token, Wake},
};

impl Sessions {
    /// The session that is to have this hold, in its place among the tries, so that a dropped question can be asked again.
    pub(super) async fn keeper(&mut self, request: &Request) -> Result<usize> {
        let keeper = if let Some(keeper) = self.take_try(&request.key, &request.token) {
            keeper
        } else {
            self.end_stuck().await;
            let (name, shared) = (self.names.of(&request.key), request.mode == How::Shared);
            let lock = if shared { own_lamp(&self.tables, &name, &request.token.hold_text()) } else { self.lock_of(&request.key) };
            let keeper = Keeper::open(&self.options, &self.tables, name, lock, shared).await?;
            self.notices = keeper.session.server.notices();
            keeper
        };
        self.tries.push((request.key.clone(), request.token, keeper));
        Ok(self.tries.len() - 1)
    }

    pub(super) async fn ask_acquire(&mut self, request: &Request) -> Result<Attempt> {
        self.capabilities().check(request)?;
        if self.hold_of(&request.key, &request.token).is_some() {
            return Ok(match self.ask_renew(&request.key, &request.token, Some(request.ttl), None).await? {
                Renewal::NotHeld => Attempt::Busy(Busy { notifies: true, transient: true, ..Busy::default() }),
                _ => Attempt::Granted(grant(
                    self.hold_of(&request.key, &request.token).map_or(Fence(0), |at| self.holds[at].fence),
                    request.ttl,
                )),
            });
        }
        if request.waiting && !self.is_queued(&request.key, &request.token) {
            self.queued.push((request.key.clone(), request.token));
        }
        let at = self.keeper(request).await?;
        let keeper = &mut self.tries[at].2;
        // An acquire that is given up must not arrive when its answer is no longer waited for.
        keeper.session.drop_unsent_on_close(true);
        let attempted = keeper.attempt(request).await;
        if attempted.is_err() {
            self.give_up(at, &attempted).await;
        }
        if !attempted? {
            return self.refuse(request, at).await;
        }
        let mut side = if self.options.mode == Mode::Row { Some(self.side().await?) } else { None };
        let begun = self.tries[at].2.begin(request, side.as_mut()).await;
        self.side = side.or_else(|| self.side.take());
        if begun.is_err() {
            self.give_up(at, &begun).await;
        }
        let (fence, now, vanished) = match begun? {
            Beginning::Begun(begun) => begun,
            Beginning::Denied(denial) => return self.turn_away(request, at, denial).await,
            Beginning::Left => {
                self.tries[at].2.let_go().await?;
                return self.refuse(request, at).await;
            }
        };
        let (key, token, keeper) = self.tries.swap_remove(at);
        keeper.session.drop_unsent_on_close(false);
        let ends = now.saturating_add(ms(request.ttl).saturating_mul(1000));
        self.holds.push(Hold { key, token, keeper, fence, ttl: request.ttl, ends, leaving: false, marked: false });
        let drain_delay = if vanished { DRAIN_DELAY } else { Duration::ZERO };
        Ok(Attempt::Granted(Grant { drain_delay, ..grant(fence, request.ttl) }))
    }

    /// After a failure that is not asked about again: the session would keep the lock for nothing.
    pub(super) async fn give_up<T>(&mut self, at: usize, failed: &Result<T>) {
        if failed.as_ref().is_err_and(|error| !error.is_transient()) {
            let (_, _, mut keeper) = self.tries.swap_remove(at);
            // If this fails, it goes back with the session.
            let _ = keeper.let_go().await;
        }
    }

    /// Gives the lock back that a run before keeps from this one.
    pub(super) async fn turn_away(&mut self, request: &Request, at: usize, denial: Box<Denial>) -> Result<Attempt> {
        self.tries[at].2.let_go().await?;
        self.tries[at].2.session.drop_unsent_on_close(false);
        if !request.waiting {
            let (_, _, keeper) = self.tries.swap_remove(at);
            self.side.get_or_insert(keeper.session);
        }
        Ok(Attempt::Denied(denial))
    }

    /// Tells the lock's holders. A waiter keeps the session.
    pub(super) async fn refuse(&mut self, request: &Request, at: usize) -> Result<Attempt> {
        let name = self.names.of(&request.key);
        let session = &self.tries[at].2.session;
        let mut batch = self.look_sql(&request.key, &session.server);
        if request.waiting {
            batch += &join(&self.tables, &name, request, false)?;
            batch += &place(&self.tables, &name, request);
        }
        let answers = self.tries[at].2.session.ask(&batch).await?;
        let (holders, _) = read_holders(&answers, 0)?;
        self.tries[at].2.rests = rests(&holders);
        let position = if request.waiting {
            answers.last().and_then(|answer| answer.rows.first()).map(|row| Fields::of(row).int()).transpose()?
        } else {
            let (_, _, keeper) = self.tries.swap_remove(at);
            self.side.get_or_insert(keeper.session);
            None
        };
        let position = position.and_then(|place| u32::try_from(place).ok()).filter(|place| *place > 0);
        if self.options.mode == Mode::Row && self.side.is_none() && position.is_some_and(|place| place <= NEAR) {
            // When the turn comes, the fence is counted over it: connecting then would keep the lock idle. It can be done later.
            self.side = Connection::open(&self.options).await.ok();
        }
        Ok(Attempt::Busy(Busy {
            expires_in: holders.iter().filter_map(|holder| holder.expires_in).max().filter(|_| looks_at_the_end(position)),
            transient: holders.is_empty(),
            holders,
            notifies: true,
            position,
        }))
    }

    pub(super) async fn await_change(&mut self, request: &Request, at_most: Duration) -> Result<Wake> {
        let Some(at) = self.tries.iter().position(|(key, token, _)| *key == request.key && *token == request.token) else {
            return Ok(Wake::Changed);
        };
        let keeper = &mut self.tries[at].2;
        if keeper.has || !keeper.session.is_open() {
            return Ok(Wake::Changed);
        }
        Ok(if keeper.wait(request.ttl, at_most).await? { Wake::Changed } else { Wake::TimedOut })
    }

    pub(super) fn is_queued(&self, key: &Key, token: &Token) -> bool {
        self.queued.iter().any(|(of, who)| of == key && who == token)
    }

    pub(super) async fn ask_abandon(&mut self, request: &Request) -> Result<()> {
        // Readers of the queue pass over a holder: the command need not wait for the queue.
        if !self.is_queued(&request.key, &request.token) || self.hold_of(&request.key, &request.token).is_some() {
            return Ok(());
        }
        // A lock that the session got meanwhile is released with it, and the next waiter gets it.
        let waited = self.take_try(&request.key, &request.token);
        self.end_stuck().await;
        let mut leave = leaving(&self.tables, &self.names.of(&request.key), &request.token);
        if let Some(keeper) = waited.filter(|keeper| keeper.session.is_alive()) {
            leave = self.letting_go(&request.key, &request.token, &keeper, &self.undoing(&request.key, &request.token, false)) + &leave;
            self.side = Some(keeper.session);
        }
        if let Err(error) = self.aside(&leave).await {
            // It may have the lock yet, and ends with it.
            self.side = None;
            return Err(error);
        }
        self.queued.retain(|(key, token)| *key != request.key || *token != request.token);
        Ok(())
    }
}
