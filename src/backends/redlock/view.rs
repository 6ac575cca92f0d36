//! What the nodes say of a lock, put together to one picture.

use std::time::Duration;

use ::redis::Value;

use crate::{
    backends::redis::{failure, history::vanished, reply, state::foreign},
    lock::{Break, Fence, Holder, Mode, Past, Result},
};

/// The newest layout that this version can read, up to any minor version.
const MAJOR: u32 = 1;

/// A lock on one node, at one moment.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    /// The node's time in ms; `None` if we may not ask for it.
    pub now: Option<i64>,
    /// What is left of the lock's time, as `PTTL` says it.
    pub pttl: Option<i64>,
    /// The type of what is stored, or `none`.
    pub kind: String,
    /// The beginning of a string.
    pub value: String,
    /// dlock's record beside it.
    pub record: Vec<(String, String)>,
}

impl Seen {
    /// From `{"busy", now, pttl, type, value, record, place}`.
    pub(super) fn of_busy(rest: &[Value]) -> Option<(Self, i64)> {
        let [now, pttl, kind, value, record, place] = rest else { return None };
        let seen = Self {
            now: reply::int(now),
            pttl: reply::int(pttl),
            kind: reply::text(kind)?,
            value: reply::text(value)?,
            record: reply::pairs(record)?,
        };
        Some((seen, reply::int(place)?))
    }

    /// Nothing is stored, or it ended just now.
    pub(super) fn is_free(&self) -> bool {
        self.kind == "none" || self.pttl == Some(-2)
    }

    /// No lock of any library: those end by themselves.
    pub(super) fn is_no_lock(&self) -> bool {
        !self.is_free() && self.pttl == Some(-1)
    }

    /// What is left of it; nothing if it is free.
    pub(super) fn left(&self) -> Option<Duration> {
        if self.is_free() { Some(Duration::ZERO) } else { self.pttl.and_then(|ms| u64::try_from(ms).ok()).map(Duration::from_millis) }
    }

    /// Whether the record is about the holder.
    fn is_ours(&self) -> bool {
        let holder = self.of_record("owner").zip(self.of_record("attempt"));
        !self.is_free() && holder.is_some_and(|(owner, attempt)| self.value == format!("{owner}:{attempt}"))
    }

    pub(super) fn fence(&self) -> Option<Fence> {
        let fence = self.of_record("fence").filter(|_| self.is_ours())?;
        fence.parse().ok().map(Fence)
    }

    /// # Errors
    /// For a layout newer than ours.
    pub(super) fn check(&self) -> Result<()> {
        let Some(version) = self.of_record("v").filter(|_| self.is_ours()) else { return Ok(()) };
        let major = version.split('.').next().and_then(|major| major.parse().ok());
        if major.is_none_or(|major: u32| major > MAJOR) { Err(failure::newer_layout(version)) } else { Ok(()) }
    }

    /// Who is breaking it.
    fn mark(&self) -> Option<Break> {
        serde_json::from_str(self.of_record("mark")?).ok()
    }

    /// The committed hold that the record tells of, if the node is not its any more.
    pub(super) fn vanished(&self) -> Option<Past> {
        if self.is_ours() { None } else { vanished(|name| self.of_record(name), &self.record) }
    }

    fn of_record(&self, name: &str) -> Option<&str> {
        self.record.iter().find(|(field, _)| field == name).map(|(_, value)| value.as_str())
    }

    fn ago(&self, field: &str) -> Option<Duration> {
        let then: i64 = self.of_record(field)?.parse().ok()?;
        Some(Duration::from_millis(u64::try_from(self.now? - then).unwrap_or(0)))
    }

    fn holds(&self) -> usize {
        let is_live = |(field, value): &&(String, String)| {
            let ends = value.split(':').next().and_then(|ends| ends.parse::<i64>().ok());
            field.starts_with("hold:") && ends.is_some_and(|ends| self.now.is_none_or(|now| ends > now))
        };
        self.record.iter().filter(is_live).count()
    }
}

/// A lock on all nodes.
#[derive(Debug)]
pub(super) struct Picture {
    /// Who has a majority of the nodes, or may have it if some did not answer.
    pub holder: Option<Holder>,
    /// The nodes that are the holder's.
    pub held_on: Vec<usize>,
    /// When a majority of the nodes will be free, if nobody does anything.
    pub free_in: Option<Duration>,
    /// Nobody has it for certain: an attempt is between its phases, or several share the nodes.
    pub passing: bool,
}

impl Picture {
    /// From what each node says, `None` where one didn't.
    pub(super) fn of(seen: &[Option<Seen>], majority: usize) -> Self {
        let unknown = seen.iter().filter(|seen| seen.is_none()).count();
        let held = |seen: &&Seen| !seen.is_free();
        let mut groups: Vec<(&str, Vec<usize>)> = Vec::new();
        for (n, seen) in seen.iter().enumerate().filter_map(|(n, seen)| Some((n, seen.as_ref().filter(held)?))) {
            // What is no string has no value to tell one from another by.
            let value = if seen.kind == "string" { seen.value.as_str() } else { seen.kind.as_str() };
            match groups.iter_mut().find(|(known, _)| *known == value) {
                Some((_, nodes)) => nodes.push(n),
                None => groups.push((value, vec![n])),
            }
        }
        groups.sort_by_key(|(_, nodes)| std::cmp::Reverse(nodes.len()));
        let largest = groups.into_iter().next().map(|(_, nodes)| nodes).filter(|nodes| nodes.len() + unknown >= majority);
        let held_on = largest.unwrap_or_default();
        let of_holder: Vec<&Seen> = held_on.iter().filter_map(|n| seen.get(*n)?.as_ref()).collect();
        let holder = holder(&of_holder, majority);
        let passing = holder.as_ref().is_none_or(|holder| !holder.foreign && holder.fence.is_none());
        let mut ends: Vec<_> = seen.iter().flatten().filter_map(Seen::left).collect();
        ends.sort_unstable();
        Self { holder, held_on, free_in: ends.get(majority - 1).copied(), passing }
    }
}

