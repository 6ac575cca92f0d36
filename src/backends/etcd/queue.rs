//! A lock's folder at one revision: its contenders with their records, and what else is stored of the lock.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::{
    lookout::{self, Ahead, Call},
    messages::KeyValue,
    names::{self, Names},
    record::StoredRecord,
    runs::Runs,
};
use crate::{
    backends::queue::{
        Contender, Contenders, State, history,
        record::{HoldRecord, Said},
    },
    lock::{Fence, Mode, Result},
};

/// How a key contends for the lock, by the rest of its name after the lock's folder; `None` if it is no contender. The number of permits
/// is not part of the name.
pub(super) fn mode_of(rest: &str) -> Option<Mode> {
    let one = |id: &str| !id.is_empty() && !id.contains('/');
    for (class, mode) in [(names::PERMIT, Mode::Permits(1)), (names::WRITE, Mode::Exclusive), (names::READ, Mode::Shared)] {
        if let Some(id) = rest.strip_prefix(class) {
            return one(id).then_some(mode);
        }
    }
    // In the layout of `etcdctl lock`.
    let lease = (1..=16).contains(&rest.len()) && rest.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    lease.then_some(Mode::Exclusive)
}

/// A revision as a fence.
pub(super) fn fence(revision: i64) -> Fence {
    Fence(u64::try_from(revision).unwrap_or_default())
}

/// A contender's key.
#[derive(Clone, Debug)]
pub(super) struct ContenderKey {
    pub name: String,
    /// The create revision: the place in the order, and the fence.
    pub created: i64,
    /// 0 if nothing ends the key.
    pub lease: i64,
    /// As far as it was read.
    pub value: Option<Vec<u8>>,
}

impl ContenderKey {
    pub(super) fn fence(&self) -> Fence {
        fence(self.created)
    }

    /// The last part of the name: the lease, if it is a key of dlock's.
    pub(super) fn id(&self) -> &str {
        let last = self.name.rsplit('/').next().unwrap_or_default();
        last.strip_prefix("permit-").unwrap_or(last)
    }

    /// What dlock wrote with the key; `None` for other libraries, or if it was not read.
    pub(super) fn said(&self) -> Result<Option<Said>> {
        self.value.as_deref().map_or(Ok(None), Said::read)
    }
}

/// What a look at a lock reads.
#[derive(Default)]
pub(super) struct Keys {
    pub contenders: Vec<KeyValue>,
    /// The first contenders, with their values.
    pub with_values: Vec<KeyValue>,
    /// The records next to contenders.
    pub open: Vec<KeyValue>,
    pub nested: Vec<KeyValue>,
    /// The keys below the last fence.
    pub beside: Vec<KeyValue>,
}

/// A lock at one revision.
#[derive(Clone, Debug)]
pub(super) struct Look {
    pub revision: i64,
    /// Only those who came before the one that looks, which waits for the lock alone: nobody behind it has the lock.
    pub is_ahead: bool,
    /// In order of arrival.
    pub contenders: Vec<ContenderKey>,
    /// The same contenders, as the rules see them.
    pub queue: Contenders,
    /// By the ids of their contenders.
    pub records: BTreeMap<String, StoredRecord>,
    pub nested: Vec<Inner>,
    pub numbers: Vec<Permit>,
    pub runs: Runs,
    /// Whether a waiter looks after the queue.
    pub looked_after: bool,
    /// The leases of the waiters that were called, and what each call says.
    pub calls: Vec<(i64, Call)>,
}

/// A held permit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Permit {
    pub number: u32,
    /// The revision that it was taken with.
    pub created: i64,
    /// Of its holder, with which it ends.
    pub lease: i64,
}

/// What a waiter waits for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Before {
    /// This key, to go.
    pub key: Option<String>,
    /// The record of that, to change: its contender waits for a permit too, and is granted it then.
    pub record: Option<String>,
    /// The folder of the permits, for any of them to come back.
    pub numbers: Option<String>,
}

/// A hold nested in another, or the mark of an outer hold that was released.
#[derive(Clone, Debug)]
pub(super) struct Inner {
    /// The lease of the outer hold, as it stands in names.
    outer: String,
    pub name: String,
    pub created: i64,
    /// Of its own, with which it ends.
    pub lease: i64,
}

impl Inner {
    pub(super) fn is_mark(&self) -> bool {
        self.name.ends_with(names::LEFT)
    }
}

