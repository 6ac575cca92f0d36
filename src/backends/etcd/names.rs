//! The names of a lock's keys in etcd.
//!
//! A lock is a folder, `<namespace>/<key>/`, with one key for each holder or waiter:
//!
//! | key | by |
//! |---|---|
//! | `write/<lease>` | an exclusive contender: of dlock, and of etcd's own read-write lock recipe |
//! | `write/permit-<lease>` | a contender for one of several permits: to all others an exclusive one |
//! | `read/<lease>` | a reader |
//! | `<lease>` | `etcdctl lock`, Go's `concurrency.Mutex` and `Election`, the server's lock service; dlock reads them only |
//!
//! The folder has no other keys: a client that waits for the folder's first key would wait for them
//! too. Slashes in keys are encoded, and a deeper key is no contender. So `a` and `a/b` are
//! unrelated, which they are not to `etcdctl lock`.
//!
//! The other keys of a lock are in `<namespace>.meta/`, in folders whose names no key is encoded
//! to:
//!
//! | key | what |
//! |---|---|
//! | `%open/<key>/<lease>` | the record of a dlock key ([`super::record`]): the holder's metadata, a break mark, warnings |
//! | `%nested/<key>/<lease>/…` | the holds nested in a hold, and the mark that the outer one was given back |
//! | `%last/<key>` | the fence of the last hold that was given back, and whether its successor can have a drain delay |
//! | `%last/<key>/least`, `…/guard`, `…/once` | the run records, each as long as its lease ([`super::runs`]) |
//! | `%last/<key>/once/was`, … | a run record that the last run replaced, until the outcome of that run is recorded |
//! | `%last/<key>/once/ok` | the last success before the recorded start |
//! | `%last/<key>/lookout` | the waiter that is the queue monitor, on a short lease of its own ([`super::monitor`]) |
//! | `%last/<key>/call/<lease>` | a probe of the waiter with this lease, on that lease |
//! | `%last/<key>/permit/<number>` | a held permit, on the lease of its holder ([`super::permits`]) |
//! | `%fine/<key>/<fence>`, `%bad/<key>/<fence>` | a history entry of an ended hold ([`super::history`]) |
//! | `%skips/<key>/…` | a host that skipped, and since when its skips are counted |

use crate::lock::{Encoding, Fence, Key, Mode, Namespace};

/// How keys are written in etcd.
pub(super) const ENCODING: Encoding = Encoding::new(b"/");

/// The names of all keys of one lock.
pub(super) struct EtcdNames {
    /// The folder of the contenders, with its final slash.
    pub folder: String,
    side: String,
    encoded: String,
}

impl EtcdNames {
    pub(super) fn new(namespace: &Namespace, key: &Key) -> Self {
        let encoded = ENCODING.encode(key);
        Self {
            folder: format!("{}{encoded}/", prefix(namespace)),
            side: side(namespace),
            encoded,
        }
    }

    /// Returns the name for people: the folder, without its final slash.
    pub(super) fn display_name(&self) -> String {
        self.folder.trim_end_matches('/').to_owned()
    }

    /// Returns the key of the hold with this lease.
    pub(super) fn own(&self, mode: Mode, lease: i64) -> String {
        let class = match mode {
            Mode::Exclusive => WRITE,
            Mode::Shared => READ,
            Mode::Permits(_) => PERMIT,
        };
        format!("{}{class}{lease:x}", self.folder)
    }

    /// Returns the beginning of the keys of contenders that are compatible with `mode`, if there
    /// are such keys.
    pub(super) fn compatible_prefix(&self, mode: Mode) -> Option<String> {
        match mode {
            Mode::Exclusive => None,
            Mode::Shared => Some(format!("{}{READ}", self.folder)),
            Mode::Permits(_) => Some(format!("{}{PERMIT}", self.folder)),
        }
    }

    /// Returns the folder of the held permits.
    pub(super) fn numbers(&self) -> String {
        self.below_fence() + "permit/"
    }

