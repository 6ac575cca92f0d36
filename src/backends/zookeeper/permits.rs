//! Permits: which permit a contender has, and which contender gets one next.
//!
//! A contender for a permit is in the queue from before the grant to the end of the hold. So
//! contenders of other kinds and libraries wait for it as for an exclusive one. A held permit is
//! also a node next to the lock, named by its number, of the hold's session. These nodes are
//! counted.
//!
//! The worst interleavings, and how dlock handles them:
//! - **Two contenders take the same number, or the last two of different numbers of permits:** the
//!   transaction that marks the grant makes the node. Each grant writes the lock's own node, and a
//!   permit's grant only in the version that was read before the count. So no permit was granted
//!   since.
//! - **The answer to that is lost:** the same transaction made the grant's mark, which contains the
//!   number.
//! - **The session ends between joining the queue and taking the number:** the transaction checks
//!   the contender's node. After it, all three nodes go with the session.
//! - **A holder goes while the first waiter looks:** a waiter that watches the held permits reads
//!   the numbers again as the watch begins, and looks anew if they changed.
//! - **The preceding contender dies, or is granted a permit:** the grant writes its node in the
//!   queue, so one watch reports both to the next one. The next one then asks whether the grant
//!   came before the watch.
//! - **There are fewer permits than before, and more are held:** holders stay, whatever their
//!   numbers. No permit is granted before fewer are held than are asked for. A lower number is free
//!   then, since each holder has a different one.
//! - **Two waiters ask for different numbers of permits:** each is granted one if its own number
//!   leaves room for all before it and itself. A waiter that asks for more than all before it
//!   watches the held permits, as the first one does.
//! - **Many arrive at once, and all want the lowest number:** one is granted it. Of the others, the
//!   first tries again, and the rest wait for the preceding one, which is about to be granted its
//!   own.
//! - **A contender joins the queue between a look and a grant at once:** if it then finds too many
//!   before it, it takes its grant back, and its number.
//! - **The number's node is deleted from outside:** a renewal checks it, as it checks the
//!   contender's, and the hold is over.

use std::collections::HashSet;

use super::{
    acquire::{ContenderState, RequestProgress},
    failure::{Fault, ZkResult},
    hold::{LockListing, Place, ZkHold},
    names::{PERMIT, guid},
};
use crate::lock::{Mode, Request};

impl ZkHold {
    /// Takes a permit for the contender at this position, or waits for one. Returns `None` if the
    /// queue must be read again.
    pub(super) async fn ask_for_permit(
        &mut self,
        request: &Request,
        (place, at): (&Place, usize),
        mut seen: LockListing,
        progress: &mut RequestProgress,
    ) -> ZkResult<Option<ContenderState>> {
        let may_hold = seen.queue.may_hold(request.mode, at);
        if seen.is_marked(&guid(&self.token)) {
            let ours = if seen.joined {
                may_hold
            } else {
                self.was_granted().await?
            };
            if !ours {
                self.unmark().await?;
                return Ok(None);
            }
            return Ok(self
                .take(request, place, &seen, true)
                .await?
                .then_some(ContenderState::First));
        }
        if may_hold && (progress.conflicts == 0 || seen.queue.position(at) == 1) {
            let Some(basis) = &mut seen.basis else {
                return Ok(None);
            };
            if let Some(denial) = self.judge(request.run_policy.as_ref(), basis).await? {
                if !request.waiting {
                    self.leave(place).await?;
                }
                return Ok(Some(ContenderState::Denied(denial)));
            }
            let taken = self.take(request, place, &seen, false).await?;
            progress.conflicts += 1;
            return Ok(taken.then_some(ContenderState::First));
        }
        if !request.waiting {
            self.leave(place).await?;
            return Ok(Some(ContenderState::Behind(Box::new(seen.without(at)))));
        }
        let watched = self.watch_for_permit((request.mode, at), &seen).await?;
        Ok(watched.then(|| ContenderState::Behind(Box::new(seen))))
    }

    /// Returns whether the marked grant is one of this session, whose answer was lost. Otherwise an
    /// earlier session left it.
    async fn was_granted(&mut self) -> ZkResult<bool> {
        self.grant = None;
        if !self.confirm().await? {
            return Ok(false);
        }
        let Some(number) = self.number() else {
            return Ok(false);
        };
        let stat = self.stat(&number).await?;
        let ours = stat.is_some_and(|stat| {
            self.session
                .as_ref()
                .is_some_and(|session| session.id == stat.ephemeral_owner)
        });
        if !ours {
            // The mark may be another process's by now.
            self.grant = None;
        }
        Ok(ours)
    }

    /// Watches the nodes whose change may make this contender first. Returns false if the queue
    /// must be read again.
    async fn watch_for_permit(
        &mut self,
        (mode, at): (Mode, usize),
        seen: &LockListing,
    ) -> ZkResult<bool> {
        let awaited = seen.queue.awaited(mode, at);
        let ahead = awaited.contender.map(|ahead| &seen.contenders[ahead]);
        let meta = self.names.meta.clone();
        let path = match ahead {
            Some(ahead) if !awaited.permits => self.names.contender(&ahead.name),
            _ => meta.clone(),
        };
        if self
            .blocker
            .as_ref()
            .is_some_and(|(watched, _)| *watched == path)
        {
            return Ok(true);
        }
        let Some(session) = &mut self.session else {
            return Err(Fault::Expired);
        };
        if path == meta {
            let (side_nodes, watch) = session.watch_children(&meta).await?;
            let numbers = |names: &[String]| {
                names
                    .iter()
                    .filter(|name| name.starts_with(PERMIT))
                    .cloned()
                    .collect::<HashSet<_>>()
            };
            self.blocker = Some((path, watch));
            return Ok(numbers(&side_nodes) == numbers(&seen.side_nodes));
        }
        let Some(watch) = session.watch(&path).await? else {
            return Ok(false);
        };
        self.blocker = Some((path, watch));
        // Checks for a grant between the look and the watch.
        let Some(guid) = ahead
            .filter(|ahead| matches!(ahead.mode, Mode::Permits(_)))
            .and_then(|ahead| ahead.guid())
        else {
            return Ok(true);
        };
        let mark = self.names.mark(guid);
        Ok(self.stat(&mark).await?.is_none())
    }
}
