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
//! Nothing else is put there: a client that waits for the folder's first key would wait for it too. Slashes in keys are
//! encoded, and what lies deeper is no contender: so `a` and `a/b` are strangers, which they are not to `etcdctl lock`.
//!
//! What else is known of a lock lies in `<namespace>.meta/`, in folders whose names no key is encoded to:
//!
//! | key | what |
//! |---|---|
//! | `%open/<key>/<lease>` | the record next to a key of dlock's ([`super::record`]): whose hold it is, the mark of a break, warnings |
//! | `%nested/<key>/<lease>/…` | what is nested in a hold |
//! | `%last/<key>` | the last fence |
//! | `%last/<key>/least`, `…/guard`, `…/once` | the run records, each as long as its lease ([`super::runs`]) |
//! | `%last/<key>/lookout` | the waiter that looks after the queue, on a short lease of its own ([`super::lookout`]) |
//! | `%last/<key>/call/<lease>` | that a waiter is to prove that it lives, on its lease |
//! | `%last/<key>/permit/<number>` | a held permit, on the lease of its holder ([`super::permits`]) |
//! | `%fine/<key>/<fence>`, `%bad/<key>/<fence>` | a hold that is over ([`super::history`]) |
//! | `%skips/<key>/…` | a host that did without, and since when that is counted |

use crate::lock::{Encoding, Fence, Key, Mode, Namespace};

/// How keys are written in etcd.
pub(super) const ENCODING: Encoding = Encoding::new(b"/");

/// The names of everything that is stored about one lock.
pub(super) struct Names {
    /// The folder of the contenders, with its slash.
    pub folder: String,
    side: String,
    encoded: String,
}

impl Names {
    pub(super) fn new(namespace: &Namespace, key: &Key) -> Self {
        let encoded = ENCODING.encode(key);
        Self { folder: format!("{}{encoded}/", prefix(namespace)), side: side(namespace), encoded }
    }

    /// The name for people: the folder, without its slash.
    pub(super) fn shown(&self) -> String {
        self.folder.trim_end_matches('/').to_owned()
    }

    /// The key of the hold with this lease.
    pub(super) fn own(&self, mode: Mode, lease: i64) -> String {
        let class = match mode {
            Mode::Exclusive => WRITE,
            Mode::Shared => READ,
            Mode::Permits(_) => PERMIT,
        };
        format!("{}{class}{lease:x}", self.folder)
    }

    /// What the keys of contenders begin with that one of `mode` doesn't mind, if there are such.
    pub(super) fn alike(&self, mode: Mode) -> Option<String> {
        match mode {
            Mode::Exclusive => None,
            Mode::Shared => Some(format!("{}{READ}", self.folder)),
            Mode::Permits(_) => Some(format!("{}{PERMIT}", self.folder)),
        }
    }

    /// The folder of the permits that are held.
    pub(super) fn numbers(&self) -> String {
        self.beside() + "permit/"
    }

    /// The permit with this number.
    pub(super) fn number(&self, number: u32) -> String {
        format!("{}{number}", self.numbers())
    }

    /// The folder of the records: see [`super::queue::Look::vanished`].
    pub(super) fn open(&self) -> String {
        format!("{}{OPEN}{}/", self.side, self.encoded)
    }

    /// The record of the key with this lease: see [`super::record`].
    pub(super) fn open_of(&self, lease: i64) -> String {
        self.open_as(&format!("{lease:x}"))
    }

    /// The record of the key whose name ends so.
    pub(super) fn open_as(&self, id: &str) -> String {
        format!("{}{id}", self.open())
    }

    /// The folder of the runs that ended badly, or of all others.
    pub(super) fn runs(&self, bad: bool) -> String {
        format!("{}{}{}/", self.side, if bad { BAD } else { FINE }, self.encoded)
    }

    /// A hold that is over.
    pub(super) fn run(&self, bad: bool, fence: Fence) -> String {
        // By name in the order of the grants.
        format!("{}{:016x}", self.runs(bad), fence.0)
    }

    /// The folder of the hosts that did without.
    pub(super) fn skips(&self) -> String {
        format!("{}{SKIPS}{}/", self.side, self.encoded)
    }

    /// The folder of what is nested in any hold.
    pub(super) fn all_nested(&self) -> String {
        format!("{}%nested/{}/", self.side, self.encoded)
    }

    /// The folder of what is nested in the hold with this lease.
    pub(super) fn nested(&self, lease: i64) -> String {
        format!("{}{lease:x}/", self.all_nested())
    }

