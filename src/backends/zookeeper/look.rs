//! One lock as it is: its line read into the vocabulary.
//!
//! Times are the leader's clock's. Who has just made a node knows the time from it; who only looks makes a node for
//! that, outside of the lock's directory, and where it may not, lengths of time are counted to the last thing that is
//! known to have happened.

use std::time::Duration;

use super::{
    contender::{Class, Contender, heads},
    failure::Asked,
    names::{MARK, Names, holds_of},
    record::{Granted, Record, Said},
    session::{Ensemble, Session},
    wire::{Answer, Node, Reply, Request, Stat},
};
use crate::lock::{Fence, Holder, Mode, Waiter};

/// How the time is found out.
#[derive(Clone, Copy, Debug)]
pub(super) enum Clock<'a> {
    /// By making a node in this folder.
    Make(&'a str),
    /// It was this, in ms.
    Known(i64),
}

/// As many contenders are looked at; a longer line is told by its length alone.
const MOST: usize = 1000;

/// A lock as it was.
#[derive(Debug, Default)]
pub(super) struct Look {
    pub(super) holders: Vec<Holder>,
    pub(super) waiters: Vec<Waiter>,
    pub(super) last_fence: Option<Fence>,
}

/// A contender, and what its node says.
struct Entry<'a> {
    contender: &'a Contender,
    said: Option<Said>,
    stat: Stat,
}

/// Reads what the contenders of `line` said: of those who hold the lock, or with `whole` of all. Of those who may have permits
/// that is everybody who is asked about.
pub(super) async fn look(
    session: &mut Session,
    ensemble: &Ensemble,
    names: &Names,
    line: &[Contender],
    whole: bool,
    clock: Clock<'_>,
) -> Asked<Look> {
    let shown = &line[..if whole { line.len() } else { heads(line) }.min(MOST)];
    let paths: Vec<String> = shown.iter().map(|contender| names.contender(&contender.name)).collect();
    let made;
    let mut requests = vec![Request::Children { path: &names.meta }, Request::Read { path: &names.meta }];
    requests.extend(paths.iter().map(|path| Request::Read { path }));
    if let (Clock::Make(folder), false) = (clock, line.is_empty()) {
        made = format!("{folder}/%now-");
        requests.push(Request::Create { path: &made, data: &[], node: Node::Contender });
    }
    let mut answers = session.ask(ensemble, &requests).await?.into_iter();
    let beside = children(answers.next());
    let last_fence = data(answers.next()).and_then(|(data, stat)| Record::last_fence(&data, stat.mzxid));
    let mut entries = Vec::new();
    let mut newest = match clock {
        Clock::Known(now) => now,
        Clock::Make(_) => 0,
    };
    for (place, contender) in shown.iter().enumerate() {
        let Some((data, stat)) = data(answers.next()) else { continue };
        // Who only waits may be of any version.
        let said = if place < heads(line) { Said::read(&data)? } else { Said::read(&data).unwrap_or_default() };
        newest = newest.max(stat.mtime);
        entries.push(Entry { contender, said, stat });
    }
    if let Some(Ok(Reply::Made { stat, .. })) = answers.next() {
        newest = newest.max(stat.ctime);
    }
    let (granted, waiting) = split(entries, heads(line), &beside);
    let mut holders = Vec::new();
    for entry in granted {
        holders.push(holder(session, ensemble, names, &entry, &beside, &mut newest).await?);
    }
    let waiters = waiting
        .into_iter()
        .map(|entry| Waiter { metadata: entry.said.and_then(|said| said.metadata), waiting_for: Some(between(entry.stat.ctime, newest)) })
        .collect();
    let last_fence = holders.iter().filter_map(|holder| holder.fence).chain(last_fence).max();
    Ok(Look { holders, waiters, last_fence })
}

/// Who has the lock and who waits. At the head of the line, one of dlock's own has it only once its grant is marked.
fn split<'a>(entries: Vec<Entry<'a>>, heads: usize, beside: &[String]) -> (Vec<Entry<'a>>, Vec<Entry<'a>>) {
    let marked =
        |entry: &Entry<'_>| beside.iter().any(|name| name.strip_prefix(MARK).is_some_and(|guid| entry.contender.guid() == Some(guid)));
    let mut place = 0;
    entries.into_iter().partition(|entry| {
        place += 1;
        place <= heads && (entry.said.is_none() || marked(entry))
    })
}

