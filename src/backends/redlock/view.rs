//! The nodes' views of a lock, merged into one picture.

use std::time::Duration;

use ::redis::Value;

use crate::{
    backends::redis::{
        failure,
        history::vanished,
        reply,
        state::{Share, foreign, read_shares},
    },
    lock::{Break, Fence, HistoryEntry, Holder, Mode, Result},
};

/// The newest layout that this version can read, up to any minor version.
pub(in crate::backends) const MAJOR: u32 = 1;

/// A lock on one node, at one moment.
#[derive(Clone, Debug, Default)]
pub(super) struct NodeLock {
    /// The node's time in ms; `None` without the right to read it.
    pub now: Option<i64>,
    /// The lock's remaining TTL, as `PTTL` returns it.
    pub pttl: Option<i64>,
    /// The type of the stored value, or `none`.
    pub kind: String,
    /// The beginning of the value, if it is a string.
    pub value: String,
    /// dlock's record next to the lock.
    pub record: Vec<(String, String)>,
    /// The string of the node's current or last readers.
    pub shared_as: String,
    /// The shares of those readers, or some of them.
    pub shares: Vec<Share>,
    /// How long an earlier writer keeps out a new reader, with any holder.
    pub kept: Duration,
}

impl NodeLock {
    /// Reads `{"busy", now, pttl, type, value, record, position, shares, kept}`. Returns the view
    /// and the position.
    pub(super) fn of_busy(rest: &[Value]) -> Option<(Self, i64)> {
        let [now, pttl, kind, value, record, place, shares, kept] = rest else {
            return None;
        };
        let value = reply::text(value)?;
        let seen = Self {
            now: reply::int(now),
            pttl: reply::int(pttl),
            kind: reply::text(kind)?,
            record: reply::pairs(record)?,
            // The script returns only the current readers' shares.
            shared_as: value.clone(),
            value,
            shares: read_shares(shares),
            kept: Duration::from_millis(u64::try_from(reply::int(kept)?).ok()?),
        };
        Some((seen, reply::int(place)?))
    }

    /// Whether the key is missing, or expired just now.
    pub(super) fn is_free(&self) -> bool {
        self.kind == "none" || self.pttl == Some(-2)
    }

    /// Whether the value is no library's lock: locks are strings or have a TTL.
    pub(super) fn is_no_lock(&self) -> bool {
        !self.is_free() && self.pttl == Some(-1) && self.kind != "string"
    }

    /// Returns the lock's remaining TTL; zero if it is free.
    pub(super) fn left(&self) -> Option<Duration> {
        if self.is_free() {
            Some(Duration::ZERO)
        } else {
            self.pttl
                .and_then(|ms| u64::try_from(ms).ok())
                .map(Duration::from_millis)
        }
    }

    /// Whether the record describes the current holder.
    fn is_ours(&self) -> bool {
        let holder = self.of_record("owner").zip(self.of_record("attempt"));
        !self.is_free()
            && holder.is_some_and(|(owner, attempt)| self.value == format!("{owner}:{attempt}"))
    }

    /// Whether readers hold the node.
    fn is_shared(&self) -> bool {
        !self.is_free() && self.value.starts_with("shared:") && self.shared_as == self.value
    }

    /// Returns the readers' live shares.
    fn readers(&self) -> impl Iterator<Item = &Share> {
        self.shares
            .iter()
            .filter(|share| self.is_shared() && self.now.is_none_or(|now| share.is_live(now)))
    }

    /// Returns the highest fence of the current holders.
    pub(super) fn fence(&self) -> Option<Fence> {
        let alone = self.of_record("fence").filter(|_| self.is_ours());
        alone
            .into_iter()
            .chain(self.readers().filter_map(|share| share.of("fence")))
            .filter_map(|fence| fence.parse().ok())
            .max()
            .map(Fence)
    }

    /// # Errors
    /// If a record has a newer layout.
    pub(super) fn check(&self) -> Result<()> {
        let alone = self.of_record("v").filter(|_| self.is_ours());
        for version in alone
            .into_iter()
            .chain(self.readers().filter_map(|share| share.of("v")))
        {
            let major = version
                .split('.')
                .next()
                .and_then(|major| major.parse().ok());
            if major.is_none_or(|major: u32| major > MAJOR) {
                return Err(failure::newer_layout(version));
            }
        }
        Ok(())
    }

    /// Returns the committed holds in this node's records that no longer have the node.
    pub(super) fn vanished(&self) -> Vec<HistoryEntry> {
        let alone = if self.is_ours() {
            None
        } else {
            vanished(|name| self.of_record(name), &self.record)
        };
        let over =
            |share: &&Share| !self.is_shared() || self.now.is_some_and(|now| !share.is_live(now));
        let shares = self
            .shares
            .iter()
            .filter(over)
            .filter_map(|share| vanished(|name| share.of(name), &share.0));
        alone.into_iter().chain(shares).collect()
    }