impl Look {
    pub(super) fn new(names: &Names, revision: i64, keys: Keys) -> Result<Self> {
        let rest = |kv: &KeyValue, folder: &str| Some(str::from_utf8(&kv.key).ok()?.strip_prefix(folder)?.to_owned());
        let stored = |kv: KeyValue| Some((rest(&kv, &names.open())?, StoredRecord::read(kv)?));
        let records: BTreeMap<_, _> = keys.open.into_iter().filter_map(stored).collect();
        let folder = names.numbers();
        let number =
            |kv: &KeyValue| Some(Permit { number: rest(kv, &folder)?.parse().ok()?, created: kv.create_revision, lease: kv.lease });
        let numbers: Vec<_> = keys.beside.iter().filter_map(number).collect();
        let contender = |kv: KeyValue| {
            let mode = mode_of(&rest(&kv, &names.folder)?)?;
            Some((mode, ContenderKey { name: String::from_utf8(kv.key).ok()?, created: kv.create_revision, lease: kv.lease, value: None }))
        };
        let mut found: Vec<_> = keys.contenders.into_iter().filter_map(contender).collect();
        found.sort_by_key(|(_, one)| one.created);
        let with_permit: HashMap<i64, u32> = numbers.iter().map(|permit| (permit.lease, permit.number)).collect();
        let judged = |(mode, one): &(Mode, ContenderKey)| as_contender(*mode, records.get(one.id()), with_permit.get(&one.lease).copied());
        let queue = Contenders::new(found.iter().map(judged).collect(), numbers.iter().map(|permit| permit.number).collect());
        let mut contenders: Vec<_> = found.into_iter().map(|(_, one)| one).collect();
        for kv in keys.with_values {
            if let Some(one) = contenders.iter_mut().find(|one| one.created == kv.create_revision && one.name.as_bytes() == kv.key) {
                one.value = Some(kv.value);
            }
        }
        let folder = names.all_nested();
        let inner = |kv: KeyValue| {
            let outer = rest(&kv, &folder)?.split_once('/')?.0.to_owned();
            Some(Inner { outer, created: kv.create_revision, lease: kv.lease, name: String::from_utf8(kv.key).ok()? })
        };
        Ok(Self {
            revision,
            is_ahead: false,
            contenders,
            queue,
            records,
            nested: keys.nested.into_iter().filter_map(inner).collect(),
            numbers,
            looked_after: keys.beside.iter().any(|kv| kv.key == names.lookout().as_bytes()),
            calls: lookout::calls(names, &keys.beside),
            runs: Runs::read(names, keys.beside)?,
        })
    }

    /// The record next to a key.
    pub(super) fn record_of(&self, one: &ContenderKey) -> Option<&StoredRecord> {
        self.records.get(one.id())
    }

    /// The records of contenders that vanished: their lease ended or was revoked, or their key was deleted. What they ran may still be
    /// stopping.
    pub(super) fn vanished(&self) -> impl Iterator<Item = &StoredRecord> {
        let present: HashSet<&str> = self.contenders.iter().map(ContenderKey::id).collect();
        let absent = self.records.iter().filter(move |(id, _)| !present.contains(id.as_str())).map(|(_, record)| record);
        // A record of one that waits may be of one behind.
        absent.filter(|record| !self.is_ahead || record.says.is_hold)
    }

    /// The vanished contenders that one of `mode` has to leave time to stop.
    pub(super) fn dying(&self, mode: Mode) -> Vec<StoredRecord> {
        self.vanished().filter(|one| one.says.delays(mode)).cloned().collect()
    }

    /// The vanished contenders that no successor has to wait for any more.
    pub(super) fn outdated(&self) -> Vec<&StoredRecord> {
        let newest = history::outdated(self.vanished().map(|record| (&record.says, record.fence())));
        self.vanished().filter(|record| newest.is_some_and(|newest| record.fence() < newest)).collect()
    }

    /// The permit of a contender.
    pub(super) fn number_of(&self, at: usize) -> Option<&Permit> {
        let permits = matches!(self.queue.all()[at].mode, Mode::Permits(_));
        self.numbers.iter().find(|number| permits && number.lease == self.contenders[at].lease)
    }

    /// What is nested in the hold with this lease, the mark that it was released included.
    pub(super) fn nested_in(&self, lease: i64) -> impl Iterator<Item = &Inner> {
        let outer = format!("{lease:x}");
        self.nested.iter().filter(move |inner| inner.outer == outer)
    }

    /// How many holds the owner with this lease has.
    pub(super) fn holds_of(&self, lease: i64) -> u32 {
        let (mut holds, mut outer) = (0, 1);
        for inner in self.nested_in(lease) {
            if inner.is_mark() {
                outer = 0;
            } else {
                holds += 1;
            }
        }
        holds + outer
    }

    pub(super) fn find(&self, name: &str) -> Option<usize> {
        self.contenders.iter().position(|one| one.name == name)
    }

    /// The holder with this fence; a waiter is none.
    pub(super) fn holder(&self, fence: Fence) -> Option<usize> {
        self.contenders.iter().position(|one| one.fence() == fence).filter(|at| self.queue.holds(*at))
    }

