//! A lock's history: ended holds with their outcomes, and skipped runs.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{Break, Fence, Metadata, RunRecord, RunState};

/// How many runs of each lock a store keeps, and the same number again of runs that ended badly.
pub const REMEMBERED: usize = 100;

/// The longest headline of a run without a reason, in characters.
const HEADLINE: usize = 200;

/// For how many hosts per lock a store counts skips: those that skipped last.
pub const SKIPPING_HOSTS: usize = 256;

/// Returns those of a lock's skipping hosts that the store forgets. Each comes with the time of its
/// last skip.
pub fn forgotten_hosts<T>(mut hosts: Vec<(Option<u64>, T)>) -> Vec<T> {
    hosts.sort_by_key(|(last_ms, _)| std::cmp::Reverse(*last_ms));
    hosts
        .drain(SKIPPING_HOSTS.min(hosts.len())..)
        .map(|(_, host)| host)
        .collect()
}

/// How a hold ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// The command ended with this status.
    Exited(u8),
    /// This signal ended the command.
    Signalled(i32),
    /// The command could not be started.
    NotStarted,
    /// The holder released the lock without reporting an outcome.
    Released,
    /// Never released: the lease ran out, or the holder's process died.
    Expired,
    /// The holder found that it had lost the lock, or could not be sure of it, and stopped.
    Lost,
    /// Another client took the lock away.
    Broken,
    /// Not the hold of a run: the run records of the lock were removed.
    Forgotten,
    /// An end that only a newer dlock knows, as text.
    Other(String),
}

impl End {
    /// Whether a person should look at this run the next morning.
    pub const fn is_bad(&self) -> bool {
        !matches!(self, Self::Exited(0) | Self::Released | Self::Forgotten)
    }

    /// How much the writer of an entry knew. Other clients write that a hold expired, or was marked
    /// for a break and not released; where only a part of the store missed the release, they are
    /// wrong.
    const fn certainty(&self) -> u8 {
        match self {
            Self::Expired => 0,
            Self::Broken => 1,
            _ => 2,
        }
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exited(0) => f.write_str("ok"),
            Self::Exited(status) => write!(f, "exit {status}"),
            Self::Signalled(signal) => write!(f, "signal {signal}"),
            Self::NotStarted => f.write_str("not started"),
            Self::Released => f.write_str("released"),
            Self::Expired => f.write_str("expired"),
            Self::Lost => f.write_str("lost"),
            Self::Broken => f.write_str("broken"),
            Self::Forgotten => f.write_str("forgotten"),
            Self::Other(text) => f.write_str(text),
        }
    }
}

impl From<&str> for End {
    fn from(text: &str) -> Self {
        let numbered = |prefix: &str| text.strip_prefix(prefix)?.strip_prefix(' ');
        match text {
            "ok" => Self::Exited(0),
            "not started" => Self::NotStarted,
            "released" => Self::Released,
            "expired" => Self::Expired,
            "lost" => Self::Lost,
            "broken" => Self::Broken,
            "forgotten" => Self::Forgotten,
            _ => numbered("exit")
                .and_then(|status| status.parse().ok().map(Self::Exited))
                .or_else(|| {
                    numbered("signal").and_then(|signal| signal.parse().ok().map(Self::Signalled))
                })
                .unwrap_or_else(|| Self::Other(text.to_owned())),
        }
    }
}

impl Serialize for End {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for End {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self::from(&*String::deserialize(deserializer)?))
    }
}

/// What is known of a hold at its end besides its [`End`]. Stores keep it as one JSON value and
/// don't look into it; for a broken hold they may keep the JSON of its [`Break`] instead.
///
/// Unknown fields are kept out and missing ones are `None`, so that versions can differ.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunOutcome {
    /// The operator who ended the hold: `user@host`. A claim, never trusted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// Why it ended so, in a few words, if that is not plain; or the operator's reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// The last lines of the command's output.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
    /// The CPU time of the command and its descendants, in ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_ms: Option<u64>,
    /// The peak memory (resident set) of the largest of these processes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_rss_bytes: Option<u64>,
}

