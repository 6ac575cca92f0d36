//! What the last runs of a lock have left for those after them: at-least, skew guard, and once.
//!
//! etcd has no clock to judge by. So each of the three is a key on a lease of its own, which lasts as long as it is to count:
//! where the key is, it counts. What lasts is the time that the run asked for which began; of another length that a later one
//! asks for nothing is known. Leases are whole seconds, end up to a second late, and begin anew when another member leads or the
//! only one is started again: it may be kept longer than was asked for; and shorter by what the grant itself took, a second at
//! most ([`LATE`]).
//!
//! The keys are put in the step that grants. Only who has the lock puts them, so that whoever nobody is before can read them,
//! judge, and write. The leases are granted before that, together with the lock's own, so that it takes no longer; each attempt
//! has new ones, so that no late request of an earlier one ends what counts. Those that nothing came to lie on end by themselves.
//!
//! The interleavings that this is written against:
//! - *The answer to the granting step is lost*: asked again, the record beside the own key says that it was done, start and all.
//! - *The lease of the lock ends between being first and that step*: it compares the own key.
//! - *Somebody took and freed the lock between a try's look and its step*: it compares what it judged by.
//! - *A key ends beside a release*: what became of it is put only where it is unchanged, and its lease there with it.
//! - *There is no space*: a start that can't be recorded is not begun. What became of one stays unknown then.

use std::time::Duration;

use serde::{Serialize, de::DeserializeOwned};
use tokio::time::Instant;

use super::{
    client::{Answer, Client},
    failure,
    hold::TRIES,
    holders::{self, Left},
    messages::{Compare, KeyValue, RequestOp, TxnRequest},
    names::Names,
    ops::{self, Answers},
    waiting::{after, is_past},
};
use crate::lock::{Fence, Key, Paced, Record, Refusal, Request, Result, Stage, Start, Terms, Token, random};

/// Of any moment, since where a key is it counts.
const NOW: u64 = 1 << 40;
/// So long a grant may take; leases end so late anyway.
const LATE: Duration = Duration::from_secs(1);
/// How soon one who waits for the end of a lease looks again.
const SOONEST: Duration = Duration::from_millis(250);

/// One of the keys.
#[derive(Clone, Debug)]
struct Kept<T> {
    says: T,
    /// Of its last change.
    revision: i64,
    lease: i64,
}

/// What counts now.
#[derive(Clone, Debug, Default)]
pub(super) struct Starts {
    least: Option<Box<Kept<Paced>>>,
    guard: Option<Box<Kept<Paced>>>,
    once: Option<Box<Kept<Start>>>,
}

/// The leases for the keys of a start that is about to be recorded.
#[derive(Clone, Debug)]
pub(super) struct Leases {
    /// When they may have become too short by what has passed since they were asked for, by the runtime's clock.
    late_at: Instant,
    least: Option<i64>,
    guard: Option<i64>,
    once: Option<i64>,
}

impl Leases {
    /// For what `request` asks, and their lengths in seconds.
    pub(super) fn of(request: &Request) -> (Self, Vec<(i64, i64)>) {
        let mut wanted = Vec::new();
        let mut want = |length: Duration| {
            let id = i64::try_from(random() >> 1).unwrap_or(1).max(1);
            wanted.push((id, i64::try_from(length.as_millis().div_ceil(1000)).unwrap_or(i64::MAX).clamp(1, LONGEST)));
            id
        };
        let terms = request.terms.as_ref();
        let leases = Self {
            late_at: after(LATE),
            least: terms.and_then(|terms| terms.at_least).map(&mut want),
            guard: terms.and_then(|terms| terms.skew_guard).map(&mut want),
            once: terms.and_then(|terms| terms.once).map(|once| want(once.window)),
        };
        (leases, wanted)
    }

    /// Grants them.
    pub(super) async fn grant(client: &mut Client, request: &Request) -> Answer<Self> {
        let (leases, wanted) = Self::of(request);
        for granted in client.grant_all(&wanted).await {
            granted?;
        }
        Ok(leases)
    }

    /// Lets them begin anew, if the grant took so long that it matters. No failure of that is worth a grant.
    pub(super) async fn freshen(&self, client: &mut Client) {
        if is_past(self.late_at) {
            for id in [self.least, self.guard, self.once].into_iter().flatten() {
                let _ = client.keep_alive(id).await;
            }
        }
    }

    /// Ends them, since nothing lies on them. They would end by themselves.
    pub(super) async fn end(self, client: &mut Client) {
        let ids: Vec<_> = [self.least, self.guard, self.once].into_iter().flatten().collect();
        client.revoke_all(&ids).await;
    }
}

/// The longest lease that etcd grants, in seconds.
const LONGEST: i64 = 9_000_000_000;

