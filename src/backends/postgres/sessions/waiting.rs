//! Waiting for a lock with a session, and giving up.

use std::time::Duration;

use super::{Sessions, pause};
use crate::lock::{Request, Result, Wake};

impl Sessions {
    pub(super) async fn await_change(&mut self, request: &Request, at_most: Duration) -> Result<Wake> {
        let Some(at) = self.try_of(&request.key, &request.token) else { return Ok(Wake::Changed) };
        let keeper = &mut self.tries[at].2;
        if keeper.has || !keeper.session.is_open() {
            return Ok(Wake::Changed);
        }
        if let Some(rests) = keeper.rests.take() {
            // The lock is free: taking it would succeed at once.
            pause(rests.min(at_most)).await;
            return Ok(Wake::TimedOut);
        }
        // The server ends it by itself. However late its answer comes on a machine that is busy, breaking the session off
        // would only make it busier: each of many would log in again.
        Ok(if keeper.wait(request.ttl, at_most).await? { Wake::Changed } else { Wake::TimedOut })
    }

    pub(super) fn is_queued(&self, request: &Request) -> bool {
        self.queued.iter().any(|(key, token)| *key == request.key && *token == request.token)
    }

    pub(super) async fn ask_abandon(&mut self, request: &Request) -> Result<()> {
        if let Some(at) = self.try_of(&request.key, &request.token) {
            self.end_blocked(at).await;
            // In its place until it is done, so that it can be asked for again.
            let keeper = &mut self.tries[at].2;
            let rests = if keeper.blocked || !keeper.session.is_alive() { Ok(false) } else { keeper.give_back().await.map(|()| true) };
            // A lock that the session got meanwhile is released with it, and the next waiter gets it.
            let (_, _, keeper) = self.tries.swap_remove(at);
            if rests? {
                self.side.get_or_insert(keeper.session);
            }
        }
        if !self.is_queued(request) {
            return Ok(());
        }
        let name = self.names.of(&request.key);
        self.aside(async |table| table.leave_queue("", &name, &request.token).await).await?;
        self.queued.retain(|(key, token)| *key != request.key || *token != request.token);
        Ok(())
    }
}
