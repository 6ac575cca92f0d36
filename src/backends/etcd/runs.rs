//! The run records that earlier runs leave for later ones: at-least, skew guard, and once.
//!
//! etcd has no clock to judge them by. So there is a key for each of the three, on a lease of its own that lasts as long as the record counts:
//! while the key is there, it counts. Its length is the one that its run asked for. Leases are whole seconds, end up to a second late, and
//! begin anew when another member leads: a record may count for longer than was asked for, and shorter by what the grant itself took, a second
//! at most ([`LATE`]).
//!
//! The step that grants puts the keys. The leases are granted before, together with the lock's own, so that it takes no longer; each attempt has
//! new ones, so that no late request of an earlier attempt ends what counts. A lease without a key ends by itself.
//!
//! The interleavings that this is written against:
//! - *The answer to the granting step is lost*: asked again, the record next to the own key says that it was done, run records included.
//! - *The lease of the lock ends before that step*: the step compares the own key.
//! - *Another process takes and releases the lock between a try's look and its step*: the step compares what it was judged by.
//! - *A key ends during a release*: the outcome is put only where the key is unchanged, and then its lease is there.
//! - *There is no space*: a run that can't be recorded is not begun. The outcome of one stays unknown then.

use std::time::Duration;

use tokio::time::Instant;

use super::{
    client::{Answer, Client},
    failure::{self, Trouble},
    look::{self, Left},
    messages::{Compare, KeyValue, RequestOp},
    names::Names,
    ops, queue,
    waiting::{after, is_past},
};
use crate::{
    backends::queue::record::{read_runs, write_runs},
    lock::{Denial, Fence, Kind, Request, Result, RunPolicy, RunRecord, RunState, Token, random},
};

/// Of any moment: where a key is, it counts.
const NOW: u64 = 1 << 40;
/// How long a grant may take; leases end that late anyway.
const LATE: Duration = Duration::from_secs(1);
/// How soon a waiter for the end of a lease looks again.
const SOONEST: Duration = Duration::from_millis(250);
/// The longest lease that etcd grants, in seconds.
const LONGEST: i64 = 9_000_000_000;

/// What a run record is for; each has a key of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Policy {
    AtLeast,
    SkewGuard,
    Once,
}

/// In the order in which they are judged.
const POLICIES: [Policy; 3] = [Policy::AtLeast, Policy::SkewGuard, Policy::Once];

impl Policy {
    fn key(self, names: &Names) -> String {
        match self {
            Self::AtLeast => names.least(),
            Self::SkewGuard => names.run_record("guard"),
            Self::Once => names.run_record("once"),
        }
    }

    /// How long the record of a run with these run policy counts.
    fn length(self, run_policy: &RunPolicy) -> Option<Duration> {
        match self {
            Self::AtLeast => run_policy.at_least,
            Self::SkewGuard => run_policy.skew_guard,
            Self::Once => run_policy.once.map(|once| once.window),
        }
    }

    /// The part of a record that is for this.
    fn part(self, record: &RunRecord) -> RunRecord {
        match self {
            Self::Once => RunRecord { cooldown: None, start: record.start.clone() },
            _ => RunRecord { cooldown: record.cooldown.clone(), start: None },
        }
    }
}

/// A key with a run record.
#[derive(Clone, Debug)]
struct RunKey {
    record: RunRecord,
    /// Of its last change.
    revision: i64,
    lease: i64,
}

impl RunKey {
    fn read(kv: &KeyValue) -> Result<Self> {
        let mut record = read_runs(&kv.value).map_err(|error| if error.kind == Kind::Layout { error } else { failure::spoilt(&kv.key) })?;
        let (cooldown, start) =
            (record.cooldown.as_mut().map(|cooldown| &mut cooldown.fence), record.start.as_mut().map(|start| &mut start.fence));
        for fence in [cooldown, start].into_iter().flatten().filter(|fence| fence.0 == 0) {
            // Put together with the key whose revision is the fence, it can't name it.
            *fence = queue::fence(kv.mod_revision);
        }
        Ok(Self { record, revision: kv.mod_revision, lease: kv.lease })
    }

    fn fence(&self) -> Option<Fence> {
        self.record.cooldown.as_ref().map(|cooldown| cooldown.fence).or(self.record.start.as_ref().map(|start| start.fence))
    }