/// Whether there is something to record.
pub(super) fn records(request: &Request) -> bool {
    request.terms.as_ref().is_some_and(Terms::record_anything)
}

fn json(what: &impl Serialize) -> Vec<u8> {
    // Strings and numbers can be written.
    serde_json::to_vec(what).unwrap_or_default()
}

impl Starts {
    /// From the keys beside a lock's last fence.
    pub(super) fn read(names: &Names, keys: Vec<KeyValue>) -> Result<Self> {
        fn kept<T: DeserializeOwned>(kv: &KeyValue) -> Result<Option<Box<Kept<T>>>> {
            let says = serde_json::from_slice(&kv.value).map_err(|_| failure::spoilt(&kv.key))?;
            Ok(Some(Box::new(Kept { says, revision: kv.mod_revision, lease: kv.lease })))
        }
        let mut starts = Self::default();
        for kv in keys {
            if kv.key == names.least().as_bytes() {
                starts.least = kept(&kv)?;
            } else if kv.key == names.guard().as_bytes() {
                starts.guard = kept(&kv)?;
            } else if kv.key == names.once().as_bytes() {
                starts.once = kept(&kv)?;
            }
        }
        // Put together with the key whose revision is the fence, they can't name it.
        let own = |fence: &mut Fence, revision: i64| {
            if fence.0 == 0 {
                *fence = Fence(u64::try_from(revision).unwrap_or_default());
            }
        };
        for paced in [&mut starts.least, &mut starts.guard].into_iter().flatten() {
            own(&mut paced.says.fence, paced.revision);
        }
        if let Some(start) = &mut starts.once {
            own(&mut start.says.fence, start.revision);
        }
        Ok(starts)
    }

    /// Whether everybody is kept from the lock.
    pub(super) fn keeps_everybody(&self) -> bool {
        self.least.is_some()
    }

    /// Whether the start of the hold with this fence is among them.
    pub(super) fn knows(&self, fence: Fence) -> bool {
        let paced = [&self.least, &self.guard].into_iter().flatten().any(|kept| kept.says.fence == fence);
        paced || self.once.as_ref().is_some_and(|kept| kept.says.fence == fence)
    }

    /// Whether anything lies on these leases.
    pub(super) fn use_of(&self, leases: &Leases) -> bool {
        let on = |lease: Option<i64>, own: Option<i64>| lease.is_some() && lease == own;
        let of = |kept: &Option<Box<Kept<Paced>>>| kept.as_ref().map(|kept| kept.lease);
        on(leases.least, of(&self.least)) || on(leases.guard, of(&self.guard)) || on(leases.once, self.once.as_ref().map(|kept| kept.lease))
    }

    /// As people are told of it, by the clocks of the hosts.
    pub(super) fn record(&self) -> Record {
        let paced = [&self.least, &self.guard].into_iter().flatten().map(|kept| &kept.says).max_by_key(|paced| paced.fence);
        Record { paced: paced.cloned(), start: self.once.as_ref().map(|kept| kept.says.clone()) }
    }

    /// Why a lock that is free is not to be granted, and the lease that this ends with.
    pub(super) fn judge(&self, terms: Option<&Terms>, token: &Token) -> Option<(Refusal, i64)> {
        let paced = |kept: &Kept<Paced>, guard: bool| {
            let [guard_ms, at_least_ms] = if guard { [kept.says.guard_ms, 0] } else { [0, kept.says.at_least_ms] };
            let paced = Paced { at_ms: NOW, guard_ms, at_least_ms, ..kept.says.clone() };
            (Record { paced: Some(paced), start: None }, kept.lease)
        };
        let least = self.least.as_ref().map(|kept| paced(kept, false));
        let guard = self.guard.as_ref().map(|kept| paced(kept, true));
        let once = self.once.as_ref().map(|kept| {
            let start = Start { at_ms: NOW, ..kept.says.clone() };
            (Record { paced: None, start: Some(start) }, kept.lease)
        });
        [least, guard, once].into_iter().flatten().find_map(|(record, lease)| Some((record.judge(terms, token, NOW)?, lease)))
    }

    /// That nothing has changed of what one with these terms is judged by.
    pub(super) fn unchanged(&self, names: &Names, terms: Option<&Terms>) -> Vec<Compare> {
        fn at<T>(name: &str, kept: Option<&Kept<T>>) -> Compare {
            // What isn't there has revision 0.
            ops::unchanged(name, kept.map_or(0, |kept| kept.revision))
        }
        let mut compare = vec![at(&names.least(), self.least.as_deref())];
        if terms.is_some_and(|terms| terms.skew_guard.is_some()) {
            compare.push(at(&names.guard(), self.guard.as_deref()));
        }
        if terms.is_some_and(|terms| terms.once.is_some()) {
            compare.push(at(&names.once(), self.once.as_deref()));
        }
        compare
    }