async fn holder(
    session: &mut Session,
    ensemble: &Ensemble,
    names: &Names,
    entry: &Entry<'_>,
    beside: &[String],
    newest: &mut i64,
) -> Asked<Holder> {
    let mode = match entry.contender.class {
        Class::Alone => Mode::Exclusive,
        Class::Reader => Mode::Shared,
        Class::Permit(most) => Mode::Permits(most),
    };
    let unknown = Holder {
        permit: None,
        mode,
        metadata: None,
        fence: None,
        foreign: true,
        detached: false,
        held_for: None,
        renewed_ago: None,
        expires_in: None,
        holds: 1,
        broken: None,
    };
    let Some(said) = &entry.said else { return Ok(unknown) };
    let guid = entry.contender.guid().unwrap_or_default();
    let (mark, start) = (names.mark(guid), holds_of(guid));
    let holds: Vec<String> = beside.iter().filter(|name| name.starts_with(&start)).map(|name| format!("{}/{name}", names.meta)).collect();
    let mut requests = vec![Request::Read { path: &mark }];
    requests.extend(holds.iter().map(|path| Request::Read { path }));
    let mut answers = session.ask(ensemble, &requests).await?.into_iter();
    let mark = data(answers.next());
    let granted = mark.as_ref().map(|(_, mark)| mark.ctime);
    let says = mark.as_ref().and_then(|(says, _)| Granted::read(says)).unwrap_or_default();
    let permit = says.number();
    let Granted { heirloom, broken, .. } = says;
    let holds: Vec<(i64, u64)> = answers
        .filter_map(|answer| data(Some(answer)))
        .map(|(data, stat)| (stat.mtime, std::str::from_utf8(&data).ok().and_then(|text| text.parse().ok()).unwrap_or_default()))
        .collect();
    let renewed = holds.iter().map(|(renewed, _)| *renewed).max();
    // Handed down, the session of the contender's node is what its heirs keep alive by writing the mark.
    let handed_down = mark.zip(heirloom).map(|((_, mark), heirloom)| (mark.mtime, heirloom.timeout_ms));
    let heirs_wrote = handed_down.map(|(written, _)| written);
    *newest = [renewed, granted, heirs_wrote].into_iter().flatten().fold(*newest, i64::max);
    let now = *newest;
    let left = |(renewed, ttl): &(i64, u64)| Duration::from_millis(*ttl).saturating_sub(between(*renewed, now));
    Ok(Holder {
        permit,
        metadata: said.metadata.clone(),
        fence: fence(&entry.stat),
        foreign: false,
        detached: said.detached,
        held_for: granted.map(|then| between(then, now)),
        renewed_ago: renewed.map(|then| between(then, now)),
        // Without a hold, its session has ended: servers remove the nodes of one in no order, and this one last.
        expires_in: Some(handed_down.as_ref().or(holds.iter().max_by_key(|hold| left(hold))).map_or(Duration::ZERO, left)),
        holds: u32::try_from(holds.len()).unwrap_or(u32::MAX).max(1),
        broken,
        ..unknown
    })
}

/// The fence of a contender: the number of the change that made its node.
pub(super) fn fence(stat: &Stat) -> Option<Fence> {
    u64::try_from(stat.czxid).ok().filter(|czxid| (1..1 << 53).contains(czxid)).map(Fence)
}

fn between(then: i64, now: i64) -> Duration {
    Duration::from_millis(u64::try_from(now - then).unwrap_or_default())
}

/// The children of a node; none if it isn't there.
pub(super) fn children(answer: Option<Answer>) -> Vec<String> {
    match answer {
        Some(Ok(Reply::Children(names))) => names,
        _ => Vec::new(),
    }
}

fn data(answer: Option<Answer>) -> Option<(Vec<u8>, Stat)> {
    match answer {
        Some(Ok(Reply::Data { data, stat })) => Some((data, stat)),
        _ => None,
    }
}
