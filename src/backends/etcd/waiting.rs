//! Waits for the preceding key to go, and listens for the loss of the own key.
//!
//! A waiter watches four keys (five for permits), whatever the length of the queue: one departure
//! wakes one waiter. The watches begin at the revision of the last look, so that no event is
//! missed. If that revision was compacted away, the look is repeated. Otherwise a waiter only
//! extends its lease, once per third of its length. A waiter that was killed, or left while its
//! member was frozen, is removed long before its lease ends: see [`super::monitor`].
#![allow(
    clippy::disallowed_methods,
    reason = "to wait is this module's work: it keeps the queue's lease alive meanwhile"
)]

use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout};

use super::{
    client::{EtcdClient, EtcdResult},
    clock::{after, is_past},
    messages::{NO_PUT, WatchCreateRequest, WatchRequest},
    monitor::{self, BEAT},
    names::{self, EtcdNames},
    probe::{HERE, Probe},
    questions::Watches,
    queue::AwaitedKeys,
    session::{EtcdSession, HoldState, QueueMonitor, Queued},
};
use crate::lock::{Ttl, Wake};

/// The pause of a request in try mode before a lock that is busy only in passing is asked for
/// again.
const PASSING: Duration = Duration::from_millis(10);

/// Until when a waiter's lease that was extended now need not be extended again; at once if it was
/// not.
pub(super) fn fresh_until(extended: Option<Ttl>, probed: bool) -> Instant {
    let most = if probed { BEAT } else { Duration::MAX };
    after(extended.map_or(Duration::ZERO, |ttl| most.min(ttl.get() / 3)))
}

/// How long a member may take to extend a lease, if there is another member.
const ANSWER: Duration = Duration::from_secs(1);
/// How long the only member may take. Asking a slow server again makes it slower.
const ONLY_ANSWER: Duration = Duration::from_secs(5);

/// An event of a stream of watches.
enum StreamEvent {
    /// This key was deleted or put.
    Changed {
        key: Vec<u8>,
        value: Vec<u8>,
        is_gone: bool,
    },
    /// The stream is over: events may have been missed.
    Over,
}

impl Watches {
    fn awaiting(mut self, before: &AwaitedKeys) -> Self {
        before.clone_into(&mut self.before);
        self
    }

    /// Returns the next change. Cancel safe.
    async fn next(&mut self) -> StreamEvent {
        loop {
            let Ok(Some(answer)) = self.answers.message().await else {
                return StreamEvent::Over;
            };
            if answer.canceled {
                return StreamEvent::Over;
            }
            // The events are of one key, or of permit numbers, where any event means the same.
            if let Some(kv) = answer
                .events
                .into_iter()
                .filter_map(|event| event.kv)
                .next_back()
            {
                return StreamEvent::Changed {
                    is_gone: kv.version == 0,
                    key: kv.key,
                    value: kv.value,
                };
            }
        }
    }
}

fn watching(key: &str, range_end: Vec<u8>, filters: Vec<i32>, since: i64) -> WatchRequest {
    WatchRequest {
        create: Some(WatchCreateRequest {
            key: key.into(),
            range_end,
            start_revision: since.saturating_add(1),
            filters,
        }),
    }
}

fn deletions(key: &str, since: i64) -> WatchRequest {
    watching(key, Vec::new(), vec![NO_PUT], since)
}

/// Returns the watches that tell when the wait for `before` is over.
fn changes(before: &AwaitedKeys, since: i64) -> Vec<WatchRequest> {
    let key = before.key.iter().map(|key| deletions(key, since));
    let record = before
        .record
        .iter()
        .map(|record| watching(record, Vec::new(), Vec::new(), since));
    let numbers = before
        .numbers
        .iter()
        .map(|folder| watching(folder, names::range_end(folder), vec![NO_PUT], since));
    key.chain(record).chain(numbers).collect()
}