impl RunOutcome {
    /// Returns the outcome with this reason alone.
    pub fn because(why: impl Into<String>) -> Self {
        Self {
            why: Some(why.into()),
            ..Self::default()
        }
    }

    /// Returns why the hold ended so: a headline, then the last lines of the command's output.
    /// Without a reason, the last line is the headline.
    pub fn reason(&self) -> Option<String> {
        let why = match &self.by {
            Some(by) => Some(Break::new(by.clone(), self.why.clone()).to_string()),
            None => self.why.clone(),
        };
        let Some(lines) = &self.output else {
            return why;
        };
        let last = lines.lines().next_back().unwrap_or_default().trim();
        let headline = why.unwrap_or_else(|| last.chars().take(HEADLINE).collect());
        Some(if headline == *lines {
            headline
        } else {
            format!("{headline}\n{lines}")
        })
    }
}

impl From<&Break> for RunOutcome {
    fn from(mark: &Break) -> Self {
        Self {
            by: Some(mark.by.clone()),
            why: mark.why.clone(),
            ..Self::default()
        }
    }
}

/// Reads an outcome. One that can't be read is left out, since no decision depends on it.
fn read_outcome<'de, D: Deserializer<'de>>(from: D) -> Result<Option<RunOutcome>, D::Error> {
    Ok(serde_json::from_value(serde_json::Value::deserialize(from)?).ok())
}

/// An ended hold, as stores keep it: a line of JSON, whose short names are part of the layout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryEntry {
    /// The hold's fence, if known.
    #[serde(rename = "f", default, skip_serializing_if = "Option::is_none")]
    pub fence: Option<Fence>,
    /// When the hold was granted, in ms since 1970 by the store's clock, or by its host's if the
    /// store has none.
    #[serde(rename = "s", default, skip_serializing_if = "Option::is_none")]
    pub started_ms: Option<u64>,
    /// When the hold ended, by the same clock; for an expired lease, the end of the lease.
    #[serde(rename = "e", default, skip_serializing_if = "Option::is_none")]
    pub ended_ms: Option<u64>,
    /// How the hold ended.
    #[serde(rename = "x")]
    pub end: End,
    /// What else is known of its end.
    #[serde(
        rename = "o",
        default,
        deserialize_with = "read_outcome",
        skip_serializing_if = "Option::is_none"
    )]
    pub outcome: Option<RunOutcome>,
    /// The holder.
    #[serde(rename = "m", default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Metadata>,
}

impl HistoryEntry {
    /// Returns the entry of a hold that was never released, without its times: it was broken if it
    /// has a mark, and else it expired.
    pub fn unreleased(
        fence: Option<Fence>,
        mark: Option<&Break>,
        metadata: Option<Metadata>,
    ) -> Self {
        Self {
            fence,
            started_ms: None,
            ended_ms: None,
            end: mark.map_or(End::Expired, |_| End::Broken),
            outcome: mark.map(Into::into),
            metadata,
        }
    }
}

/// How often a host skipped a run because of this lock, and the last reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SkipCount {
    /// The host.
    pub host: String,
    /// The number of skips.
    pub count: u64,
    /// When the count began, in ms since 1970 by the store's clock.
    pub since_ms: Option<u64>,
    /// When the last skip happened, by the same clock.
    pub last_ms: Option<u64>,
    /// The last reason: `busy`, or the option that caused the skip.
    pub reason: String,
}

/// The records that a store keeps of a lock besides its holders.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    /// Ended holds, the latest first: the last [`REMEMBERED`] ones, and the last [`REMEMBERED`]
    /// that ended badly.
    pub past: Vec<HistoryEntry>,
    /// The hosts that skipped runs.
    pub skips: Vec<SkipCount>,
    /// The starts that later runs are judged by.
    pub record: RunRecord,
}