    /// What records the start that follows these. The fence is `None` if its key is put in the same step.
    pub(super) fn begin(&self, names: &Names, request: &Request, fence: Option<Fence>, leases: &Leases) -> Vec<RequestOp> {
        let at_ms = request.at_ms.unwrap_or_default();
        // It counts, whenever its host thinks that it was.
        let before = self.once.as_ref().map(|kept| Start { at_ms, ..kept.says.clone() });
        let mut record = Record { paced: None, start: before };
        record.begin(request, fence.unwrap_or(Fence(0)), at_ms);
        let mut ops = Vec::new();
        if let Some(paced) = &record.paced {
            // One run's replaces all of another's.
            for (name, lease) in [(names.least(), leases.least), (names.guard(), leases.guard)] {
                ops.push(lease.map_or_else(|| ops::delete(&name), |lease| ops::put(&name, json(paced), lease)));
            }
        }
        if let (Some(start), Some(lease)) = (&record.start, leases.once) {
            ops.push(ops::put(&names.once(), json(start), lease));
        }
        ops
    }

    /// What takes down what became of the start of the hold with this fence.
    pub(super) fn end(&self, names: &Names, fence: Fence, stage: Option<Stage>) -> Vec<RequestOp> {
        let Some(stage) = stage else { return Vec::new() };
        let mut ops = Vec::new();
        for (name, kept) in [(names.least(), &self.least), (names.guard(), &self.guard)] {
            if let Some(kept) = kept.as_ref().filter(|kept| stage == Stage::Undone && kept.says.fence == fence) {
                ops.push(ops::when(vec![ops::unchanged(&name, kept.revision)], vec![ops::delete(&name)], Vec::new()));
            }
        }
        if let Some(kept) = &self.once {
            let mut record = Record { paced: None, start: Some(kept.says.clone()) };
            if record.end(fence, stage)
                && let Some(start) = &record.start
            {
                let name = names.once();
                // Where the key is, so is its lease.
                let put = ops::put(&name, json(start), kept.lease);
                ops.push(ops::when(vec![ops::unchanged(&name, kept.revision)], vec![put], Vec::new()));
            }
        }
        ops
    }

    /// Ends the lease of the start before one that was recorded with these: nothing lies on it any more, and it may be long.
    pub(super) async fn end_before(&self, client: &mut Client, leases: &Leases) {
        if let Some(kept) = self.once.as_ref().filter(|_| leases.once.is_some()) {
            client.revoke_all(&[kept.lease]).await;
        }
    }
}

/// Adds to a refusal what the lease says that it goes by: when it began, and when it ends.
///
/// One who waits is told to ask so early that its place does not end meanwhile, whose lease lasts as long as this.
pub(super) async fn with_times(client: &mut Client, (refusal, lease): (Refusal, i64), waits: Option<Duration>) -> Box<Refusal> {
    // No refusal depends on that.
    let (left, began) = match holders::left(client, lease).await {
        Ok(Left::For { left, ago }) => (Some(left), Some(ago)),
        _ => (None, None),
    };
    let again_in = match waits {
        None => left,
        Some(lasts) => Some(left.unwrap_or(lasts).saturating_sub(Duration::from_secs(1)).min(lasts / 3).max(SOONEST)),
    };
    Box::new(Refusal { began, again_in, ..refusal })
}

/// Claims the warning of this level about a hold; whether nobody had one of that level or a higher one. What is noted of it ends
/// with the hold: of one that is over nobody is warned.
pub(super) async fn claim_warning(client: &mut Client, key: &Key, fence: Fence, level: u32) -> Answer<bool> {
    let names = Names::new(&client.options().namespace, key);
    let warned = names.warned();
    for _ in 0..TRIES {
        let mut asked = ops::look(&names, 1);
        asked.push(ops::get(&warned));
        let mut answers = Answers::of(client.txn(ops::read(asked)).await?)?;
        let (look, known) = (answers.look(&names)?, answers.one()?);
        let place = look.contenders.iter().position(|one| one.fence() == fence).filter(|place| look.has(*place));
        let Some(one) = place.map(|place| &look.contenders[place]) else { return Ok(false) };
        let said: Option<(Fence, u32)> = known.as_ref().and_then(|kv| serde_json::from_slice(&kv.value).ok());
        if said.is_some_and(|said| said >= (fence, level)) {
            return Ok(false);
        }
        let compare = vec![ops::created_at(&one.name, one.created), ops::unchanged(&warned, known.map_or(0, |kv| kv.mod_revision))];
        let txn = TxnRequest { compare, success: vec![ops::put(&warned, json(&(fence, level)), one.lease)], failure: Vec::new() };
        if Answers::of(client.txn(txn).await?)?.succeeded {
            return Ok(true);
        }
    }
    Err(failure::contended().into())
}
