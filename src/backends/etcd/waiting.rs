//! Waiting for the key before ours to go, and listening for our own to.
//!
//! A waiter watches two keys, or three of permits, however many wait: one departure wakes one waiter. The watches begin at the revision of the
//! last look, so that nothing that happened since is missed; if that was compacted away, the look is repeated.
//! While it waits a waiter keeps its lease alive, since its place ends with it.
#![allow(clippy::disallowed_methods, reason = "to wait is this module's work: it keeps the queue's lease alive meanwhile")]

use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout};

use super::{
    client::{Answer, Client, Watches},
    messages::{NO_PUT, WatchCreateRequest, WatchRequest},
    names,
    queue::Before,
    session::{Session, Stage},
};
use crate::lock::{Ttl, Wake};

/// How long one who doesn't wait sleeps before a lock that is busy only in passing is asked for again.
const PASSING: Duration = Duration::from_millis(10);

/// The moment after so long.
pub(super) fn after(length: Duration) -> Instant {
    Instant::now() + length
}

pub(super) fn is_past(moment: Instant) -> bool {
    moment <= Instant::now()
}

/// Until when a lease that was extended now need not be extended again; at once if it was not.
pub(super) fn fresh_until(extended: Option<Ttl>) -> Instant {
    after(extended.map_or(Duration::ZERO, |ttl| ttl.get() / 3))
}

/// What a stream of watches tells.
enum Heard {
    /// This key is gone, or was put.
    Changed(Vec<u8>),
    /// The stream is over: something may have been missed.
    Over,
}

impl Watches {
    fn also(mut self, before: &Before) -> Self {
        before.clone_into(&mut self.before);
        self
    }

    /// The next change. Cancel safe.
    async fn next(&mut self) -> Heard {
        loop {
            let Ok(Some(answer)) = self.answers.message().await else { return Heard::Over };
            if answer.canceled {
                return Heard::Over;
            }
            // Nothing but what is waited for is asked for.
            if let Some(kv) = answer.events.into_iter().find_map(|event| event.kv) {
                return Heard::Changed(kv.key);
            }
        }
    }
}

fn watching(key: &str, range_end: Vec<u8>, filters: Vec<i32>, since: i64) -> WatchRequest {
    WatchRequest { create: Some(WatchCreateRequest { key: key.into(), range_end, start_revision: since.saturating_add(1), filters }) }
}

fn deletions(key: &str, since: i64) -> WatchRequest {
    watching(key, Vec::new(), vec![NO_PUT], since)
}

/// What tells that it need not be waited for any more.
fn changes(before: &Before, since: i64) -> Vec<WatchRequest> {
    let key = before.key.iter().map(|key| deletions(key, since));
    let record = before.record.iter().map(|record| watching(record, Vec::new(), Vec::new(), since));
    let numbers = before.numbers.iter().map(|folder| watching(folder, names::range_end(folder), vec![NO_PUT], since));
    key.chain(record).chain(numbers).collect()
}

/// Waits until the one before us is gone, or we are.
pub(super) async fn wait(client: &mut Client, session: &mut Session, at_most: Duration) -> Answer<Wake> {
    let until = after(at_most);
    let Stage::Queued(queued) = &mut session.stage else {
        tokio::time::sleep(at_most.min(PASSING)).await;
        return Ok(Wake::Changed);
    };
    loop {
        if is_past(queued.alive_until) {
            match client.keep_alive(session.lease).await? {
                Some(length) => {
                    queued.ttl = super::session::ttl(length)?;
                    queued.alive_until = fresh_until(Some(queued.ttl));
                }
                // Our place is lost.
                None => return Ok(Wake::Changed),
            }
        }
        let watches = match &mut session.watches {
            Some(watches) => watches,
            none => {
                let mut wanted = changes(&queued.before, queued.seen);
                wanted.push(deletions(&queued.own, queued.seen));
                let Ok(opened) = timeout(until.saturating_duration_since(Instant::now()), client.watch(wanted)).await else {
                    return Ok(Wake::TimedOut);
                };
                none.insert(opened?.also(&queued.before))
            }
        };
        if watches.before != queued.before {
            watches.before.clone_from(&queued.before);
            for change in changes(&queued.before, queued.seen) {
                // If the stream is over, that is heard next.
                let _ = watches.wanted.send(change);
            }
        }
        tokio::select! {
            heard = watches.next() => {
                if matches!(heard, Heard::Over) {
                    session.watches = None;
                }
                queued.checks = u32::MAX;
                return Ok(Wake::Changed);
            }
            () = sleep_until(until) => return Ok(Wake::TimedOut),
            () = sleep_until(queued.alive_until) => {}
        }
    }
}

/// Ready when the own key is gone, or may be.
pub(super) async fn listen(client: &mut Client, session: &mut Session) {
    let Stage::Held(hold) = &session.stage else { return std::future::pending().await };
    let number = hold.number.as_ref().map(|number| session.names.number(number.number));
    let names: Vec<&str> = [Some(&hold.own), hold.nested.as_ref().map(|nested| &nested.name), number.as_ref()]
        .into_iter()
        .flatten()
        .map(String::as_str)
        .collect();
    loop {
        let watches = match &mut session.watches {
            Some(watches) => watches,
            none => match client.watch(names.iter().map(|name| deletions(name, hold.seen)).collect()).await {
                Ok(opened) => none.insert(opened),
                // The next renewal is what finds out.
                Err(_) => return std::future::pending().await,
            },
        };
        match watches.next().await {
            Heard::Changed(key) if names.iter().any(|name| name.as_bytes() == key) => return,
            Heard::Changed(_) => {}
            Heard::Over => {
                session.watches = None;
                return;
            }
        }
    }
}