impl History {
    /// Returns a history with each hold once, the latest first. Of several entries of one hold the
    /// one whose writer knew most counts, and of equal ones the first.
    pub fn new(found: Vec<HistoryEntry>, mut skips: Vec<SkipCount>) -> Self {
        let mut past: Vec<HistoryEntry> = Vec::new();
        for one in found {
            match past
                .iter_mut()
                .find(|known| known.fence.is_some() && known.fence == one.fence)
            {
                Some(known) => {
                    if known.end.certainty() < one.end.certainty() {
                        *known = one;
                    }
                }
                None => past.push(one),
            }
        }
        // Sorts by fence, which is the order of the grants; stable for entries without one.
        past.sort_by(|a, b| match (a.fence, b.fence) {
            (Some(a), Some(b)) => b.cmp(&a),
            _ => b.started_ms.cmp(&a.started_ms),
        });
        skips.sort_by(|a, b| a.host.cmp(&b.host));
        Self {
            past,
            skips,
            record: RunRecord::default(),
        }
    }
}

/// How much a release covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Only this hold; nested holds of the same owner keep the lock.
    Hold,
    /// This hold and all holds nested in it, whose processes are known to be gone.
    Tree,
}

/// The release info: the data that a release sends to the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReleaseInfo {
    /// How much is released.
    pub scope: Scope,
    /// How the hold ended; `None` if nothing was done under it, so that the history gets no entry.
    pub end: Option<End>,
    /// What else is known of its end.
    pub outcome: Option<RunOutcome>,
    /// The time of the releasing host, in ms since 1970, for stores without a clock.
    pub at_ms: Option<u64>,
    /// How long the lock was held, by the host's clock, for stores without one; `None` if another
    /// process took it.
    pub held_ms: Option<u64>,
    /// The outcome of the start recorded for the hold ([`RunRecord::end`]). The store gets it even
    /// if nested holds go on; `None` if another client reports it.
    pub run_state: Option<RunState>,
}

impl From<Scope> for ReleaseInfo {
    fn from(scope: Scope) -> Self {
        Self {
            scope,
            end: Some(End::Released),
            outcome: None,
            at_ms: None,
            held_ms: None,
            run_state: None,
        }
    }
}

impl ReleaseInfo {
    /// The release of a grant that was never used.
    pub const UNDO: Self = Self {
        scope: Scope::Hold,
        end: None,
        outcome: None,
        at_ms: None,
        held_ms: None,
        run_state: Some(RunState::Cancelled),
    };

    /// Whether the store needs this release even if the lock becomes free without it: for the run's
    /// outcome, or the run record.
    pub fn is_reported(&self) -> bool {
        self.end
            .as_ref()
            .is_some_and(|end| self.run_state.is_some() || *end != End::Released)
    }
}

/// A note for a lock's history from a client that does not hold the lock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant, reason = "few are made, and none is kept")]
pub enum Note {
    /// A host found the lock taken, and skipped the run.
    Skipped {
        /// The host.
        host: String,
        /// The reason: `busy`, or the option that caused the skip.
        reason: String,
        /// The time of that host, in ms since 1970, for stores without a clock.
        at_ms: u64,
    },
    /// The holder lost the hold. This replaces the end that other clients assumed.
    Lost(HistoryEntry),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outcome_survives_a_round_trip() {
        let ends = [
            End::Exited(0),
            End::Exited(3),
            End::Signalled(9),
            End::NotStarted,
            End::Released,
            End::Expired,
            End::Lost,
            End::Broken,
            End::Forgotten,
            End::Other("exit 300".into()),
            End::Other("skipped a leap second".into()),
        ];
        for end in ends {
            assert_eq!(End::from(&*end.to_string()), end);
            assert_eq!(
                serde_json::from_str::<End>(&serde_json::to_string(&end).unwrap()).unwrap(),
                end
            );
        }
    }

