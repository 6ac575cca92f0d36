//! The names of a lock's keys in Redis.
//!
//! A lock's own name has no braces, since keys are encoded without them. Every other name has
//! braces, so none can be taken for a lock. All have the lock's name as their hash tag, so that a
//! cluster keeps them together.

use crate::lock::{Encoding, Error, Key, Kind, Namespace, Result};

/// The encoding of keys in Redis. Braces are encoded, since they would set another hash tag.
pub(in crate::backends) const ENCODING: Encoding = Encoding::new(b"{}");

/// The names of all Redis keys and channels of one lock.
pub(in crate::backends) struct RedisNames {
    /// The lock itself: a hash in the shape of Redisson's write lock.
    pub lock: String,
    /// The fence counter. It is Redisson's and never expires.
    pub fence: String,
    /// dlock's record of the hold.
    pub record: String,
    /// The unfair exclusive waiters, in order of arrival.
    pub queue: String,
    /// The waiters' metadata, and when each was last seen.
    pub waiters: String,
    /// The history: finished holds.
    pub runs: String,
    /// The history entries that ended badly.
    pub bad_runs: String,
    /// The skip count of each host.
    pub skips: String,
    /// The run record.
    pub starts: String,
    /// The shares: readers and permits.
    pub shares: String,
    /// The end of each share.
    pub ends: String,
    /// The waiters for a share, and all fair waiters, in order of arrival.
    pub ordered_queue: String,
    /// The fair waiters of `ordered_queue`, except readers.
    pub fair: String,
    /// The fair readers of `ordered_queue`.
    pub fair_readers: String,
    /// The list on which the waiters of `queue` block.
    pub wake: String,
    /// The prefix of the lists on which the waiters of `ordered_queue` block, each on its own.
    pub wakes: String,
    /// The list on which all waiters of `ordered_queue` block too.
    pub wake_ordered: String,
    /// The prefix of the strings against late requests, one for each hold whose request went
    /// unanswered.
    pub late: String,
    /// On Tair, the waiters for a share or in fair order, and the offers to them.
    pub tair_queue: String,
    /// The channel of waiters for Redisson's plain lock.
    pub channel: String,
    /// The channel of waiters for Redisson's read-write lock.
    pub rw_channel: String,
    /// The queue of Redisson's fair lock, a list; its waiters listen on `<channel>:<waiter>`.
    pub fair_queue: String,
}

impl RedisNames {
    /// Returns the names of `key`'s lock.
    ///
    /// # Errors
    /// In the empty namespace, for a key that has to be encoded: other libraries use the lock under
    /// another name, so they and dlock would not exclude each other.
    pub(in crate::backends) fn new(namespace: &Namespace, key: &Key) -> Result<Self> {
        let encoded = ENCODING.encode(key);
        if namespace.as_str().is_empty() && encoded != key.as_str() {
            return Err(Error::new(Kind::Usage, "without a namespace a key can't have braces, percent signs or control characters")
                .hint("other libraries store such a lock under another name; choose another key, or a --namespace")
                .key(key));
        }
        let lock = prefix(namespace) + &encoded;
        let side = |what: &str| match namespace.as_str() {
            "" => format!("{{{lock}}}:dlock-{what}"),
            namespace => format!("{namespace}:{{{lock}}}:{what}"),
        };
        Ok(Self {
            fence: format!("redisson_lock_token:{{{lock}}}"),
            record: side("record"),
            queue: side("queue"),
            waiters: side("waiters"),
            runs: side("runs"),
            bad_runs: side("bad-runs"),
            skips: side("skips"),
            starts: side("starts"),
            shares: side("shares"),
            ends: side("ends"),
            ordered_queue: side("line"),
            fair: side("fair"),
            fair_readers: side("fair-readers"),
            wake: side("wake"),
            wakes: side("wake:"),
            wake_ordered: side("wake-line"),
            late: side("late:"),
            tair_queue: side("turns"),
            channel: format!("redisson_lock__channel:{{{lock}}}"),
            rw_channel: format!("redisson_rwlock:{{{lock}}}"),
            fair_queue: format!("redisson_lock_queue:{{{lock}}}"),
            lock,
        })
    }
}

/// Returns the prefix of all lock names of a namespace.
pub(in crate::backends) fn prefix(namespace: &Namespace) -> String {
    match namespace.as_str() {
        "" => String::new(),
        namespace => format!("{namespace}:"),
    }
}

/// Returns the key whose lock is stored as `name`; `None` if `name` is no lock's name in this
/// namespace.
pub(in crate::backends) fn key_of(namespace: &Namespace, name: &str) -> Option<Key> {
    let key = ENCODING.decode(name.strip_prefix(&prefix(namespace))?)?;
    RedisNames::new(namespace, &key).is_ok().then_some(key)
}

/// Returns the prefix of the names next to the locks whose keys begin with `start`.
pub(in crate::backends) fn side_start(namespace: &Namespace, start: &str) -> String {
    let prefix = prefix(namespace);
    format!("{prefix}{{{prefix}{}", ENCODING.encode_str(start))
}