/// Waits until the preceding contender is gone, or this waiter's key is.
pub(super) async fn wait(
    client: &mut EtcdClient,
    session: &mut EtcdSession,
    at_most: Duration,
) -> EtcdResult<Wake> {
    let until = after(at_most);
    let answer = if client.others() > 0 {
        ANSWER
    } else {
        ONLY_ANSWER
    };
    let (monitor, names) = (session.monitor_lease(), &session.names);
    let [monitor_key, probe] = [names.monitor(), names.probe(session.lease)];
    let HoldState::Queued(queued) = &mut session.state else {
        tokio::time::sleep(at_most.min(PASSING)).await;
        return Ok(Wake::Changed);
    };
    loop {
        if is_past(until) {
            return Ok(Wake::TimedOut);
        }
        if is_past(queued.alive_until) {
            if !stay_alive(
                client,
                (&session.names, session.lease),
                queued,
                &mut session.watches,
                answer,
            )
            .await?
            {
                // This waiter's position is lost.
                queued.checks = u32::MAX;
                return Ok(Wake::Changed);
            }
            continue;
        }
        if queued.monitor.due().is_some_and(is_past) {
            match timeout(
                answer,
                monitor::serve(client, &session.names, queued, (monitor, session.lease)),
            )
            .await
            {
                Ok(served) => served?,
                Err(_) => session.watches = None,
            }
            continue;
        }
        let watches = match &mut session.watches {
            Some(watches) => watches,
            none => {
                let mut wanted = changes(&queued.before, queued.seen);
                wanted.push(deletions(&queued.own, queued.seen));
                wanted.extend(
                    [&monitor_key, &probe]
                        .map(|key| watching(key, Vec::new(), Vec::new(), queued.seen)),
                );
                let Ok(opened) = timeout(
                    until.saturating_duration_since(Instant::now()),
                    client.watch(wanted),
                )
                .await
                else {
                    return Ok(Wake::TimedOut);
                };
                none.insert(opened?.awaiting(&queued.before))
            }
        };
        if watches.before != queued.before {
            watches.before.clone_from(&queued.before);
            for change in changes(&queued.before, queued.seen) {
                // If the stream is over, the next event says so.
                let _ = watches.wanted.send(change);
            }
        }
        tokio::select! {
            heard = watches.next() => {
                if !queued.note(&heard, &monitor_key, &probe) {
                    if matches!(heard, StreamEvent::Over) {
                        session.watches = None;
                    }
                    queued.checks = u32::MAX;
                    return Ok(Wake::Changed);
                }
            }
            () = sleep_until(until) => return Ok(Wake::TimedOut),
            () = sleep_until(queued.alive_until) => {}
            () = sleep_until(queued.monitor.due().unwrap_or(until)) => {}
        }
    }
}

/// Extends a waiter's lease, and answers its probe. Returns false if its position is lost.
async fn stay_alive(
    client: &mut EtcdClient,
    (names, lease): (&EtcdNames, i64),
    queued: &mut Queued,
    watches: &mut Option<Watches>,
    answer: Duration,
) -> EtcdResult<bool> {
    // Without an answer, the next request goes to another member.
    let Ok(kept) = timeout(answer, client.keep_alive(lease)).await else {
        *watches = None;
        return Ok(true);
    };
    let Some(length) = kept? else {
        return Ok(false);
    };
    queued.ttl = super::session::ttl(length)?;
    queued.alive_until = fresh_until(Some(queued.ttl), queued.probed);
    if queued.unanswered {
        // A late answer is refused with the lease, or is still true. An answer that fails is
        // repeated with the next extension.
        match timeout(answer, monitor::answer(client, names, lease)).await {
            Ok(()) => queued.unanswered = false,
            Err(_) => *watches = None,
        }
    }
    Ok(true)
}

impl Queued {
    /// Notes a change of the queue monitor's key or of the own probe. Returns false for any other
    /// change.
    fn note(&mut self, heard: &StreamEvent, monitor_key: &str, probe: &str) -> bool {
        match heard {
            StreamEvent::Changed { key, is_gone, .. } if key == monitor_key.as_bytes() => {
                self.monitor = self.monitor.key_changed(*is_gone, self.busy.position);
            }
            // The watch reports the waiter's own answer too.
            StreamEvent::Changed { key, value, .. }
                if key == probe.as_bytes() && value == HERE.as_bytes() => {}
            StreamEvent::Changed { key, .. } if key == probe.as_bytes() => self.mark_probed(),
            _ => return false,
        }
        true
    }

    /// Notes a probe. The waiter extends its lease at once and answers.
    fn mark_probed(&mut self) {
        (self.probed, self.unanswered, self.alive_until) = (true, true, after(Duration::ZERO));
    }

    /// Notes events that came before the watches began: watches begin after the last look.
    pub(super) fn catch_up(&mut self, has_monitor: bool, probe: Option<Probe>) {
        if !has_monitor && matches!(self.monitor, QueueMonitor::Another) {
            self.monitor = self.monitor.key_changed(true, self.busy.position);
        }
        if let Some(Probe::Open(_)) = probe {
            self.mark_probed();
        }
    }
}

/// Returns when the own key is gone, or may be.
pub(super) async fn listen(client: &mut EtcdClient, session: &mut EtcdSession) {
    let HoldState::Held(hold) = &session.state else {
        return std::future::pending().await;
    };
    let number = hold
        .number
        .as_ref()
        .map(|number| session.names.number(number.number));
    let names: Vec<&str> = [
        Some(&hold.own),
        hold.nested.as_ref().map(|nested| &nested.name),
        number.as_ref(),
    ]
    .into_iter()
    .flatten()
    .map(String::as_str)
    .collect();
    loop {
        let watches = match &mut session.watches {
            Some(watches) => watches,
            none => match client
                .watch(
                    names
                        .iter()
                        .map(|name| deletions(name, hold.seen))
                        .collect(),
                )
                .await
            {
                Ok(opened) => none.insert(opened),
                // The next renewal finds out.
                Err(_) => return std::future::pending().await,
            },
        };
        match watches.next().await {
            StreamEvent::Changed { key, .. } if names.iter().any(|name| name.as_bytes() == key) => {
                return;
            }
            StreamEvent::Changed { .. } => {}
            StreamEvent::Over => {
                session.watches = None;
                return;
            }
        }
    }
}
