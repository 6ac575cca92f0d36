//! A lock's folder at one revision: the contenders with their records, and the other keys of the
//! lock.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::{
    messages::KeyValue,
    names::{self, EtcdNames},
    ops::{Part, TxnAnswers},
    probe::{self, Probe},
    record::{StoredRecord, fence},
    runs::RunKeys,
};
use crate::{
    backends::queue::{
        Contender, Contenders, GrantEvidence, history,
        record::{ContenderInfo, HoldRecord},
    },
    lock::{Fence, Mode, Result},
};

/// Returns the mode of a contender's key, by the rest of its name after the lock's folder; `None`
/// if the key is no contender. The name does not contain the number of permits.
pub(super) fn mode_of(rest: &str) -> Option<Mode> {
    let one = |id: &str| !id.is_empty() && !id.contains('/');
    for (class, mode) in [
        (names::PERMIT, Mode::Permits(1)),
        (names::WRITE, Mode::Exclusive),
        (names::READ, Mode::Shared),
    ] {
        if let Some(id) = rest.strip_prefix(class) {
            return one(id).then_some(mode);
        }
    }
    // The layout of `etcdctl lock`.
    let lease = (1..=16).contains(&rest.len())
        && rest
            .bytes()
            .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    lease.then_some(Mode::Exclusive)
}

/// A contender's key.
#[derive(Clone, Debug)]
pub(super) struct ContenderKey {
    pub name: String,
    /// The create revision: it orders the queue, and is the fence.
    pub created: i64,
    /// 0 if the key never expires.
    pub lease: i64,
    /// The value, if it was read.
    pub value: Option<Vec<u8>>,
}

impl ContenderKey {
    pub(super) fn fence(&self) -> Fence {
        fence(self.created)
    }

    /// Returns the last part of the name, which for a key of dlock's is the lease.
    pub(super) fn id(&self) -> &str {
        let last = self.name.rsplit('/').next().unwrap_or_default();
        last.strip_prefix("permit-").unwrap_or(last)
    }

    /// Returns the data that dlock wrote with the key; `None` for other libraries, or if the value
    /// was not read.
    pub(super) fn info(&self) -> Result<Option<ContenderInfo>> {
        self.value.as_deref().map_or(Ok(None), ContenderInfo::read)
    }
}

/// The keys that a look at a lock reads.
#[derive(Default)]
pub(super) struct Keys {
    pub contenders: Vec<KeyValue>,
    /// The first contenders, with their values.
    pub with_values: Vec<KeyValue>,
    /// The records next to contenders.
    pub open: Vec<KeyValue>,
    pub nested: Vec<KeyValue>,
    /// The keys below the last fence.
    pub below_fence: Vec<KeyValue>,
    /// Whether all of them are of one moment. In the queue monitor's, a record may be newer.
    pub at_once: bool,
}

/// A lock at one revision.
#[derive(Clone, Debug)]
pub(super) struct LockAtRevision {
    pub revision: i64,
    /// Whether the look skipped the contenders behind an exclusive waiter. None of them holds the
    /// lock.
    pub is_ahead: bool,
    /// The contenders in order of arrival.
    pub contenders: Vec<ContenderKey>,
    /// The same contenders, as input to the queue rules.
    pub queue: Contenders,
    /// The records, by the ids of their contenders.
    pub records: BTreeMap<String, StoredRecord>,
    pub nested: Vec<NestedKey>,
    pub numbers: Vec<Permit>,
    pub runs: RunKeys,
    /// Whether a waiter is the queue monitor.
    pub has_monitor: bool,
    /// The leases of the probed waiters, and the state of each probe.
    pub probes: Vec<(i64, Probe)>,
}

/// A held permit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Permit {
    pub number: u32,
    /// The revision at which it was taken.
    pub created: i64,
    /// The holder's lease, with which the permit ends.
    pub lease: i64,
}

/// The keys that a waiter waits for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct AwaitedKeys {
    /// The waiter waits for this key to be deleted.
    pub key: Option<String>,
    /// The record of that key, to change: its contender waits for a permit too, and the grant
    /// rewrites the record.
    pub record: Option<String>,
    /// The folder of the permits. The waiter waits for any of them to be given back.
    pub numbers: Option<String>,
    /// The fence of that key if an exclusive waiter waits for an exclusive contender. That
    /// contender's release leaves the waiter first.
    pub writer: Option<Fence>,
}