/// Returns the lock's key of a name next to the lock, and the kind of data, such as `runs` or
/// `starts`.
pub(in crate::backends) fn side_of<'a>(
    namespace: &Namespace,
    name: &'a str,
) -> Option<(Key, &'a str)> {
    let (lock, what) = name
        .strip_prefix(&prefix(namespace))?
        .strip_prefix('{')?
        .split_once("}:")?;
    let what = if namespace.as_str().is_empty() {
        what.strip_prefix("dlock-")?
    } else {
        what
    };
    Some((key_of(namespace, lock)?, what))
}

/// Whether a kind of data, as returned by [`side_of`], describes runs.
pub(in crate::backends) fn is_run_data(what: &str) -> bool {
    ["record", "runs", "bad-runs", "skips", "starts"].contains(&what) || what.starts_with("starts-")
}

/// Returns a pattern for `SCAN` that matches exactly the names that begin with `start`, taken
/// literally.
pub(in crate::backends) fn pattern(start: &str) -> String {
    let mut pattern = String::with_capacity(start.len() + 1);
    for c in start.chars() {
        if matches!(c, '*' | '?' | '[' | ']' | '^' | '-' | '\\') {
            pattern.push('\\');
        }
        pattern.push(c);
    }
    pattern + "*"
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sides(of: &RedisNames) -> [&String; 19] {
        [
            &of.shares,
            &of.ends,
            &of.ordered_queue,
            &of.fair,
            &of.fair_readers,
            &of.wakes,
            &of.wake_ordered,
            &of.fair_queue,
            &of.fence,
            &of.record,
            &of.queue,
            &of.waiters,
            &of.wake,
            &of.runs,
            &of.bad_runs,
            &of.skips,
            &of.starts,
            &of.tair_queue,
            &of.late,
        ]
    }

    proptest! {
        #[test]
        fn two_locks_share_no_name(a in "[a-c:{}%*-]{1,12}", b in "[a-c:{}%*-]{1,12}", ns in "[a-c]{0,2}") {
            let (a, b) = (Key::new(a).unwrap(), Key::new(b).unwrap());
            let namespace = Namespace::new(ns).unwrap();
            let (Ok(of_a), Ok(of_b)) = (RedisNames::new(&namespace, &a), RedisNames::new(&namespace, &b)) else {
                prop_assert!(namespace.as_str().is_empty());
                return Ok(());
            };
            prop_assert_eq!(key_of(&namespace, &of_a.lock), Some(a.clone()));
            for side in sides(&of_a) {
                prop_assert_eq!(key_of(&namespace, side), None);
                if a != b {
                    prop_assert!(side != &of_b.lock && !sides(&of_b).contains(&side));
                }
                // The whole hash tag, from the first brace to the next closing one, is the lock's
                // name.
                let tag = side.split_once('{').unwrap().1.split_once('}').unwrap().0;
                prop_assert_eq!(tag, &of_a.lock);
            }
        }
    }

    #[test]
    fn names_match_other_libraries() {
        let key = Key::new("a{b}c").unwrap();
        let names = RedisNames::new(&Namespace::default(), &key).unwrap();
        assert_eq!(names.lock, "dlock:a%7Bb%7Dc");
        assert_eq!(names.fence, "redisson_lock_token:{dlock:a%7Bb%7Dc}");
        assert_eq!(names.record, "dlock:{dlock:a%7Bb%7Dc}:record");
        assert!(
            names
                .record
                .starts_with(&side_start(&Namespace::default(), "a{"))
        );
        assert_eq!(
            side_of(&Namespace::default(), &names.bad_runs),
            Some((key.clone(), "bad-runs"))
        );
        let none = Namespace::new("").unwrap();
        let bare = RedisNames::new(&none, &Key::new("a:b c").unwrap()).unwrap();
        assert_eq!(
            (bare.lock.as_str(), bare.wake.as_str()),
            ("a:b c", "{a:b c}:dlock-wake")
        );
        assert_eq!(
            side_of(&none, &bare.runs),
            Some((Key::new("a:b c").unwrap(), "runs"))
        );
        assert_eq!(side_of(&none, "{a:b c}:runs"), None, "another program's");
    }

    #[test]
    fn without_a_namespace_every_name_is_its_key() {
        let none = Namespace::new("").unwrap();
        for key in ["{order}:7", "disc-50%", "a}b", "a\u{1}b"] {
            let Ok(key) = Key::new(key) else { continue };
            let error = RedisNames::new(&none, &key).err().expect("refused");
            assert!(
                error.kind == Kind::Usage && error.hint.is_some(),
                "{error:?}"
            );
            assert!(RedisNames::new(&Namespace::default(), &key).is_ok());
            assert_eq!(key_of(&none, &ENCODING.encode(&key)), None);
        }
    }
}
