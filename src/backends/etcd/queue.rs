//! A lock's folder as it was at one revision: who holds, who waits, and who vanished.

use std::collections::HashSet;

use super::{
    lookout::{Ahead, Call},
    messages::KeyValue,
    names::{self, Names},
    record::Record,
    starts::Starts,
    value::Value,
};
use crate::lock::{Fence, Mode};

/// How a key in a lock's folder contends for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// Alone, in the layout of dlock and of etcd's own read-write lock.
    Write,
    /// Beside other readers.
    Read,
    /// Alone, in the layout of `etcdctl lock`.
    Plain,
    /// Beside so many others of its kind.
    Permit,
}

impl Class {
    /// What the rest of a key's name after its lock's folder makes it; `None` for what is no part of this lock.
    pub(super) fn of(rest: &str) -> Option<Self> {
        let one = |id: &str| !id.is_empty() && !id.contains('/');
        if let Some(id) = rest.strip_prefix(names::PERMIT) {
            return one(id).then_some(Self::Permit);
        }
        if let Some(id) = rest.strip_prefix(names::WRITE) {
            return one(id).then_some(Self::Write);
        }
        if let Some(id) = rest.strip_prefix(names::READ) {
            return one(id).then_some(Self::Read);
        }
        let lease = (1..=16).contains(&rest.len()) && rest.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        lease.then_some(Self::Plain)
    }

    /// Whether one of this class that came before keeps one of `mode` from having the lock. Of permits that depends on how
    /// many there are.
    fn blocks(self, mode: Mode) -> bool {
        !matches!((self, mode), (Self::Read, Mode::Shared) | (Self::Permit, Mode::Permits(_)))
    }
}

/// One who holds or waits.
#[derive(Clone, Debug)]
pub(super) struct Contender {
    pub name: String,
    pub class: Class,
    /// The revision that it came with: its place in the order, and its fence.
    pub created: i64,
    /// 0 if nothing ends it.
    pub lease: i64,
    /// As far as it was asked for.
    pub value: Option<Vec<u8>>,
}

impl Contender {
    pub(super) fn fence(&self) -> Fence {
        Fence(u64::try_from(self.created).unwrap_or_default())
    }

    /// The last part of its name, which is its lease if it is one of dlock's.
    pub(super) fn id(&self) -> &str {
        let last = self.name.rsplit('/').next().unwrap_or_default();
        if self.class == Class::Permit { last.rsplit('-').next().unwrap_or_default() } else { last }
    }
}

/// A lock at one revision.
#[derive(Clone, Debug)]
pub(super) struct Look {
    pub revision: i64,
    /// In order.
    pub contenders: Vec<Contender>,
    /// The folder of the records.
    open: String,
    /// What those who put a record beside their key (all of dlock's) have put there.
    records: Vec<Record>,
    /// What is nested in holds.
    pub nested: Vec<Inner>,
    /// The permits that are held.
    pub numbers: Vec<Permit>,
    /// What the last runs have left.
    pub starts: Starts,
    /// Whether a waiter looks after the queue.
    pub looked_after: bool,
    /// The leases of the waiters that were called, and what each call says.
    pub calls: Vec<(i64, Call)>,
}

/// A permit that is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Permit {
    pub number: u32,
    /// The revision that it was taken with.
    pub created: i64,
    /// Of who has it, with which it ends.
    pub lease: i64,
}

impl Permit {
    /// Those of a lock, from the keys beside its last fence.
    pub(super) fn read(names: &Names, keys: &[KeyValue]) -> Vec<Self> {
        let folder = names.numbers();
        let number = |kv: &KeyValue| {
            let number = str::from_utf8(&kv.key).ok()?.strip_prefix(&*folder)?.parse().ok()?;
            Some(Self { number, created: kv.create_revision, lease: kv.lease })
        };
        keys.iter().filter_map(number).collect()
    }
}

