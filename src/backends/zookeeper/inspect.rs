//! Reads one lock's queue into the shared data types.
//!
//! Times are those of the leader's clock. A client that has just made a node knows the time from
//! that node. A look makes a node for that, outside of the lock's directory. Where it may not,
//! durations are counted to the last known event.

use std::time::Duration;

use super::{
    contender::{ContenderNode, fence},
    failure::{self, ZkResult},
    hold::{LockListing, ZkHold},
    names::{ZkNames, holds_of},
    record::{GrantMark, last_fence},
    session::ZkSession,
    wire::{NodeKind, Reply, Stat, WireReply, WireRequest},
};
use crate::{
    backends::{
        kit::one_line,
        queue::{
            self,
            record::{ContenderInfo, HoldRecord},
        },
    },
    lock::{Attempt, Busy, Fence, Holder, Request, Result, Waiter},
};

/// The server notifies a waiter that becomes first; an expiry in a busy answer must not make the
/// waiter poll.
const SOONEST: Duration = Duration::from_millis(250);
/// The number of contenders that are read. Of a longer queue only the length is reported.
const MOST: usize = 1000;

/// A lock at the time of a look.
#[derive(Debug, Default)]
pub(super) struct LockSummary {
    pub(super) holders: Vec<Holder>,
    pub(super) waiters: Vec<Waiter>,
    pub(super) last_fence: Option<Fence>,
}

/// A contender, and its node's content.
struct ContenderEntry<'a> {
    contender: &'a ContenderNode,
    info: Option<ContenderInfo>,
    stat: Stat,
}

/// Reads the holders' data, or with `whole` that of all contenders. With `timed`, makes a node to
/// learn the time.
pub(super) async fn look(
    session: &mut ZkSession,
    names: &ZkNames,
    seen: &LockListing,
    whole: bool,
    timed: bool,
) -> ZkResult<LockSummary> {
    let shown: Vec<usize> = (0..seen.contenders.len())
        .filter(|at| whole || seen.queue.holds(*at))
        .take(MOST)
        .collect();
    let paths: Vec<String> = shown
        .iter()
        .map(|at| names.contender(&seen.contenders[*at].name))
        .collect();
    let now = format!("{}/%now-", names.folder());
    let mut requests = vec![WireRequest::Read(&names.meta)];
    requests.extend(paths.iter().map(|path| WireRequest::Read(path)));
    if timed && !seen.contenders.is_empty() {
        requests.push(WireRequest::Create(&now, &[], NodeKind::Contender));
    }
    let mut answers = session.ask(&requests).await?.into_iter();
    let last_fence = data(answers.next()).and_then(|(data, stat)| last_fence(&data, stat.mzxid));
    let (mut granted, mut waiting) = (Vec::new(), Vec::new());
    let mut newest = 0;
    for at in shown {
        let Some((data, stat)) = data(answers.next()) else {
            continue;
        };
        let holds = seen.queue.holds(at);
        // A waiter may run any version.
        let info = if holds {
            ContenderInfo::read(&data)?
        } else {
            ContenderInfo::read(&data).unwrap_or_default()
        };
        newest = newest.max(stat.mtime);
        if holds { &mut granted } else { &mut waiting }.push(ContenderEntry {
            contender: &seen.contenders[at],
            info,
            stat,
        });
    }
    if let Some(Ok(Reply::Created { stat, .. })) = answers.next() {
        newest = newest.max(stat.ctime);
    }
    let mut holders = Vec::new();
    for entry in granted {
        holders.push(holder(session, names, &entry, &seen.side_nodes, &mut newest).await?);
    }
    let waiters = waiting
        .into_iter()
        .map(|entry| {
            let waiting_for = Some(between(entry.stat.ctime, newest));
            Waiter {
                metadata: entry.info.and_then(|info| info.metadata),
                mode: Some(entry.contender.mode),
                waiting_for,
                in_order: true,
            }
        })
        .collect();
    let last_fence = holders
        .iter()
        .filter_map(|holder| holder.fence)
        .chain(last_fence)
        .max();
    Ok(LockSummary {
        holders,
        waiters,
        last_fence,
    })
}

