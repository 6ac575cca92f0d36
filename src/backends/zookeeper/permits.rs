//! Permits: which of them a contender has, and whose turn it is for one.
//!
//! A contender for a permit stands in the queue from before the grant to the end of the hold: so contenders of other kinds and libraries wait
//! for it as for an exclusive one. A held permit is also a node of its own next to the lock, with its number, of the session of the hold.
//! These nodes are counted.
//!
//! The worst interleavings, and what is done about them:
//! - **Two take the same number, or the last two of different numbers of permits:** the node is made in the transaction that marks
//!   the grant. Each grant writes the lock's own node, and this one only in the version that was read before all were
//!   counted: so none was granted since.
//! - **The answer to that is lost:** the mark of the grant was made in the same transaction, and says the number.
//! - **The session ends between joining the queue and taking the number:** the transaction checks the contender's node. After it,
//!   all three nodes go with the session.
//! - **A holder goes while the first waiter looks:** a waiter that watches what is held reads the numbers again as it begins to watch, and
//!   looks anew if they are others.
//! - **The one before dies, or is granted a permit:** the grant writes its node in the queue, so that one watch tells the next one of both.
//!   Whether it was granted before that watch began is asked after that.
//! - **There are fewer permits than before, and more are held:** what is held stays, whatever its number, and no permit is granted
//!   before there are less than are asked for now. There is a number below it free then, since each has another one.
//! - **Two waiters ask for different numbers of permits:** each is granted one as there is room by its own number, for all before and itself.
//!   One that asks for more than all before it watches what is held as the first one does.
//! - **Many come at once, and all want the lowest number:** one is granted it, and of the others the first one asks again; the
//!   others wait for the one before, which is about to be granted its own.
//! - **A contender joins the queue between a look and a grant at once:** if it finds too many before it after that, it takes its grant back,
//!   its number too.
//! - **The node of the number is deleted from outside:** a renewal checks it, as it checks the contender's, and the hold is over.

use std::collections::HashSet;

use super::{
    acquire::{Standing, Turn},
    failure::{Asked, Fault},
    hold::{Hold, Place, Seen},
    names::{PERMIT, guid},
};
use crate::lock::{Mode, Request};

impl Hold {
    /// Takes a permit for the contender at this position, or waits for one. `None` if the queue has to be looked at again.
    pub(super) async fn ask_for_permit(
        &mut self,
        request: &Request,
        (place, at): (&Place, usize),
        mut seen: Seen,
        turn: &mut Turn,
    ) -> Asked<Option<Standing>> {
        let may_hold = seen.queue.may_hold(request.mode, at);
        if seen.is_marked(&guid(&self.token)) {
            let ours = if seen.joined { may_hold } else { self.was_granted().await? };
            if !ours {
                self.unmark().await?;
                return Ok(None);
            }
            return Ok(self.take(request, place, &seen, true).await?.then_some(Standing::First));
        }
        if may_hold && (turn.conflicts == 0 || seen.queue.place(at) == 1) {
            let Some(basis) = &mut seen.basis else { return Ok(None) };
            if let Some(denial) = self.judge(request.run_policy.as_ref(), basis).await? {
                if !request.waiting {
                    self.leave(place).await?;
                }
                return Ok(Some(Standing::Kept(denial)));
            }
            let taken = self.take(request, place, &seen, false).await?;
            turn.conflicts += 1;
            return Ok(taken.then_some(Standing::First));
        }
        if !request.waiting {
            self.leave(place).await?;
            return Ok(Some(Standing::Behind(Box::new(seen.without(at)))));
        }
        let watched = self.watch_for_permit((request.mode, at), &seen).await?;
        Ok(watched.then(|| Standing::Behind(Box::new(seen))))
    }

    /// Whether the grant that is marked is one of this session, of which the answer was lost. Otherwise an earlier one left it.
    async fn was_granted(&mut self) -> Asked<bool> {
        self.grant = None;
        if !self.confirm().await? {
            return Ok(false);
        }
        let Some(number) = self.number() else { return Ok(false) };
        let stat = self.stat(&number).await?;
        let ours = stat.is_some_and(|stat| self.session.as_ref().is_some_and(|session| session.id == stat.ephemeral_owner));
        if !ours {
            // It may be another process's by now.
            self.grant = None;
        }
        Ok(ours)
    }

    /// Watches what has to happen before it is one's turn. False if the queue has to be looked at again.
    async fn watch_for_permit(&mut self, (mode, at): (Mode, usize), seen: &Seen) -> Asked<bool> {
        let awaited = seen.queue.awaited(mode, at);
        let ahead = awaited.contender.map(|ahead| &seen.line[ahead]);
        let meta = self.names.meta.clone();
        let path = match ahead {
            Some(ahead) if !awaited.permits => self.names.contender(&ahead.name),
            _ => meta.clone(),
        };
        if self.blocker.as_ref().is_some_and(|(watched, _)| *watched == path) {
            return Ok(true);
        }
        let Some(session) = &mut self.session else { return Err(Fault::Expired) };
        if path == meta {
            let (beside, watch) = session.watch_children(&meta).await?;
            let numbers = |names: &[String]| names.iter().filter(|name| name.starts_with(PERMIT)).cloned().collect::<HashSet<_>>();
            self.blocker = Some((path, watch));
            return Ok(numbers(&beside) == numbers(&seen.beside));
        }
        let Some(watch) = session.watch(&path).await? else { return Ok(false) };
        self.blocker = Some((path, watch));
        // Granted since the look, and before the watch?
        let Some(guid) = ahead.filter(|ahead| matches!(ahead.mode, Mode::Permits(_))).and_then(|ahead| ahead.guid()) else {
            return Ok(true);
        };
        let mark = self.names.mark(guid);
        Ok(self.stat(&mark).await?.is_none())
    }
}