/// What one in the queue waits for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Before {
    /// The key before it, to go.
    pub key: Option<String>,
    /// The record of that, to change: it is of one who waits for a permit too, and goes on when that is granted.
    pub record: Option<String>,
    /// The folder of the permits, for any of them to come back.
    pub numbers: Option<String>,
}

/// A hold nested in another, or the mark of an outer hold that was given back.
#[derive(Clone, Debug)]
pub(super) struct Inner {
    /// The lease of the hold that it is nested in, as it stands in names.
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
    /// From the folder's keys without values, the first of them with values, and the records beside.
    pub(super) fn new(names: &Names, revision: i64, keys: Vec<KeyValue>, with_values: Vec<KeyValue>, open: Vec<KeyValue>) -> Self {
        let contender = |kv: KeyValue, value| {
            let name = String::from_utf8(kv.key).ok()?;
            let class = Class::of(name.strip_prefix(&*names.folder)?)?;
            Some(Contender { name, class, created: kv.create_revision, lease: kv.lease, value })
        };
        let mut contenders: Vec<_> = keys.into_iter().filter_map(|kv| contender(kv, None)).collect();
        contenders.sort_by_key(|one| one.created);
        for mut kv in with_values {
            let value = std::mem::take(&mut kv.value);
            if let Some(one) = contenders.iter_mut().find(|one| one.created == kv.create_revision && one.name.as_bytes() == kv.key) {
                one.value = Some(value);
            }
        }
        let records = open.into_iter().filter_map(Record::read).collect();
        let (nested, numbers, calls) = (Vec::new(), Vec::new(), Vec::new());
        Self { revision, contenders, open: names.open(), records, nested, numbers, starts: Starts::default(), looked_after: false, calls }
    }

    /// The record beside a key.
    pub(super) fn record_of(&self, one: &Contender) -> Option<&Record> {
        let id = one.id();
        self.records.iter().find(|record| record.name.strip_prefix(&*self.open) == Some(id))
    }

    /// The records of those whose key is gone although they did not remove both: their lease ended or was revoked, or
    /// somebody deleted the key. Whatever they ran may still be dying.
    pub(super) fn vanished(&self) -> impl Iterator<Item = &Record> {
        let present: HashSet<&str> = self.contenders.iter().map(Contender::id).collect();
        self.records.iter().filter(move |record| record.name.strip_prefix(&*self.open).is_some_and(|id| !present.contains(id)))
    }

    /// Adds what is nested in holds, from its keys.
    pub(super) fn with_nested(mut self, names: &Names, keys: Vec<KeyValue>) -> Self {
        let folder = names.all_nested();
        let inner = |kv: KeyValue| {
            let name = String::from_utf8(kv.key).ok()?;
            let (outer, _) = name.strip_prefix(&*folder)?.split_once('/')?;
            Some(Inner { outer: outer.to_owned(), created: kv.create_revision, lease: kv.lease, name })
        };
        self.nested = keys.into_iter().filter_map(inner).collect();
        self
    }

    /// The permit that one has.
    pub(super) fn number_of(&self, one: &Contender) -> Option<&Permit> {
        self.numbers.iter().find(|number| one.class == Class::Permit && number.lease == one.lease)
    }

    /// How one wants the lock, or has it.
    pub(super) fn mode_of(&self, one: &Contender) -> Mode {
        match (one.class, self.record_of(one).map(|record| record.mode)) {
            (Class::Read, _) => Mode::Shared,
            (Class::Write | Class::Plain, _) => Mode::Exclusive,
            (Class::Permit, Some(mode @ Mode::Permits(_))) => mode,
            // Without its record no more is known than that there must be so many.
            (Class::Permit, _) => Mode::Permits(self.number_of(one).map_or(1, |number| number.number.saturating_add(1))),
        }
    }

    /// What is nested in the hold with this lease, the mark that it was given back included.
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

    /// The last one of those at the first `place` places who keep one of `mode` from having the lock.
    pub(super) fn blocker(&self, mode: Mode, place: usize) -> Option<&Contender> {
        self.contenders[..place].iter().rev().find(|one| one.class.blocks(mode))
    }

