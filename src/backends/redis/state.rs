//! Converts a lock's stored data to the core's types.

use std::{collections::BTreeMap, time::Duration};

use redis::Value;

use super::{failure, reply};
use crate::lock::{
    Break, Fence, Holder, Metadata, Mode, Result, Waiter, document::holder::read_mode,
};

/// The newest layout that this version can read, up to any minor version.
pub(in crate::backends) const MAJOR: u32 = 1;

/// The silence after which a waiter counts as gone.
const WAITER_GONE_MS: i64 = 15_000;

/// The most fields of a lock, or holders, that are read.
const SOME: usize = 16;

/// A lock as it was at one moment.
pub(super) struct LockSnapshot {
    /// The server's time in ms; `None` without the right to read it.
    pub now: Option<i64>,
    /// The lock's remaining TTL, as `PTTL` returns it.
    pub pttl: Option<i64>,
    /// Some fields of the lock's hash; enough to find its owner.
    pub lock: Vec<(String, String)>,
    /// The number of all fields.
    pub lock_len: usize,
    /// dlock's record next to the lock.
    pub record: Vec<(String, String)>,
    /// All shares or some of them, ended ones included.
    pub shares: Vec<Share>,
}

/// The record of a share. Its fields are those of a lock's record.
#[derive(Clone, Debug)]
pub(in crate::backends) struct Share(pub Vec<(String, String)>);

/// Reads a list of shares as JSON. A share that can't be parsed, such as a newer version's, is left
/// out.
pub(in crate::backends) fn read_shares(reply: &Value) -> Vec<Share> {
    let read =
        |json: &Value| serde_json::from_str::<BTreeMap<String, String>>(&reply::text(json)?).ok();
    reply::items(reply)
        .unwrap_or_default()
        .iter()
        .filter_map(read)
        .map(|share| Share(share.into_iter().collect()))
        .collect()
}

impl Share {
    pub(in crate::backends) fn of(&self, name: &str) -> Option<&str> {
        self.0
            .iter()
            .find(|(field, _)| field == name)
            .map(|(_, value)| value.as_str())
    }

    /// Returns the share's field in the lock.
    pub(super) fn field(&self) -> String {
        let kind = if self.of("kind") == Some("permits") {
            ":permit"
        } else {
            ""
        };
        format!("{}:1{kind}", self.of("owner").unwrap_or_default())
    }

    pub(in crate::backends) fn ends(&self) -> i64 {
        let holds = self
            .0
            .iter()
            .filter(|(field, _)| field.starts_with("hold:"));
        holds
            .filter_map(|(_, value)| value.split(':').next()?.parse().ok())
            .max()
            .unwrap_or_default()
    }

    pub(in crate::backends) fn is_live(&self, now: i64) -> bool {
        self.ends() > now
    }
}

impl LockSnapshot {
    /// Returns the holders; empty if the lock is free.
    ///
    /// # Errors
    /// If the record has a newer layout, or if the hash is no lock.
    pub(super) fn holders(&self) -> Result<Vec<Holder>> {
        if self.lock.is_empty() {
            // Another library let the lock end under readers. Their shares still keep others out
            // until they end.
            return Ok(self
                .shares
                .iter()
                .filter(|share| self.is_live(share))
                .map(|share| self.share_holder(share))
                .collect());
        }
        let owner = self.of_record("owner");
        let is_owners = |owner: &str| {
            self.lock
                .iter()
                .any(|(field, _)| *field == format!("{owner}:1:write"))
        };
        if let Some(version) = self.of_record("v").filter(|_| owner.is_none_or(is_owners)) {
            let major = version
                .split('.')
                .next()
                .and_then(|major| major.parse().ok());
            if major.is_none_or(|major: u32| major > MAJOR) {
                return Err(failure::newer_layout(version));
            }
        }
        if owner.is_some_and(is_owners) {
            return Ok(vec![self.own_holder(&self.record)]);
        }
        let shared = self
            .lock
            .iter()
            .any(|(field, value)| field == "mode" && value == "read");
        if shared
            || self
                .lock
                .iter()
                .any(|(field, value)| field == "mode" && value == "permits")
        {
            return self.sharing();
        }
        if !self.is_redisson_shaped() {
            return Err(failure::no_lock("a hash"));
        }
        let has_mode = self.lock.iter().any(|(field, _)| field == "mode");
        let count = (self.lock_len - usize::from(has_mode)).max(1);
        let mode = if shared {
            Mode::Shared
        } else {
            Mode::Exclusive
        };
        let entered = self
            .lock
            .iter()
            .filter(|(field, _)| field != "mode")
            .filter_map(|(_, count)| count.parse().ok());
        let holds = if count == 1 {
            entered.max().unwrap_or(1)
        } else {
            1
        };
        Ok(vec![
            Holder {
                holds,
                ..foreign(mode, self.expires_in())
            };
            count.min(16)
        ])
    }