    fn of_record(&self, name: &str) -> Option<&str> {
        self.record
            .iter()
            .find(|(field, _)| field == name)
            .map(|(_, value)| value.as_str())
    }
}

/// The state of a lock on all nodes.
#[derive(Debug)]
pub(super) struct MajorityView {
    /// The holders with a majority of the nodes, or with a possible one if some nodes did not
    /// answer.
    pub holders: Vec<Holder>,
    /// The nodes that the holders have.
    pub held_on: Vec<usize>,
    /// When a majority of the nodes will be free by expiry.
    pub free_in: Option<Duration>,
    /// Whether the lock has no certain holder: an attempt is between its phases, or several share
    /// the nodes.
    pub transient: bool,
}

impl MajorityView {
    /// Merges the nodes' views; `None` for a node that did not answer.
    pub(super) fn of(seen: &[Option<NodeLock>], majority: usize) -> Self {
        let unknown = seen.iter().filter(|seen| seen.is_none()).count();
        let mut alone: Vec<(&str, Vec<HolderOnNode<'_>>)> = Vec::new();
        let mut shares: Vec<(String, Vec<HolderOnNode<'_>>)> = Vec::new();
        for (n, seen) in seen
            .iter()
            .enumerate()
            .filter_map(|(n, seen)| Some((n, seen.as_ref().filter(|seen| !seen.is_free())?)))
        {
            for share in seen.readers() {
                let left = seen
                    .now
                    .and_then(|now| u64::try_from(share.ends().saturating_sub(now)).ok())
                    .map(Duration::from_millis);
                let part = HolderOnNode {
                    n,
                    seen,
                    record: Some(&share.0),
                    left,
                };
                add(
                    &mut shares,
                    format!(
                        "{}:{}",
                        part.of("owner").unwrap_or_default(),
                        part.of("attempt").unwrap_or_default()
                    ),
                    part,
                );
            }
            if !seen.is_shared() {
                // A value that is no string was not read: its type stands for it.
                let value = if seen.kind == "string" {
                    seen.value.as_str()
                } else {
                    seen.kind.as_str()
                };
                let record = seen.is_ours().then_some(&*seen.record);
                add(
                    &mut alone,
                    value,
                    HolderOnNode {
                        n,
                        seen,
                        record,
                        left: seen.left(),
                    },
                );
            }
        }
        let enough = |parts: &Vec<HolderOnNode<'_>>| parts.len() + unknown >= majority;
        let largest = alone
            .into_iter()
            .map(|(_, parts)| parts)
            .max_by_key(Vec::len)
            .filter(enough);
        let mut readers: Vec<_> = shares
            .into_iter()
            .map(|(_, parts)| parts)
            .filter(enough)
            .collect();
        // Readers and a writer can't both hold the lock, whatever the silent nodes have.
        let most = readers.iter().map(Vec::len).max().unwrap_or_default();
        let (groups, mode) = match largest {
            Some(parts) if parts.len() >= most => (vec![parts], Mode::Exclusive),
            _ => (std::mem::take(&mut readers), Mode::Shared),
        };
        let mut held_on: Vec<usize> = groups.iter().flatten().map(|part| part.n).collect();
        held_on.sort_unstable();
        held_on.dedup();
        let mut holders: Vec<Holder> = groups
            .iter()
            .map(|parts| holder(parts, mode, majority))
            .collect();
        holders.sort_by_key(|holder| holder.fence);
        let transient = holders
            .iter()
            .all(|holder| !holder.foreign && holder.fence.is_none());
        let mut ends: Vec<_> = seen
            .iter()
            .flatten()
            .filter_map(|seen| Some(seen.left()?.max(seen.kept)))
            .collect();
        ends.sort_unstable();
        Self {
            holders,
            held_on,
            free_in: ends.get(majority - 1).copied(),
            transient,
        }
    }
}

fn add<'a, T: PartialEq>(
    groups: &mut Vec<(T, Vec<HolderOnNode<'a>>)>,
    of: T,
    part: HolderOnNode<'a>,
) {
    match groups.iter_mut().find(|(known, _)| *known == of) {
        Some((_, parts)) => parts.push(part),
        None => groups.push((of, vec![part])),
    }
}

/// A holder's part on one node.
struct HolderOnNode<'a> {
    n: usize,
    seen: &'a NodeLock,
    /// `None` for another program's lock.
    record: Option<&'a [(String, String)]>,
    left: Option<Duration>,
}

impl HolderOnNode<'_> {
    fn of(&self, name: &str) -> Option<&str> {
        self.record?
            .iter()
            .find(|(field, _)| field == name)
            .map(|(_, value)| value.as_str())
    }