    /// The record as it counts for this policy, at any time.
    fn counting(&self, policy: Policy) -> RunRecord {
        let mut record = self.record.clone();
        if let Some(cooldown) = &mut record.cooldown {
            cooldown.at_ms = NOW;
            *if policy == Policy::AtLeast { &mut cooldown.guard_ms } else { &mut cooldown.at_least_ms } = 0;
        }
        if let Some(start) = &mut record.start {
            start.at_ms = NOW;
        }
        record
    }
}

/// The run records that count now, by [`POLICIES`].
#[derive(Clone, Debug, Default)]
pub(super) struct Runs([Option<Box<RunKey>>; 3]);

/// The leases for the records of a run that is about to begin.
#[derive(Clone, Debug)]
pub(super) struct Leases {
    /// When they may have become too short by what has passed since they were asked for, by the runtime's clock.
    late_at: Instant,
    ids: [Option<i64>; 3],
}

impl Leases {
    /// For what `request` asks, and their lengths in seconds.
    pub(super) fn of(request: &Request) -> (Self, Vec<(i64, i64)>) {
        let mut wanted = Vec::new();
        let ids = POLICIES.map(|policy| {
            let length = policy.length(request.run_policy.as_ref()?)?;
            let id = i64::try_from(random() >> 1).unwrap_or(1).max(1);
            wanted.push((id, i64::try_from(length.as_millis().div_ceil(1000)).unwrap_or(i64::MAX).clamp(1, LONGEST)));
            Some(id)
        });
        (Self { late_at: after(LATE), ids }, wanted)
    }

    /// Grants them.
    pub(super) async fn grant(client: &mut Client, request: &Request) -> Answer<Self> {
        let (leases, wanted) = Self::of(request);
        Self::granted(client.grant_all(&wanted).await)?;
        Ok(leases)
    }

    /// Whether all were granted. Their numbers are random: one that is there already was granted by a member that was asked before, and left
    /// for being silent.
    pub(super) fn granted(answers: impl IntoIterator<Item = Answer<i64>>) -> Answer<()> {
        answers.into_iter().try_for_each(|answer| match answer {
            Ok(_) | Err(Trouble::LeaseExists) => Ok(()),
            Err(trouble) => Err(trouble),
        })
    }

    /// Lets them begin anew, if the grant took so long that it matters. A grant does not depend on that.
    pub(super) async fn freshen(&self, client: &mut Client) {
        if is_past(self.late_at) {
            for id in self.ids.into_iter().flatten() {
                let _ = client.keep_alive(id).await;
            }
        }
    }

    /// Ends them, since nothing lies on them. They would end by themselves.
    pub(super) async fn end(self, client: &mut Client) {
        let ids: Vec<_> = self.ids.into_iter().flatten().collect();
        client.revoke_all(&ids).await;
    }
}

/// Whether a run with this request is recorded.
pub(super) fn records(request: &Request) -> bool {
    request.run_policy.as_ref().is_some_and(RunPolicy::record_anything)
}

impl Runs {
    /// From the keys below a lock's last fence.
    pub(super) fn read(names: &Names, keys: Vec<KeyValue>) -> Result<Self> {
        let mut runs = Self::default();
        for kv in keys {
            if let Some(at) = POLICIES.iter().position(|policy| kv.key == policy.key(names).as_bytes()) {
                runs.0[at] = Some(Box::new(RunKey::read(&kv)?));
            }
        }
        Ok(runs)
    }

    fn keys(&self) -> impl Iterator<Item = (Policy, &RunKey)> {
        POLICIES.into_iter().zip(&self.0).filter_map(|(policy, key)| Some((policy, &**key.as_ref()?)))
    }

    fn once(&self) -> Option<&RunKey> {
        self.0[2].as_deref()
    }

    /// Whether the run of the hold with this fence is recorded.
    pub(super) fn knows(&self, fence: Fence) -> bool {
        self.keys().any(|(_, key)| key.fence() == Some(fence))
    }

    /// Whether anything lies on these leases.
    pub(super) fn use_of(&self, leases: &Leases) -> bool {
        self.0.iter().zip(leases.ids).any(|(key, id)| id.is_some() && id == key.as_ref().map(|key| key.lease))
    }