    /// Returns when the lock expires; `None` if it has no TTL.
    pub(super) fn expires_in(&self) -> Option<Duration> {
        self.pttl
            .and_then(|ms| u64::try_from(ms).ok())
            .map(Duration::from_millis)
    }

    /// Returns the holders of shares: dlock's, and other libraries' readers.
    fn sharing(&self) -> Result<Vec<Holder>> {
        // Only some fields of a large hash are known.
        let complete = self.lock.len() >= self.lock_len && self.lock_len < SOME;
        let there = |share: &&Share| {
            !complete || self.lock.iter().any(|(field, _)| *field == share.field())
        };
        let live = self
            .shares
            .iter()
            .filter(there)
            .filter(|share| self.is_live(share));
        let mut holders: Vec<Holder> = live.map(|share| self.share_holder(share)).collect();
        let known = self.shares.iter().filter(there).count();
        let theirs = |(field, _): &&(String, String)| {
            field != "mode" && !self.shares.iter().any(|share| share.field() == *field)
        };
        let others = if complete {
            self.lock.iter().filter(theirs).count()
        } else {
            self.lock_len.saturating_sub(known + 1)
        };
        // Only dlock has permits.
        let permits = self
            .lock
            .iter()
            .any(|(field, value)| field == "mode" && value == "permits");
        let fits = |field: &(String, String)| {
            if permits {
                field.0.ends_with(":1:permit")
            } else {
                is_redissons(field)
            }
        };
        if complete && self.lock.iter().filter(theirs).any(|field| !fits(field)) {
            return Err(failure::no_lock("a hash"));
        }
        holders.extend(vec![
            foreign(Mode::Shared, self.expires_in());
            others.min(SOME)
        ]);
        if holders.is_empty() && self.shares.is_empty() {
            return Err(failure::no_lock("a hash"));
        }
        Ok(holders)
    }

    fn is_live(&self, share: &Share) -> bool {
        self.now.is_none_or(|now| share.is_live(now))
    }

    fn share_holder(&self, share: &Share) -> Holder {
        let expires_in = self
            .now
            .and_then(|now| u64::try_from(share.ends().saturating_sub(now)).ok())
            .map(Duration::from_millis);
        let number = |name| share.of(name).and_then(|number| number.parse::<u32>().ok());
        let (mode, permit) = number("most").map_or((Mode::Shared, None), |most| {
            (Mode::Permits(most), number("permit"))
        });
        Holder {
            mode,
            permit,
            expires_in,
            ..self.own_holder(&share.0)
        }
    }

    fn own_holder(&self, record: &[(String, String)]) -> Holder {
        let now = self.now;
        let of = |name: &str| {
            record
                .iter()
                .find(|(field, _)| field == name)
                .map(|(_, value)| value.as_str())
        };
        let ago = |field| {
            let then: i64 = of(field)?.parse().ok()?;
            Some(Duration::from_millis(
                u64::try_from(now?.saturating_sub(then)).unwrap_or(0),
            ))
        };
        let live = record.iter().filter(|(field, value)| {
            let ends = value
                .split(':')
                .next()
                .and_then(|ends| ends.parse::<i64>().ok());
            field.starts_with("hold:") && ends.is_some_and(|ends| now.is_none_or(|now| ends > now))
        });
        Holder {
            permit: None,
            mode: Mode::Exclusive,
            metadata: of("meta").and_then(|json| serde_json::from_str(json).ok()),
            fence: of("fence").and_then(|fence| fence.parse().ok()).map(Fence),
            foreign: false,
            detached: of("detached") == Some("1"),
            held_for: ago("since"),
            renewed_ago: ago("renewed"),
            expires_in: self.expires_in(),
            removal: None,
            holds: u32::try_from(live.count()).unwrap_or(u32::MAX).max(1),
            broken: of("mark")
                .and_then(|mark| serde_json::from_str(mark).ok())
                .map(|mark: Break| Break {
                    seen: of("seen").is_some(),
                    ..mark
                }),
        }
    }

    fn of_record(&self, name: &str) -> Option<&str> {
        self.record
            .iter()
            .find(|(field, _)| field == name)
            .map(|(_, value)| value.as_str())
    }

    /// Whether the hash is like Redisson's: `mode`, and a field `<id>:<thread>` with a count for
    /// each holder.
    fn is_redisson_shaped(&self) -> bool {
        self.lock.iter().all(|field| {
            field.0 == "mode" && matches!(field.1.as_str(), "read" | "write") || is_redissons(field)
        }) && self.lock.iter().any(|(field, _)| field != "mode")
    }
}

/// Whether the field is Redisson's `<id>:<thread>`, with the number of times that the thread
/// entered the lock.
fn is_redissons((field, value): &(String, String)) -> bool {
    let (id, thread) = field
        .strip_suffix(":write")
        .unwrap_or(field)
        .rsplit_once(':')
        .unwrap_or_default();
    !id.is_empty()
        && thread.parse::<u64>().is_ok()
        && value.parse::<u32>().is_ok_and(|count| count > 0)
}