    #[test]
    fn an_unknown_outcome_is_left_out() {
        let read = |outcome: &str| {
            let line = format!(r#"{{"f":7,"x":"exit 3","o":{outcome}}}"#);
            let entry: HistoryEntry = serde_json::from_str(&line).unwrap();
            assert_eq!((entry.fence, entry.end), (Some(Fence(7)), End::Exited(3)));
            entry.outcome
        };
        let newer = r#"{"why":"so","since_then":[1]}"#;
        assert_eq!(read(newer), Some(RunOutcome::because("so")));
        for damaged in ["null", "7", "[7]", r#"{"why":7}"#] {
            assert_eq!(read(damaged), None, "{damaged}");
        }
    }

    #[test]
    fn the_headline_comes_first() {
        let of = |outcome: RunOutcome, output: Option<&str>| {
            let output = output.map(Into::into);
            RunOutcome { output, ..outcome }
                .reason()
                .unwrap_or_default()
        };
        let (none, because) = (RunOutcome::default, |why: &str| RunOutcome::because(why));
        let by = |why: Option<&str>| {
            RunOutcome::from(&Break::new("ana@ops1".into(), why.map(Into::into)))
        };
        assert_eq!(of(none(), Some("no host")), "no host");
        assert_eq!(of(none(), Some("a\nno host")), "no host\na\nno host");
        assert_eq!(
            of(because("max runtime 1s"), Some("a")),
            "max runtime 1s\na"
        );
        assert_eq!(of(because("w"), None), "w");
        assert_eq!(of(by(None), None), "by ana@ops1");
        assert_eq!(of(by(Some("NFS")), Some("a")), "by ana@ops1: \"NFS\"\na");
    }

    #[test]
    fn the_mark_of_a_break_is_an_outcome() {
        let mark = Break::new("ana@ops1".into(), Some("NFS".into()));
        let json = serde_json::to_string(&mark).unwrap();
        assert_eq!(
            serde_json::from_str::<RunOutcome>(&json).unwrap(),
            RunOutcome::from(&mark)
        );
    }

    #[test]
    fn a_hold_is_listed_once_and_the_latest_comes_first() {
        let past = |fence, end| HistoryEntry {
            fence: Some(Fence(fence)),
            started_ms: None,
            ended_ms: None,
            end,
            outcome: None,
            metadata: None,
        };
        let found = vec![
            past(3, End::Lost),
            past(5, End::Exited(0)),
            past(3, End::Expired),
            past(1, End::Exited(1)),
            past(5, End::Exited(0)),
        ];
        let history = History::new(found, vec![]);
        assert_eq!(
            history.past,
            [
                past(5, End::Exited(0)),
                past(3, End::Lost),
                past(1, End::Exited(1))
            ]
        );
        for ends in [
            [End::Broken, End::Expired, End::Released],
            [End::Released, End::Broken, End::Expired],
        ] {
            assert_eq!(
                History::new(ends.map(|end| past(1, end)).to_vec(), vec![]).past,
                [past(1, End::Released)]
            );
        }
        assert_eq!(
            History::new(vec![past(1, End::Expired), past(1, End::Broken)], vec![]).past,
            [past(1, End::Broken)]
        );
    }

    #[test]
    fn a_run_that_a_person_should_look_at_is_bad() {
        for good in [End::Exited(0), End::Released, End::Forgotten] {
            assert!(!good.is_bad(), "{good}");
        }
        for bad in [
            End::Exited(1),
            End::Signalled(9),
            End::NotStarted,
            End::Expired,
            End::Lost,
            End::Broken,
            End::Other("x".into()),
        ] {
            assert!(bad.is_bad(), "{bad}");
        }
    }

    #[test]
    fn a_plain_release_without_an_outcome_need_not_reach_the_store() {
        let plain = ReleaseInfo::from(Scope::Hold);
        assert!(!plain.is_reported() && !ReleaseInfo::UNDO.is_reported());
        assert!(
            ReleaseInfo {
                end: Some(End::Lost),
                ..plain.clone()
            }
            .is_reported()
        );
        assert!(
            ReleaseInfo {
                run_state: Some(RunState::Ok),
                ..plain
            }
            .is_reported()
        );
    }
}