    /// What one of `mode` waits for at this position, where it can't have the lock yet.
    pub(super) fn before(&self, names: &Names, mode: Mode, at: usize) -> Before {
        let awaited = self.queue.awaited(mode, at);
        let contender = awaited.contender.map(|other| &self.contenders[other]);
        let is_permit =
            awaited.contender.is_some_and(|other| matches!((mode, self.queue.all()[other].mode), (Mode::Permits(_), Mode::Permits(_))));
        Before {
            key: contender.map(|one| one.name.clone()),
            record: contender.filter(|_| is_permit).map(|one| names.open_as(one.id())),
            numbers: awaited.permits.then(|| names.numbers()),
        }
    }

    /// A contender that waits by its record, as dlock's do.
    pub(super) fn waiting(&self, at: usize) -> Option<Ahead> {
        let one = &self.contenders[at];
        let record = self.record_of(one).filter(|_| self.queue.waits(at) && one.lease != 0)?;
        Some(Ahead {
            key: one.name.clone(),
            created: one.created,
            lease: one.lease,
            record: record.name.clone(),
            revision: record.revision,
            answers: matches!(one.said(), Ok(Some(_))),
            called: self.call_of(one.lease),
        })
    }

    /// What the call of the waiter with this lease says.
    pub(super) fn call_of(&self, lease: i64) -> Option<Call> {
        self.calls.iter().find(|(called, _)| *called == lease).map(|(_, call)| *call)
    }

    /// The first waiter with another lease.
    pub(super) fn first_waiting(&self, lease: i64) -> Option<Ahead> {
        self.queue.waiters().filter(|at| self.contenders[*at].lease != lease).find_map(|at| self.waiting(at))
    }
}

/// A contender as the rules see it, by its record and the number of its permit.
fn as_contender(mode: Mode, record: Option<&StoredRecord>, number: Option<u32>) -> Contender {
    let says: Option<&HoldRecord> = record.map(|record| &record.says);
    let (mode, number) = match mode {
        Mode::Permits(_) => {
            // Without its record no more is known than that there must be so many.
            let least = Mode::Permits(number.map_or(1, |number| number.saturating_add(1)));
            (says.map(|says| says.mode).filter(|mode| matches!(mode, Mode::Permits(_))).unwrap_or(least), number)
        }
        mode => (mode, None),
    };
    let state = match says {
        _ if number.is_some() => State::Granted,
        Some(says) if says.is_hold => State::Granted,
        Some(_) => State::Waits,
        None => State::Unknown,
    };
    Contender { mode, state }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::{Key, Namespace};

    fn look(keys: &[(&str, i64)], open: &[(&str, Mode)]) -> Look {
        let names = Names::new(&Namespace::default(), &Key::new("job").unwrap());
        let kv = |name: String, created: i64, value: &[u8]| KeyValue {
            key: name.into_bytes(),
            create_revision: created,
            mod_revision: created,
            version: 1,
            value: value.into(),
            lease: 1,
        };
        let contenders = keys.iter().map(|(rest, created)| kv(format!("dlock/job/{rest}"), *created, b"")).collect();
        let record = |(rest, mode): &(&str, Mode)| kv(names.open_as(rest), 1, &HoldRecord::waiting(*mode).write());
        Look::new(&names, 100, Keys { contenders, open: open.iter().map(record).collect(), ..Keys::default() }).unwrap()
    }

    #[test]
    fn contenders_come_in_the_order_of_their_revisions() {
        let look = look(&[("read/5", 9), ("write/4", 7), ("read/3", 5), ("6f", 11), ("read/2", 4), ("read/7", 12)], &[]);
        assert_eq!(look.queue.holders().collect::<Vec<_>>(), [0, 1]);
        let blocker = |rest: &str| {
            let at = look.find(&format!("dlock/job/{rest}")).unwrap();
            look.queue.blocker(look.queue.all()[at].mode, at).map(|other| look.contenders[other].created)
        };
        assert_eq!(["read/2", "write/4", "read/5", "read/7"].map(blocker), [None, Some(5), Some(7), Some(11)]);
    }

    #[test]
    fn what_lies_deeper_or_has_another_shape_is_no_part_of_the_lock() {
        let look = look(&[("meta", 1), ("1/2f", 2), ("write/a/b", 3), ("write/", 4), ("2F", 5), ("0123456789abcdef0", 6), ("b", 7)], &[]);
        assert_eq!(look.contenders.iter().map(|one| one.created).collect::<Vec<_>>(), [7]);
    }

    #[test]
    fn a_record_without_a_key_is_of_one_that_vanished() {
        let (exclusive, shared) = (Mode::Exclusive, Mode::Shared);
        let look = look(&[("write/1a", 1), ("read/2b", 2)], &[("1a", exclusive), ("2b", shared), ("3c", shared), ("4d", exclusive)]);
        assert_eq!(look.vanished().count(), 2);
        let dying = |mode| look.dying(mode).into_iter().map(|record| record.name).collect::<Vec<_>>();
        assert_eq!(dying(exclusive), ["dlock.meta/%open/job/3c", "dlock.meta/%open/job/4d"]);
        assert_eq!(dying(shared), ["dlock.meta/%open/job/4d"], "readers don't mind readers");
    }
}