/// A waiter as it was read. It is unchanged as long as its key and its record are.
#[derive(Clone, Debug)]
pub(super) struct StoredWaiter {
    pub key: String,
    pub created: i64,
    pub lease: i64,
    pub record: String,
    /// The record's revision. The grant rewrites or removes the record.
    pub revision: i64,
    /// Whether dlock created the waiter, which then answers a probe.
    pub answers: bool,
    pub probed: Option<Probe>,
}

/// A hold nested in another, or the mark of an outer hold that was released.
#[derive(Clone, Debug)]
pub(super) struct NestedKey {
    /// The lease of the outer hold, as names contain it.
    outer: String,
    pub name: String,
    pub created: i64,
    /// Its own lease, with which it ends.
    pub lease: i64,
}

impl NestedKey {
    pub(super) fn is_mark(&self) -> bool {
        self.name.ends_with(names::LEFT)
    }
}

impl LockAtRevision {
    pub(super) fn new(names: &EtcdNames, revision: i64, keys: Keys) -> Result<Self> {
        let rest = |kv: &KeyValue, folder: &str| {
            let name = str::from_utf8(&kv.key).ok()?;
            Some(name.strip_prefix(folder)?.to_owned())
        };
        let stored = |kv: KeyValue| Some((rest(&kv, &names.open())?, StoredRecord::read(kv)?));
        let records: BTreeMap<_, _> = keys.open.into_iter().filter_map(stored).collect();
        let folder = names.numbers();
        let number = |kv: &KeyValue| {
            Some(Permit {
                number: rest(kv, &folder)?.parse().ok()?,
                created: kv.create_revision,
                lease: kv.lease,
            })
        };
        let numbers: Vec<_> = keys.below_fence.iter().filter_map(number).collect();
        let contender = |kv: KeyValue| {
            let mode = mode_of(&rest(&kv, &names.folder)?)?;
            Some((
                mode,
                ContenderKey {
                    name: String::from_utf8(kv.key).ok()?,
                    created: kv.create_revision,
                    lease: kv.lease,
                    value: None,
                },
            ))
        };
        let mut found: Vec<_> = keys.contenders.into_iter().filter_map(contender).collect();
        found.sort_by_key(|(_, one)| one.created);
        let with_permit: HashMap<i64, u32> = numbers
            .iter()
            .map(|permit| (permit.lease, permit.number))
            .collect();
        let judged = |(mode, one): &(Mode, ContenderKey)| {
            let number = with_permit.get(&one.lease).copied();
            as_contender(*mode, records.get(one.id()), number)
        };
        let queue = Contenders::new(
            found.iter().map(judged).collect(),
            numbers.iter().map(|permit| permit.number).collect(),
        );
        if keys.at_once {
            queue.check(&names.folder);
        }
        let mut contenders: Vec<_> = found.into_iter().map(|(_, one)| one).collect();
        for kv in keys.with_values {
            if let Some(one) = contenders
                .iter_mut()
                .find(|one| one.created == kv.create_revision && one.name.as_bytes() == kv.key)
            {
                one.value = Some(kv.value);
            }
        }
        let folder = names.all_nested();
        let inner = |kv: KeyValue| {
            let outer = rest(&kv, &folder)?.split_once('/')?.0.to_owned();
            Some(NestedKey {
                outer,
                created: kv.create_revision,
                lease: kv.lease,
                name: String::from_utf8(kv.key).ok()?,
            })
        };
        Ok(Self {
            revision,
            is_ahead: false,
            contenders,
            queue,
            records,
            nested: keys.nested.into_iter().filter_map(inner).collect(),
            numbers,
            has_monitor: keys
                .below_fence
                .iter()
                .any(|kv| kv.key == names.monitor().as_bytes()),
            probes: probe::probes(names, &keys.below_fence),
            runs: RunKeys::read(names, keys.below_fence)?,
        })
    }

    /// Returns the record of a contender's key.
    pub(super) fn record_of(&self, one: &ContenderKey) -> Option<&StoredRecord> {
        self.records.get(one.id())
    }

    /// Returns the records of contenders that vanished: their lease ended or was revoked, or their
    /// key was deleted. The commands of such contenders may still be stopping.
    pub(super) fn vanished(&self) -> impl Iterator<Item = &StoredRecord> {
        let present: HashSet<&str> = self.contenders.iter().map(ContenderKey::id).collect();
        let absent = self
            .records
            .iter()
            .filter(move |(id, _)| !present.contains(id.as_str()))
            .map(|(_, record)| record);
        // The record of a waiter may belong to a contender behind.
        absent.filter(|record| !self.is_ahead || record.hold_record.was_granted())
    }