    fn fence(&self) -> Option<Fence> {
        self.of("fence")?.parse().ok().map(Fence)
    }

    /// Returns the break of the hold.
    fn mark(&self) -> Option<Break> {
        serde_json::from_str(self.of("mark")?).ok()
    }

    fn ago(&self, field: &str) -> Option<Duration> {
        let then: i64 = self.of(field)?.parse().ok()?;
        Some(Duration::from_millis(
            u64::try_from(self.seen.now?.saturating_sub(then)).unwrap_or(0),
        ))
    }

    fn holds(&self) -> usize {
        let is_live = |(field, value): &&(String, String)| {
            let ends = value
                .split(':')
                .next()
                .and_then(|ends| ends.parse::<i64>().ok());
            field.starts_with("hold:")
                && ends.is_some_and(|ends| self.seen.now.is_none_or(|now| ends > now))
        };
        self.record
            .unwrap_or_default()
            .iter()
            .filter(is_live)
            .count()
    }
}

/// Returns the holder of these nodes, from its records on them.
fn holder(parts: &[HolderOnNode<'_>], mode: Mode, majority: usize) -> Holder {
    let mut ends: Vec<_> = parts.iter().filter_map(|part| part.left).collect();
    ends.sort_unstable_by(|a, b| b.cmp(a));
    // The hold lasts as long as it has a majority.
    let expires_in = ends.get(majority - 1).or(ends.last()).copied();
    let Some(ours) = parts
        .iter()
        .filter(|part| part.record.is_some())
        .max_by_key(|part| part.fence())
    else {
        let lasting = parts.first().is_some_and(|part| part.seen.is_no_lock());
        return foreign(mode, expires_in.filter(|_| !lasting));
    };
    let each = || parts.iter().filter(|part| part.record.is_some());
    Holder {
        permit: None,
        mode,
        metadata: ours
            .of("meta")
            .and_then(|json| serde_json::from_str(json).ok()),
        fence: ours.fence(),
        foreign: false,
        detached: ours.of("detached") == Some("1"),
        held_for: each().filter_map(|part| part.ago("since")).max(),
        renewed_ago: each().filter_map(|part| part.ago("renewed")).min(),
        expires_in,
        removal: None,
        holds: each()
            .map(|part| u32::try_from(part.holds()).unwrap_or(u32::MAX))
            .max()
            .unwrap_or(1)
            .max(1),
        broken: each().find_map(HolderOnNode::mark).map(|mark| Break {
            seen: each().any(|part| part.of("seen").is_some()),
            ..mark
        }),
    }
}

/// Returns an upper bound for the last published fence. A majority of the counters has each
/// published fence, and the counters of silent nodes may have any value.
pub(super) fn last_fence(mut known: Vec<u64>, unknown: usize, majority: usize) -> Option<Fence> {
    known.sort_unstable_by(|a, b| b.cmp(a));
    known
        .get(majority.saturating_sub(unknown).max(1) - 1)
        .copied()
        .map(Fence)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[allow(clippy::unnecessary_wraps)] // as the nodes have it
    fn node(attempt: &str, fence: Option<&str>, pttl: i64) -> Option<NodeLock> {
        let mut record = vec![
            ("v".into(), "1.0".into()),
            ("owner".into(), "me".into()),
            ("attempt".into(), attempt.into()),
        ];
        record.extend(fence.map(|fence| ("fence".into(), fence.into())));
        Some(NodeLock {
            now: Some(1000),
            pttl: Some(pttl),
            kind: "string".into(),
            value: format!("me:{attempt}"),
            record,
            ..NodeLock::default()
        })
    }

    #[allow(clippy::unnecessary_wraps)] // as the nodes have it
    fn free() -> Option<NodeLock> {
        Some(NodeLock {
            kind: "none".into(),
            pttl: Some(-2),
            ..NodeLock::default()
        })
    }

    fn of(nodes: &[Option<NodeLock>]) -> MajorityView {
        MajorityView::of(nodes, nodes.len() / 2 + 1)
    }

    #[test]
    fn a_majority_is_a_hold_and_a_minority_is_not() {
        let held = of(&[
            node("a", Some("7"), 300),
            node("a", Some("7"), 100),
            node("a", Some("7"), 200),
            free(),
            free(),
        ]);
        let holder = &held.holders[0];
        assert_eq!(
            (holder.fence, holder.expires_in),
            (Some(Fence(7)), Some(Duration::from_millis(100)))
        );
        assert_eq!(
            (held.held_on, held.free_in, held.transient),
            (vec![0, 1, 2], Some(Duration::from_millis(100)), false)
        );
        let left_over = of(&[
            node("a", Some("7"), 300),
            node("a", Some("7"), 100),
            free(),
            free(),
            free(),
        ]);
        assert!(left_over.holders.is_empty() && left_over.transient);
        assert_eq!(left_over.free_in, Some(Duration::ZERO));
    }

    #[test]
    fn silent_nodes_may_belong_to_the_holder() {
        let held = of(&[
            node("a", Some("7"), 300),
            node("a", Some("7"), 100),
            None,
            None,
            free(),
        ]);
        assert_eq!(
            (held.holders[0].fence, held.free_in),
            (Some(Fence(7)), Some(Duration::from_millis(300)))
        );
        assert!(
            of(&[node("a", Some("7"), 300), free(), free(), free(), None])
                .holders
                .is_empty()
        );
    }

    #[test]
    fn attempts_that_split_the_nodes_are_passing() {
        let split = of(&[
            node("a", None, 300),
            node("a", None, 300),
            node("b", None, 300),
            node("b", None, 300),
            node("c", None, 300),
        ]);
        assert!(split.holders.is_empty() && split.transient);
        let between = of(&[
            node("a", None, 300),
            node("a", None, 300),
            node("a", None, 300),
        ]);
        assert!(between.transient && between.holders[0].fence.is_none());
    }

    /// A node held by readers: (owner, attempt, fence, ms left) of each.
    #[allow(clippy::unnecessary_wraps)] // as the nodes have it
    fn shared(first: &str, readers: &[(&str, &str, Option<&str>, i64)]) -> Option<NodeLock> {
        let share = |(owner, attempt, fence, left): &(&str, &str, Option<&str>, i64)| {
            let mut share: Vec<(String, String)> = vec![
                ("owner".into(), (*owner).into()),
                ("attempt".into(), (*attempt).into()),
            ];
            share.push(("hold:1".into(), format!("{}:1", 1000 + left)));
            share.extend(fence.map(|fence| ("fence".into(), fence.into())));
            Share(share)
        };
        let value = format!("shared:{first}");
        let shares = readers.iter().map(share).collect();
        Some(NodeLock {
            now: Some(1000),
            pttl: Some(900),
            kind: "string".into(),
            shared_as: value.clone(),
            value,
            shares,
            ..NodeLock::default()
        })
    }

    #[test]
    fn each_reader_needs_a_majority_of_its_own() {
        let (one, other) = (("one", "a", Some("7"), 300), ("other", "b", Some("8"), 200));
        let seen = [
            shared("a", &[one, other]),
            shared("b", &[other, one]),
            shared("a", &[one]),
            free(),
            free(),
        ];
        let held = of(&seen);
        assert_eq!(
            held.holders
                .iter()
                .map(|holder| (holder.mode, holder.fence))
                .collect::<Vec<_>>(),
            [(Mode::Shared, Some(Fence(7)))]
        );
        assert_eq!(
            (held.holders[0].expires_in, held.held_on),
            (Some(Duration::from_millis(300)), vec![0, 1, 2])
        );
        let ended = ("one", "a", Some("7"), 0);
        let left = of(&[
            shared("a", &[ended, other]),
            shared("b", &[other]),
            shared("a", &[ended, other]),
            free(),
            None,
        ]);
        assert_eq!(
            left.holders
                .iter()
                .map(|holder| holder.fence)
                .collect::<Vec<_>>(),
            [Some(Fence(8))]
        );
        let taken_anew = Some(NodeLock {
            value: "shared:c".into(),
            ..shared("a", &[one]).unwrap()
        });
        assert!(
            of(&[taken_anew.clone(), taken_anew.clone(), taken_anew])
                .holders
                .iter()
                .all(|holder| holder.foreign)
        );
    }

    #[test]
    fn a_writer_and_readers_that_split_the_nodes_are_passing() {
        let reader = ("one", "a", None, 300);
        let split = of(&[
            shared("a", &[reader]),
            shared("a", &[reader]),
            node("w", None, 300),
            node("w", None, 300),
            free(),
        ]);
        assert!(split.holders.is_empty() && split.transient);
        let written = of(&[
            shared("a", &[reader]),
            node("w", Some("9"), 300),
            node("w", Some("9"), 300),
            None,
            None,
        ]);
        assert_eq!(
            written
                .holders
                .iter()
                .map(|holder| holder.mode)
                .collect::<Vec<_>>(),
            [Mode::Exclusive]
        );
    }

    #[test]
    fn the_shown_fence_is_never_below_a_published_one() {
        assert_eq!(last_fence(vec![9, 5, 5, 5, 1], 0, 3), Some(Fence(5)));
        assert_eq!(last_fence(vec![2, 5, 1], 2, 3), Some(Fence(5)));
        assert_eq!(last_fence(vec![], 1, 2), None);
    }
}