/// The holder of these nodes, from its records on them.
fn holder(nodes: &[&Seen], majority: usize) -> Option<Holder> {
    let mut ends: Vec<_> = nodes.iter().filter_map(|seen| seen.left()).collect();
    ends.sort_unstable_by(|a, b| b.cmp(a));
    // It holds the lock for as long as it has a majority.
    let expires_in = ends.get(majority - 1).or(ends.last()).copied();
    let any = nodes.first()?;
    let Some(ours) = nodes.iter().filter(|seen| seen.is_ours()).max_by_key(|seen| seen.fence()) else {
        let ends = expires_in.filter(|_| !any.is_no_lock());
        return Some(foreign(Mode::Exclusive, ends));
    };
    let each = || nodes.iter().filter(|seen| seen.is_ours());
    Some(Holder {
        permit: None,
        mode: Mode::Exclusive,
        metadata: ours.of_record("meta").and_then(|json| serde_json::from_str(json).ok()),
        fence: ours.fence(),
        foreign: false,
        detached: ours.of_record("detached") == Some("1"),
        held_for: each().filter_map(|seen| seen.ago("since")).max(),
        renewed_ago: each().filter_map(|seen| seen.ago("renewed")).min(),
        expires_in,
        holds: each().map(|seen| u32::try_from(seen.holds()).unwrap_or(u32::MAX)).max().unwrap_or(1).max(1),
        broken: each().find_map(|seen| seen.mark()).map(|mark| Break { seen: each().any(|seen| seen.of_record("seen").is_some()), ..mark }),
    })
}

/// The last fence that was published, or more: published ones are on a majority of the counters, and those of nodes that are not
/// known may have any.
pub(super) fn last_fence(mut known: Vec<u64>, unknown: usize, majority: usize) -> Option<Fence> {
    known.sort_unstable_by(|a, b| b.cmp(a));
    known.get(majority.saturating_sub(unknown).max(1) - 1).copied().map(Fence)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[allow(clippy::unnecessary_wraps)] // as the nodes have it
    fn node(attempt: &str, fence: Option<&str>, pttl: i64) -> Option<Seen> {
        let mut record = vec![("v".into(), "1.0".into()), ("owner".into(), "me".into()), ("attempt".into(), attempt.into())];
        record.extend(fence.map(|fence| ("fence".into(), fence.into())));
        Some(Seen { now: Some(1000), pttl: Some(pttl), kind: "string".into(), value: format!("me:{attempt}"), record })
    }

    #[allow(clippy::unnecessary_wraps)] // as the nodes have it
    fn free() -> Option<Seen> {
        Some(Seen { kind: "none".into(), pttl: Some(-2), ..Seen::default() })
    }

    fn of(nodes: &[Option<Seen>]) -> Picture {
        Picture::of(nodes, nodes.len() / 2 + 1)
    }

    #[test]
    fn a_majority_holds_and_a_minority_is_left_over() {
        let held = of(&[node("a", Some("7"), 300), node("a", Some("7"), 100), node("a", Some("7"), 200), free(), free()]);
        let holder = held.holder.unwrap();
        assert_eq!((holder.fence, holder.expires_in), (Some(Fence(7)), Some(Duration::from_millis(100))));
        assert_eq!((held.held_on, held.free_in, held.passing), (vec![0, 1, 2], Some(Duration::from_millis(100)), false));
        let left_over = of(&[node("a", Some("7"), 300), node("a", Some("7"), 100), free(), free(), free()]);
        assert!(left_over.holder.is_none() && left_over.passing);
        assert_eq!(left_over.free_in, Some(Duration::ZERO));
    }

    #[test]
    fn nodes_that_do_not_answer_may_be_the_holders() {
        let held = of(&[node("a", Some("7"), 300), node("a", Some("7"), 100), None, None, free()]);
        assert_eq!((held.holder.unwrap().fence, held.free_in), (Some(Fence(7)), Some(Duration::from_millis(300))));
        assert!(of(&[node("a", Some("7"), 300), free(), free(), free(), None]).holder.is_none());
    }

    #[test]
    fn attempts_that_share_the_nodes_pass() {
        let split = of(&[node("a", None, 300), node("a", None, 300), node("b", None, 300), node("b", None, 300), node("c", None, 300)]);
        assert!(split.holder.is_none() && split.passing);
        let between = of(&[node("a", None, 300), node("a", None, 300), node("a", None, 300)]);
        assert!(between.passing && between.holder.unwrap().fence.is_none());
    }

    #[test]
    fn what_was_published_is_never_above_what_is_shown() {
        assert_eq!(last_fence(vec![9, 5, 5, 5, 1], 0, 3), Some(Fence(5)));
        assert_eq!(last_fence(vec![2, 5, 1], 2, 3), Some(Fence(5)));
        assert_eq!(last_fence(vec![], 1, 2), None);
    }
}