    /// Returns the key of the permit with this number.
    pub(super) fn number(&self, number: u32) -> String {
        format!("{}{number}", self.numbers())
    }

    /// Returns the folder of the records: see [`super::queue::LockAtRevision::vanished`].
    pub(super) fn open(&self) -> String {
        format!("{}{OPEN}{}/", self.side, self.encoded)
    }

    /// Returns the record of the key with this lease: see [`super::record`].
    pub(super) fn open_of(&self, lease: i64) -> String {
        self.open_as(&format!("{lease:x}"))
    }

    /// Returns the record of the key whose name ends with this id.
    pub(super) fn open_as(&self, id: &str) -> String {
        format!("{}{id}", self.open())
    }

    /// Returns the folder of the bad history entries, or of all others.
    pub(super) fn runs(&self, bad: bool) -> String {
        format!(
            "{}{}{}/",
            self.side,
            if bad { BAD } else { FINE },
            self.encoded
        )
    }

    /// Returns the key of a history entry.
    pub(super) fn run(&self, bad: bool, fence: Fence) -> String {
        // The order by name is the order of the grants.
        format!("{}{:016x}", self.runs(bad), fence.0)
    }

    /// Returns the folder of the hosts that skipped.
    pub(super) fn skips(&self) -> String {
        format!("{}{SKIPS}{}/", self.side, self.encoded)
    }

    /// Returns the folder of the keys nested in any hold.
    pub(super) fn all_nested(&self) -> String {
        format!("{}%nested/{}/", self.side, self.encoded)
    }

    /// Returns the folder of the keys nested in the hold with this lease.
    pub(super) fn nested(&self, lease: i64) -> String {
        format!("{}{lease:x}/", self.all_nested())
    }

    /// Returns the key of a nested hold.
    pub(super) fn nested_hold(&self, lease: i64, hold: &str) -> String {
        format!("{}{hold}", self.nested(lease))
    }

    /// Returns the mark that the hold with this lease was given back. It lasts as long as the
    /// nested holds.
    pub(super) fn released_mark(&self, lease: i64) -> String {
        format!("{}{LEFT}", self.nested(lease))
    }

    /// Returns the key with the fence of the last hold that was given back.
    pub(super) fn last(&self) -> String {
        format!("{}{LAST}{}", self.side, self.encoded)
    }

    /// Returns the folder of the run records, of the permits, and of the queue monitor.
    pub(super) fn below_fence(&self) -> String {
        self.last() + "/"
    }

    /// Returns the run record that keeps every process from the lock.
    pub(super) fn least(&self) -> String {
        self.run_record("least")
    }

    /// Returns the run record of this name.
    pub(super) fn run_record(&self, name: &str) -> String {
        self.below_fence() + name
    }

    /// Returns the key of the queue monitor: see [`super::monitor`].
    pub(super) fn monitor(&self) -> String {
        self.below_fence() + "lookout"
    }

    /// Returns the folder of the probes.
    pub(super) fn probes(&self) -> String {
        self.below_fence() + "call/"
    }

    /// Returns the probe of the waiter with this lease.
    pub(super) fn probe(&self, lease: i64) -> String {
        format!("{}{lease:x}", self.probes())
    }
}

pub(super) const WRITE: &str = "write/";
pub(super) const READ: &str = "read/";
/// Among the writers, where readers of other libraries look for contenders to wait for.
pub(super) const PERMIT: &str = "write/permit-";
/// The last part of [`EtcdNames::released_mark`]; nested holds have sixteen digits.
pub(super) const LEFT: &str = "left";
const OPEN: &str = "%open/";
const LAST: &str = "%last/";
const FINE: &str = "%fine/";
const BAD: &str = "%bad/";
const SKIPS: &str = "%skips/";