impl ZkHold {
    /// Returns the holders, for a waiter or a request that does not wait.
    pub(super) async fn busy(&mut self, request: &Request, seen: &LockListing) -> Result<Attempt> {
        let Some(session) = &mut self.session else {
            return Err(failure::unsettled());
        };
        // A waiter learns the time from the other contenders' nodes: that saves a write for each
        // look.
        let LockSummary { holders, .. } =
            look(session, &self.names, seen, false, self.place.is_none()).await?;
        let at = self
            .place
            .as_ref()
            .filter(|_| request.waiting)
            .and_then(|place| seen.find(&place.contender.name));
        let position = at.map(|at| seen.queue.position(at));
        let next = position.is_none_or(|position| position == 1);
        let soonest = if request.waiting {
            SOONEST
        } else {
            Duration::ZERO
        };
        // Without a holder, the server notifies a waiter that becomes first.
        let unheld = (holders.is_empty() && next).then_some(soonest);
        let busy = queue::busy(request.mode, holders, position, next);
        Ok(Attempt::Busy(Busy {
            expires_in: unheld.or(busy.expires_in).map(|left| left.max(soonest)),
            ..busy
        }))
    }
}

async fn holder(
    session: &mut ZkSession,
    names: &ZkNames,
    entry: &ContenderEntry<'_>,
    side_nodes: &[String],
    newest: &mut i64,
) -> ZkResult<Holder> {
    let mode = entry.contender.mode;
    let Some(info) = &entry.info else {
        // A persistent node outlives every session.
        let lasts = entry.stat.ephemeral_owner == 0;
        let path = names.contender(&entry.contender.name);
        return Ok(Holder {
            removal: lasts.then(|| format!("delete '{}' in zkCli.sh", one_line(&path))),
            ..ContenderInfo::holder(None, None, mode)
        });
    };
    let guid = entry.contender.guid().unwrap_or_default();
    let (mark, start) = (names.mark(guid), holds_of(guid));
    let holds: Vec<String> = side_nodes
        .iter()
        .filter(|name| name.starts_with(&start))
        .map(|name| format!("{}/{name}", names.meta))
        .collect();
    let mut requests = vec![WireRequest::Read(&mark)];
    requests.extend(holds.iter().map(|path| WireRequest::Read(path)));
    let mut answers = session.ask(&requests).await?.into_iter();
    let mark = data(answers.next());
    let granted = mark.as_ref().map(|(_, mark)| mark.ctime);
    let grant_mark = mark.as_ref().and_then(|(data, _)| GrantMark::read(data));
    let record: Option<HoldRecord> = grant_mark
        .as_ref()
        .map(|grant_mark| grant_mark.hold.clone());
    let inherited_session = grant_mark.and_then(|grant_mark| grant_mark.inherited_session);
    let holds: Vec<(i64, u64)> = answers
        .filter_map(|answer| data(Some(answer)))
        .map(|(data, stat)| {
            (
                stat.mtime,
                std::str::from_utf8(&data)
                    .ok()
                    .and_then(|text| text.parse().ok())
                    .unwrap_or_default(),
            )
        })
        .collect();
    let renewed = holds.iter().map(|(renewed, _)| *renewed).max();
    // After a handover, the heirs keep the session of the contender's node alive by writing the
    // mark.
    let handed_down = mark
        .zip(inherited_session)
        .map(|((_, mark), inherited_session)| (mark.mtime, inherited_session.timeout_ms));
    let heirs_wrote = handed_down.map(|(written, _)| written);
    *newest = [renewed, granted, heirs_wrote]
        .into_iter()
        .flatten()
        .fold(*newest, i64::max);
    let now = *newest;
    let left = |(renewed, ttl): &(i64, u64)| {
        Duration::from_millis(*ttl).saturating_sub(between(*renewed, now))
    };
    Ok(Holder {
        fence: fence(&entry.stat),
        held_for: granted.map(|then| between(then, now)),
        renewed_ago: renewed.map(|then| between(then, now)),
        // Without a hold's node, the session has ended: servers remove its nodes in no order, and
        // this one last.
        expires_in: Some(
            handed_down
                .as_ref()
                .or(holds.iter().max_by_key(|hold| left(hold)))
                .map_or(Duration::ZERO, left),
        ),
        holds: u32::try_from(holds.len()).unwrap_or(u32::MAX).max(1),
        ..ContenderInfo::holder(Some(info), record.as_ref(), mode)
    })
}

fn between(then: i64, now: i64) -> Duration {
    Duration::from_millis(u64::try_from(now - then).unwrap_or_default())
}

fn data(answer: Option<WireReply>) -> Option<(Vec<u8>, Stat)> {
    match answer {
        Some(Ok(Reply::Data { data, stat })) => Some((data, stat)),
        _ => None,
    }
}