/// Returns a foreign holder, of which only the mode and the expiry are known.
pub(in crate::backends) fn foreign(mode: Mode, expires_in: Option<Duration>) -> Holder {
    Holder {
        permit: None,
        mode,
        metadata: None,
        fence: None,
        foreign: true,
        detached: false,
        held_for: None,
        renewed_ago: None,
        expires_in,
        removal: None,
        holds: 1,
        broken: None,
    }
}

/// Returns the waiters, earliest first. `queue` has each exclusive and unfair waiter's hold with its
/// arrival in µs, `line` those of all others; `infos` is the hash of waiters.
pub(in crate::backends) fn waiters(
    now: Option<i64>,
    [queue, line]: [Vec<(String, String)>; 2],
    infos: &[(String, String)],
) -> Vec<Waiter> {
    let plain = queue.into_iter().map(|one| (one, Some(Mode::Exclusive)));
    let mut queue: Vec<_> = plain
        .chain(line.into_iter().map(|one| (one, None)))
        .collect();
    queue.sort_by_key(|((_, arrival), _)| arrival.parse::<i64>().ok());
    let mut waiters = Vec::new();
    for ((hold, arrival), mode) in queue {
        let Some((seen, json)) = infos
            .iter()
            .find(|(who, _)| *who == hold)
            .and_then(|(_, infos)| infos.split_once(':'))
        else {
            continue;
        };
        let seen: Option<i64> = seen.parse().ok();
        if now
            .zip(seen)
            .is_none_or(|(now, seen)| now.saturating_sub(seen) > WAITER_GONE_MS)
        {
            continue;
        }
        let waiting_for = now
            .zip(arrival.parse::<i64>().ok())
            .map(|(now, since)| u64::try_from(now.saturating_sub(since / 1000)).unwrap_or(0));
        let metadata: Option<Metadata> = serde_json::from_str(json).ok();
        // Only a fair request has this field.
        let wants = format!("as:{hold}");
        let wants = infos.iter().find(|(field, _)| *field == wants);
        waiters.push(Waiter {
            metadata,
            mode: wants.map_or(mode, |(_, wants)| read_mode(wants)),
            waiting_for: waiting_for.map(Duration::from_millis),
            in_order: wants.is_some(),
        });
    }
    waiters
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::Kind;

    fn snapshot(lock: &[(&str, &str)], record: &[(&str, &str)]) -> LockSnapshot {
        let owned = |pairs: &[(&str, &str)]| {
            pairs
                .iter()
                .map(|(a, b)| ((*a).to_owned(), (*b).to_owned()))
                .collect::<Vec<_>>()
        };
        LockSnapshot {
            now: Some(10_000),
            pttl: Some(500),
            lock_len: lock.len(),
            lock: owned(lock),
            record: owned(record),
            shares: Vec::new(),
        }
    }

    const FIELD: (&str, &str) = ("0b0e0d52-9f1f-4a43-9c80-0d3a6a3a0001:1:write", "1");
    const OWNER: (&str, &str) = ("owner", "0b0e0d52-9f1f-4a43-9c80-0d3a6a3a0001");

    #[test]
    fn minor_versions_are_read_and_newer_majors_refused() {
        let lock = [("mode", "write"), FIELD];
        let of = |version| {
            snapshot(
                &lock,
                &[("v", version), OWNER, ("since", "9000"), ("new-field", "x")],
            )
            .holders()
        };
        let holder = of("1.7").unwrap().remove(0);
        assert_eq!(
            (holder.foreign, holder.held_for),
            (false, Some(Duration::from_secs(1)))
        );
        for version in ["2.0", "10.0", "?"] {
            assert_eq!(of(version).unwrap_err().kind, Kind::Layout, "{version}");
        }
    }

    #[test]
    fn a_record_of_another_holder_is_ignored() {
        let holder = snapshot(
            &[("mode", "write"), ("77:31:write", "2")],
            &[("v", "1.0"), OWNER, ("fence", "9")],
        )
        .holders()
        .unwrap()
        .remove(0);
        assert_eq!(
            (holder.foreign, holder.fence, holder.holds),
            (true, None, 2)
        );
    }

    #[test]
    fn a_foreign_hash_is_an_error() {
        for lock in [
            vec![("name", "ana")],
            vec![("mode", "read")],
            vec![("mode", "dark"), ("a:1", "1")],
            vec![("a:1", "x")],
        ] {
            assert_eq!(
                snapshot(&lock, &[]).holders().unwrap_err().kind,
                Kind::Data,
                "{lock:?}"
            );
        }
    }

    #[test]
    fn readers_are_counted() {
        let readers = snapshot(&[("mode", "read"), ("u:1", "1"), ("u:2", "3")], &[])
            .holders()
            .unwrap();
        assert_eq!((readers.len(), readers[0].mode), (2, Mode::Shared));
    }
}