/// Returns the beginning of all contenders' names.
pub(super) fn prefix(namespace: &Namespace) -> String {
    match namespace.as_str() {
        "" => String::new(),
        namespace => format!("{namespace}/"),
    }
}

/// Returns the beginning of all other names.
pub(super) fn side(namespace: &Namespace) -> String {
    match namespace.as_str() {
        // A key with this name would be encoded.
        "" => "%.meta/".into(),
        namespace => format!("{namespace}.meta/"),
    }
}

/// Returns the folders of records that stay when a lock is unused.
pub(super) fn records(namespace: &Namespace) -> [String; 2] {
    [OPEN, LAST].map(|folder| side(namespace) + folder)
}

/// Returns the folders of the locks' histories.
pub(super) fn history_folders(namespace: &Namespace) -> [String; 3] {
    [FINE, BAD, SKIPS].map(|folder| side(namespace) + folder)
}

/// Returns the key of the lock that the key `name` belongs to, and the rest of the name; `None` if
/// it belongs to no lock.
pub(super) fn key_of<'a>(namespace: &Namespace, name: &'a str) -> Option<(Key, &'a str)> {
    let (key, rest) = name.strip_prefix(&*prefix(namespace))?.split_once('/')?;
    Some((ENCODING.decode(key)?, rest))
}

/// Returns the end of the range of all names that begin with `start`. To etcd, a zero byte means
/// "to the last key".
pub(super) fn range_end(start: &str) -> Vec<u8> {
    let mut end = start.as_bytes().to_vec();
    match end.last_mut() {
        // No byte of UTF-8 is 0xff.
        Some(last) => *last += 1,
        None => end.push(0),
    }
    end
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn names(namespace: &str, key: &str) -> EtcdNames {
        EtcdNames::new(&Namespace::new(namespace).unwrap(), &Key::new(key).unwrap())
    }

    proptest! {
        #[test]
        fn two_locks_share_no_key(
            a in "[a%/.-]{1,8}", b in "[a%/.-]{1,8}", one in "(|a|a\\.meta|\\.meta)", other in "(|a|a\\.meta|\\.meta)"
        ) {
            let (first, second) = (names(&one, &a), names(&other, &b));
            let run = first.run(true, Fence(1));
            let sides = [
                first.open_of(1), first.nested_hold(1, "00"), first.released_mark(1), first.last(), first.skips(), run, first.least(), first.number(0)
            ];
            for side in &sides {
                // Neither the folder nor a contender's name collides.
                prop_assert!(!second.folder.starts_with(side.as_str()));
                let inside = side.strip_prefix(&second.folder);
                prop_assert!(inside.is_none_or(|rest| super::super::queue::mode_of(rest).is_none()), "{side} in {}", second.folder);
            }
            if (&a, &one) != (&b, &other) {
                let own = first.own(Mode::Exclusive, 1);
                let inside = own.strip_prefix(&second.folder);
                prop_assert!(inside.is_none_or(|rest| super::super::queue::mode_of(rest).is_none()), "{own} in {}", second.folder);
                prop_assert!(!sides.contains(&second.last()));
            }
            let namespace = Namespace::new(&*one).unwrap();
            let own = first.own(Mode::Shared, 0x1f);
            prop_assert_eq!(key_of(&namespace, &own), Some((Key::new(a).unwrap(), "read/1f")));
        }
    }

    #[test]
    fn names_match_other_libraries() {
        assert_eq!(
            names("", "job").own(Mode::Exclusive, 0x1234_abcd),
            "job/write/1234abcd"
        );
        assert_eq!(
            names("dlock", "a/b").own(Mode::Shared, 1),
            "dlock/a%2Fb/read/1"
        );
        assert_eq!(
            names("dlock", "job").own(Mode::Permits(3), 0x2f),
            "dlock/job/write/permit-2f"
        );
        assert_eq!(names("dlock", "job").open_of(1), "dlock.meta/%open/job/1");
        assert_eq!(range_end("dlock/"), b"dlock0");
    }
}