    /// Returns the vanished contenders to which a contender of `mode` has to leave time to stop.
    pub(super) fn dying(&self, mode: Mode) -> Vec<StoredRecord> {
        self.vanished()
            .filter(|one| one.hold_record.delays(mode))
            .cloned()
            .collect()
    }

    /// Returns the vanished contenders that no successor has to wait for any more.
    pub(super) fn outdated(&self) -> Vec<&StoredRecord> {
        let newest = history::outdated(
            self.vanished()
                .map(|record| (&record.hold_record, record.fence())),
        );
        self.vanished()
            .filter(|record| newest.is_some_and(|newest| record.fence() < newest))
            .collect()
    }

    /// Returns a contender's permit.
    pub(super) fn number_of(&self, at: usize) -> Option<&Permit> {
        let permits = matches!(self.queue.all()[at].mode, Mode::Permits(_));
        self.numbers
            .iter()
            .find(|number| permits && number.lease == self.contenders[at].lease)
    }

    /// Returns the keys nested in the hold with this lease, including the mark that the hold was
    /// released.
    pub(super) fn nested_in(&self, lease: i64) -> impl Iterator<Item = &NestedKey> {
        let outer = format!("{lease:x}");
        self.nested.iter().filter(move |inner| inner.outer == outer)
    }

    /// Returns how many holds the owner with this lease has.
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

    /// Returns the holder with this fence. A waiter does not count.
    pub(super) fn holder(&self, fence: Fence) -> Option<usize> {
        self.contenders
            .iter()
            .position(|one| one.fence() == fence)
            .filter(|at| self.queue.holds(*at))
    }

    /// Returns the keys that a contender of `mode` waits for at this position, while it can't have
    /// the lock yet.
    pub(super) fn before(&self, names: &EtcdNames, mode: Mode, at: usize) -> AwaitedKeys {
        let awaited = self.queue.awaited(mode, at);
        let contender = awaited.contender.map(|other| &self.contenders[other]);
        let is_permit = awaited.contender.is_some_and(|other| {
            matches!(
                (mode, self.queue.all()[other].mode),
                (Mode::Permits(_), Mode::Permits(_))
            )
        });
        AwaitedKeys {
            key: contender.map(|one| one.name.clone()),
            record: contender
                .filter(|_| is_permit)
                .map(|one| names.open_as(one.id())),
            numbers: awaited.permits.then(|| names.numbers()),
            writer: awaited
                .contender
                .filter(|other| {
                    (mode, self.queue.all()[*other].mode) == (Mode::Exclusive, Mode::Exclusive)
                })
                .map(|other| self.contenders[other].fence()),
        }
    }

    /// Returns the contender at this position if its record says that it waits, as a record of
    /// dlock's does.
    pub(super) fn waiting(&self, at: usize) -> Option<StoredWaiter> {
        let one = &self.contenders[at];
        let record = self
            .record_of(one)
            .filter(|_| self.queue.waits(at) && one.lease != 0)?;
        Some(StoredWaiter {
            key: one.name.clone(),
            created: one.created,
            lease: one.lease,
            record: record.name.clone(),
            revision: record.revision,
            answers: matches!(one.info(), Ok(Some(_))),
            probed: self.probe_of(one.lease),
        })
    }

    /// Returns the state of the probe of the waiter with this lease.
    pub(super) fn probe_of(&self, lease: i64) -> Option<Probe> {
        self.probes
            .iter()
            .find(|(probed, _)| *probed == lease)
            .map(|(_, probe)| *probe)
    }

    /// Returns the first waiter with another lease.
    pub(super) fn first_waiting(&self, lease: i64) -> Option<StoredWaiter> {
        self.queue
            .waiters()
            .filter(|at| self.contenders[*at].lease != lease)
            .find_map(|at| self.waiting(at))
    }
}

impl TxnAnswers {
    /// Returns the answers to [`super::ops::look`].
    pub(super) fn look(&mut self, names: &EtcdNames) -> Result<LockAtRevision> {
        let keys = Keys {
            contenders: self.keys()?,
            with_values: self.keys()?,
            open: self.keys()?,
            nested: self.keys()?,
            below_fence: self.keys()?,
            at_once: true,
        };
        LockAtRevision::new(names, self.revision, keys)
    }