    /// For people, by the clocks of the hosts.
    pub(super) fn record(&self) -> RunRecord {
        let cooldown = self.keys().filter_map(|(_, key)| key.record.cooldown.as_ref()).max_by_key(|cooldown| cooldown.fence);
        RunRecord { cooldown: cooldown.cloned(), start: self.once().and_then(|key| key.record.start.clone()) }
    }

    /// Why the run policy denies a request, and the lease that this ends with.
    pub(super) fn judge(&self, run_policy: Option<&RunPolicy>, token: &Token) -> Option<(Denial, i64)> {
        self.keys().find_map(|(policy, key)| Some((key.counting(policy).judge(run_policy, token, NOW)?, key.lease)))
    }

    /// That nothing has changed of what a request with these run policy is judged by.
    pub(super) fn unchanged(&self, names: &Names, run_policy: Option<&RunPolicy>) -> Vec<Compare> {
        let asks = |policy: Policy| policy == Policy::AtLeast || run_policy.is_some_and(|run_policy| policy.length(run_policy).is_some());
        let policies = POLICIES.into_iter().zip(&self.0).filter(|(policy, _)| asks(*policy));
        // A key that isn't there has revision 0.
        policies.map(|(policy, key)| ops::unchanged(&policy.key(names), key.as_ref().map_or(0, |key| key.revision))).collect()
    }

    /// What records the run that follows these. The fence is `None` if its key is put in the same step.
    pub(super) fn begin(&self, names: &Names, request: &Request, fence: Option<Fence>, leases: &Leases) -> Vec<RequestOp> {
        let mut record = self.once().map(|key| key.record.clone()).unwrap_or_default();
        let at_ms = request.at_ms.unwrap_or_default();
        if let Some(start) = &mut record.start {
            // It counts, whatever time its host had.
            start.at_ms = at_ms;
        }
        record.begin(request, fence.unwrap_or(Fence(0)), at_ms);
        let mut ops = Vec::new();
        for (policy, lease) in POLICIES.into_iter().zip(leases.ids) {
            let (name, part) = (policy.key(names), policy.part(&record));
            match lease {
                Some(lease) => ops.push(ops::put(&name, write_runs(&part), lease)),
                // The record of one run replaces all of another's.
                None if part.cooldown.is_some() => ops.push(ops::delete(&name)),
                None => {}
            }
        }
        ops
    }

    /// What records the outcome of the run of the hold with this fence.
    pub(super) fn end(&self, names: &Names, fence: Fence, stage: Option<RunState>) -> Vec<RequestOp> {
        let Some(stage) = stage else { return Vec::new() };
        let changed = self.keys().filter_map(|(policy, key)| {
            let mut record = key.record.clone();
            let name = policy.key(names);
            // Where the key is, its lease is too.
            let change = record.end(fence, stage).then(|| {
                if record == RunRecord::default() { ops::delete(&name) } else { ops::put(&name, write_runs(&record), key.lease) }
            })?;
            Some(ops::when(vec![ops::unchanged(&name, key.revision)], vec![change], Vec::new()))
        });
        changed.collect()
    }

    /// Ends the lease of the record before one that was put with these: nothing lies on it any more, and it may be long.
    pub(super) async fn end_before(&self, client: &mut Client, leases: &Leases) {
        if let (Some(key), [.., Some(_)]) = (self.once(), leases.ids) {
            client.revoke_all(&[key.lease]).await;
        }
    }
}

/// Adds to a denial what the lease of its record tells: when that began, and when it ends.
///
/// A waiter is told to ask again so early that its place, on a lease of this length, does not end meanwhile.
pub(super) async fn with_times(client: &mut Client, (denial, lease): (Denial, i64), waits: Option<Duration>) -> Box<Denial> {
    // No denial depends on that.
    let (left, began) = match look::left(client, lease).await {
        Ok(Left::For { left, ago }) => (Some(left), Some(ago)),
        _ => (None, None),
    };
    let again_in = match waits {
        None => left,
        Some(lasts) => Some(left.unwrap_or(lasts).saturating_sub(Duration::from_secs(1)).min(lasts / 3).max(SOONEST)),
    };
    Box::new(Denial { began, again_in, ..denial })
}