    /// A nested hold.
    pub(super) fn nested_hold(&self, lease: i64, hold: &str) -> String {
        format!("{}{hold}", self.nested(lease))
    }

    /// Says that the hold with this lease was given back, and lasts for what is nested in it.
    pub(super) fn left(&self, lease: i64) -> String {
        format!("{}{LEFT}", self.nested(lease))
    }

    /// The fence of the last hold that was given back.
    pub(super) fn last(&self) -> String {
        format!("{}{LAST}{}", self.side, self.encoded)
    }

    /// The folder of the run records, of the permits, and of the lookout.
    pub(super) fn beside(&self) -> String {
        self.last() + "/"
    }

    /// The run record that keeps every process from the lock.
    pub(super) fn least(&self) -> String {
        self.run_record("least")
    }

    /// The run record of this name.
    pub(super) fn run_record(&self, name: &str) -> String {
        self.beside() + name
    }

    /// The waiter that looks after the queue: see [`super::lookout`].
    pub(super) fn lookout(&self) -> String {
        self.beside() + "lookout"
    }

    /// The folder of the waiters that are to prove that they live.
    pub(super) fn calls(&self) -> String {
        self.beside() + "call/"
    }

    /// Says to the waiter with this lease that it is to.
    pub(super) fn call(&self, lease: i64) -> String {
        format!("{}{lease:x}", self.calls())
    }
}

pub(super) const WRITE: &str = "write/";
pub(super) const READ: &str = "read/";
/// Among the writers, since that is where readers of other libraries look for contenders to wait for.
pub(super) const PERMIT: &str = "write/permit-";
/// The last part of [`Names::left`]; holds have sixteen digits.
pub(super) const LEFT: &str = "left";
const OPEN: &str = "%open/";
const LAST: &str = "%last/";
const FINE: &str = "%fine/";
const BAD: &str = "%bad/";
const SKIPS: &str = "%skips/";

/// What all names of locks begin with.
pub(super) fn prefix(namespace: &Namespace) -> String {
    match namespace.as_str() {
        "" => String::new(),
        namespace => format!("{namespace}/"),
    }
}

/// What the names of all else begin with.
pub(super) fn side(namespace: &Namespace) -> String {
    match namespace.as_str() {
        // A key of this name would be encoded.
        "" => "%.meta/".into(),
        namespace => format!("{namespace}.meta/"),
    }
}

/// The folders of records that stay when a lock is unused.
pub(super) fn records(namespace: &Namespace) -> [String; 2] {
    [OPEN, LAST].map(|folder| side(namespace) + folder)
}

/// The folders of what is remembered of locks.
pub(super) fn memories(namespace: &Namespace) -> [String; 3] {
    [FINE, BAD, SKIPS].map(|folder| side(namespace) + folder)
}

/// The key whose lock the key `name` belongs to, and the rest of the name; `None` if it is no lock's.
pub(super) fn key_of<'a>(namespace: &Namespace, name: &'a str) -> Option<(Key, &'a str)> {
    let (key, rest) = name.strip_prefix(&*prefix(namespace))?.split_once('/')?;
    Some((ENCODING.decode(key)?, rest))
}

/// The end of the range of all names that begin with `start`; in etcd's words a zero byte is "to the last one".
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

    fn names(namespace: &str, key: &str) -> Names {
        Names::new(&Namespace::new(namespace).unwrap(), &Key::new(key).unwrap())
    }

    proptest! {
        #[test]
        fn no_lock_lies_where_another_looks(
            a in "[a%/.-]{1,8}", b in "[a%/.-]{1,8}", one in "(|a|a\\.meta|\\.meta)", other in "(|a|a\\.meta|\\.meta)"
        ) {
            let (first, second) = (names(&one, &a), names(&other, &b));
            let run = first.run(true, Fence(1));
            let sides = [
                first.open_of(1), first.nested_hold(1, "00"), first.left(1), first.last(), first.skips(), run, first.least(), first.number(0)
            ];
            for side in &sides {
                // Not by its folder, and not as a contender of it.
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
    fn names_are_where_other_libraries_look() {
        assert_eq!(names("", "job").own(Mode::Exclusive, 0x1234_abcd), "job/write/1234abcd");
        assert_eq!(names("dlock", "a/b").own(Mode::Shared, 1), "dlock/a%2Fb/read/1");
        assert_eq!(names("dlock", "job").own(Mode::Permits(3), 0x2f), "dlock/job/write/permit-2f");
        assert_eq!(names("dlock", "job").open_of(1), "dlock.meta/%open/job/1");
        assert_eq!(range_end("dlock/"), b"dlock0");
    }
}