    /// Whether one of `mode` at `place`, or who would come to it, can have the lock by those who are there.
    ///
    /// A permit is granted as soon as there is room for all who were there before and for itself, in whichever order they come
    /// for it. What is held is counted, not which numbers those are: a lower number of permits rules for who asks for that.
    pub(super) fn lets(&self, mode: Mode, place: usize) -> bool {
        let Mode::Permits(most) = mode else { return self.blocker(mode, place).is_none() };
        let before = &self.contenders[..place];
        let waiting = before.iter().filter(|one| self.number_of(one).is_none()).count();
        self.blocker(mode, place).is_none() && self.numbers.len() + waiting < usize::try_from(most).unwrap_or(usize::MAX)
    }

    /// The lowest number that no permit has.
    pub(super) fn free_number(&self) -> u32 {
        let mut taken: Vec<_> = self.numbers.iter().map(|number| number.number).collect();
        taken.sort_unstable();
        taken.into_iter().fold(0, |free, number| if number == free { free + 1 } else { free })
    }

    /// What one of `mode` at `place` waits for, whom the lock isn't for yet.
    ///
    /// Of those who wait for permits only the first one watches what is held. Each one behind watches the one before, who
    /// is granted a permit or goes, so that one that comes back wakes one. Whoever asks for more permits than all before
    /// may be let when they are not, and watches what is held too.
    pub(super) fn before(&self, names: &Names, mode: Mode, place: usize) -> Before {
        let Mode::Permits(most) = mode else {
            return Before { key: self.blocker(mode, place).map(|one| one.name.clone()), ..Before::default() };
        };
        let before = &self.contenders[..place];
        let waits = |one: &&Contender| one.class == Class::Permit && self.number_of(one).is_none();
        // One in between may have been granted a permit out of turn.
        let last = before.iter().rfind(|one| one.class != Class::Permit || waits(one));
        let asks_for_fewer = |one: &Contender| matches!(self.mode_of(one), Mode::Permits(other) if other < most);
        let first = self.blocker(mode, place).is_none() && before.iter().filter(waits).all(asks_for_fewer);
        Before {
            key: last.map(|one| one.name.clone()),
            record: last.filter(waits).map(|one| names.open_as(one.id())),
            numbers: first.then(|| names.numbers()),
        }
    }

    /// One that waits and has put a record, as dlock does.
    pub(super) fn waiting(&self, one: &Contender) -> Option<Ahead> {
        let record = self.record_of(one).filter(|record| record.held.is_none() && one.lease != 0 && self.number_of(one).is_none())?;
        let (key, record, revision) = (one.name.clone(), record.name.clone(), record.revision);
        let called = self.calls.iter().find(|(lease, _)| *lease == one.lease).map(|(_, called)| *called);
        let answers = one.value.as_deref().is_some_and(|value| matches!(Value::read(value), Ok(Some(_))));
        Some(Ahead { key, created: one.created, lease: one.lease, record, revision, answers, called })
    }

    /// The first that waits and is not of this lease.
    pub(super) fn first_waiting(&self, lease: i64) -> Option<Ahead> {
        self.waiters().filter(|one| one.lease != lease).find_map(|one| self.waiting(one))
    }

    /// Whether the first one only waits, since a run before keeps everybody from the lock for a while.
    fn first_is_kept(&self) -> bool {
        self.starts.keeps_everybody() && self.contenders.first().is_some_and(|one| self.only_waits(one))
    }

    /// Whether its record says that it was not granted the lock so far; in a store that is full it goes on saying so.
    pub(super) fn only_waits(&self, one: &Contender) -> bool {
        self.record_of(one).is_some_and(|record| record.held.is_none())
    }

    /// Whether the one at `place` has the lock, be it that it doesn't know yet.
    pub(super) fn has(&self, place: usize) -> bool {
        let one = &self.contenders[place];
        match one.class {
            Class::Permit => self.number_of(one).is_some(),
            class => {
                self.contenders[..place].iter().all(|before| before.class == Class::Read && class == Class::Read) && !self.first_is_kept()
            }
        }
    }