    /// Returns the answers to [`Part::look`].
    pub(super) fn look_at(&mut self, names: &EtcdNames, part: Part<'_>) -> Result<LockAtRevision> {
        let (contenders, mut open) = match part {
            Part::All => return self.look(names),
            Part::Ahead(..) => (self.keys()?, self.keys()?),
            Part::Own(..) => (self.keys()?, Vec::new()),
        };
        open.extend(self.keys()?);
        let keys = Keys {
            with_values: contenders.clone(),
            contenders,
            open,
            nested: self.keys()?,
            below_fence: self.keys()?,
            at_once: true,
        };
        Ok(LockAtRevision {
            is_ahead: true,
            ..LockAtRevision::new(names, self.revision, keys)?
        })
    }
}

/// Returns a contender as input to the queue rules, by its record and the number of its permit.
fn as_contender(mode: Mode, record: Option<&StoredRecord>, number: Option<u32>) -> Contender {
    let hold_record: Option<&HoldRecord> = record.map(|record| &record.hold_record);
    let (mode, number) = match mode {
        Mode::Permits(_) => {
            // Without its record, only the least number of permits is known.
            let least = Mode::Permits(number.map_or(1, |number| number.saturating_add(1)));
            (
                hold_record
                    .map(|hold_record| hold_record.mode)
                    .filter(|mode| matches!(mode, Mode::Permits(_)))
                    .unwrap_or(least),
                number,
            )
        }
        mode => (mode, None),
    };
    let state = match hold_record {
        _ if number.is_some() => GrantEvidence::Granted,
        Some(hold_record) if hold_record.is_hold => GrantEvidence::Granted,
        Some(_) => GrantEvidence::Waits,
        None => GrantEvidence::Unknown,
    };
    Contender { mode, state }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::{Key, Namespace};

    fn look(keys: &[(&str, i64)], open: &[(&str, Mode)]) -> LockAtRevision {
        let names = EtcdNames::new(&Namespace::default(), &Key::new("job").unwrap());
        let kv = |name: String, created: i64, value: &[u8]| KeyValue {
            key: name.into_bytes(),
            create_revision: created,
            mod_revision: created,
            version: 1,
            value: value.into(),
            lease: 1,
        };
        let contenders = keys
            .iter()
            .map(|(rest, created)| kv(format!("dlock/job/{rest}"), *created, b""))
            .collect();
        let record = |(rest, mode): &(&str, Mode)| {
            kv(names.open_as(rest), 1, &HoldRecord::waiting(*mode).write())
        };
        LockAtRevision::new(
            &names,
            100,
            Keys {
                contenders,
                open: open.iter().map(record).collect(),
                ..Keys::default()
            },
        )
        .unwrap()
    }

    #[test]
    fn contenders_are_ordered_by_their_revisions() {
        let look = look(
            &[
                ("read/5", 9),
                ("write/4", 7),
                ("read/3", 5),
                ("6f", 11),
                ("read/2", 4),
                ("read/7", 12),
            ],
            &[],
        );
        assert_eq!(look.queue.holders().collect::<Vec<_>>(), [0, 1]);
        let blocker = |rest: &str| {
            let at = look.find(&format!("dlock/job/{rest}")).unwrap();
            look.queue
                .blocker(look.queue.all()[at].mode, at)
                .map(|other| look.contenders[other].created)
        };
        assert_eq!(
            ["read/2", "write/4", "read/5", "read/7"].map(blocker),
            [None, Some(5), Some(7), Some(11)]
        );
    }

    #[test]
    fn deeper_or_malformed_names_are_not_part_of_the_lock() {
        let look = look(
            &[
                ("meta", 1),
                ("1/2f", 2),
                ("write/a/b", 3),
                ("write/", 4),
                ("2F", 5),
                ("0123456789abcdef0", 6),
                ("b", 7),
            ],
            &[],
        );
        assert_eq!(
            look.contenders
                .iter()
                .map(|one| one.created)
                .collect::<Vec<_>>(),
            [7]
        );
    }

    #[test]
    fn a_record_without_a_key_belongs_to_a_vanished_hold() {
        let (exclusive, shared) = (Mode::Exclusive, Mode::Shared);
        let look = look(
            &[("write/1a", 1), ("read/2b", 2)],
            &[
                ("1a", exclusive),
                ("2b", shared),
                ("3c", shared),
                ("4d", exclusive),
            ],
        );
        assert_eq!(look.vanished().count(), 2);
        let dying = |mode| {
            look.dying(mode)
                .into_iter()
                .map(|record| record.name)
                .collect::<Vec<_>>()
        };
        assert_eq!(
            dying(exclusive),
            ["dlock.meta/%open/job/3c", "dlock.meta/%open/job/4d"]
        );
        assert_eq!(
            dying(shared),
            ["dlock.meta/%open/job/4d"],
            "readers don't mind readers"
        );
    }
}