    /// Whether the one at `place` was granted the lock, as far as is known.
    fn holds(&self, place: usize) -> bool {
        self.has(place) && !self.only_waits(&self.contenders[place])
    }

    /// Those who were granted the lock.
    pub(super) fn holders(&self) -> impl Iterator<Item = &Contender> {
        (0..self.contenders.len()).filter(|place| self.holds(*place)).map(|place| &self.contenders[place])
    }

    /// Those who wait.
    pub(super) fn waiters(&self) -> impl Iterator<Item = &Contender> {
        (0..self.contenders.len()).filter(|place| !self.holds(*place)).map(|place| &self.contenders[place])
    }

    /// The place of the one at `place` among those who wait, from 1.
    pub(super) fn position(&self, place: usize) -> u32 {
        u32::try_from((0..place).filter(|before| !self.holds(*before)).count() + 1).unwrap_or(u32::MAX)
    }

    /// The records of those whom one of `mode` has to leave time to die.
    pub(super) fn dying(&self, mode: Mode) -> Vec<Record> {
        self.vanished().filter(|one| mode != Mode::Shared || one.mode != Mode::Shared).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::{Key, Namespace};

    fn look(keys: &[(&str, i64)], open: &[(&str, &[u8])]) -> Look {
        let names = Names::new(&Namespace::default(), &Key::new("job").unwrap());
        let kv = |name: String, created: i64, value: &[u8]| KeyValue {
            key: name.into_bytes(),
            create_revision: created,
            mod_revision: created,
            version: 1,
            value: value.into(),
            lease: 1,
        };
        let keys = keys.iter().map(|(rest, created)| kv(format!("dlock/job/{rest}"), *created, b"")).collect();
        let open = open.iter().map(|(rest, value)| kv(format!("{}{rest}", names.open()), 1, value)).collect();
        Look::new(&names, 100, keys, Vec::new(), open)
    }

    fn blocker(look: &Look, mode: Mode, rest: &str) -> Option<i64> {
        let place = look.find(&format!("dlock/job/{rest}")).unwrap();
        look.blocker(mode, place).map(|one| one.created)
    }

    #[test]
    fn writers_wait_for_all_before_them_and_readers_for_writers() {
        let look = look(&[("read/5", 9), ("write/4", 7), ("read/3", 5), ("6f", 11), ("read/2", 4), ("read/7", 12)], &[]);
        assert_eq!(look.holders().count(), 2);
        for (mode, rest, expected) in [
            (Mode::Shared, "read/2", None),
            (Mode::Shared, "read/3", None),
            (Mode::Exclusive, "write/4", Some(5)),
            (Mode::Shared, "read/5", Some(7)),
            (Mode::Shared, "read/7", Some(11)),
        ] {
            assert_eq!(blocker(&look, mode, rest), expected, "{rest}");
        }
    }

    #[test]
    fn what_lies_deeper_or_has_another_shape_is_no_part_of_the_lock() {
        let look = look(&[("meta", 1), ("1/2f", 2), ("write/a/b", 3), ("write/", 4), ("2F", 5), ("0123456789abcdef0", 6), ("b", 7)], &[]);
        assert_eq!(look.contenders.iter().map(|one| one.created).collect::<Vec<_>>(), [7]);
    }

    #[test]
    fn who_left_a_record_without_a_key_vanished() {
        let look = look(&[("write/1a", 1), ("read/2b", 2)], &[("1a", b""), ("2b", b"read"), ("3c", b"read"), ("4d", b"")]);
        assert_eq!(look.vanished().count(), 2);
        let dying = |mode| look.dying(mode).into_iter().map(|record| record.name).collect::<Vec<_>>();
        assert_eq!(dying(Mode::Exclusive), ["dlock.meta/%open/job/3c", "dlock.meta/%open/job/4d"]);
        assert_eq!(dying(Mode::Shared), ["dlock.meta/%open/job/4d"], "readers don't mind readers");
    }
}
