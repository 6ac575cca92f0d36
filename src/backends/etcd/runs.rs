//! The run records that earlier runs leave for later ones: at-least, skew guard, and once.
//!
//! etcd has no clock to judge them by. So each of the three has a key on a lease of its own, which lasts as long as the record counts: the
//! record counts while its key exists. The run chooses the lease's length. Leases are whole seconds, end up to a second late, and restart
//! when another member becomes leader. So a record may count longer than requested, or shorter by the duration of the grant, at most a
//! second ([`LATE`]).
//!
//! The granting step puts the keys. Their leases are granted before, together with the lock's, to save time. Each attempt has new leases,
//! so that no late request of an earlier attempt ends a record that counts. A lease without a key expires by itself.
//!
//! The code handles these interleavings:
//! - *The answer to the granting step is lost.* A repeated request finds the record of the own key: the step was done, with run records.
//! - *The lease of the lock ends before that step.* The step compares the own key.
//! - *Another process takes and releases the lock between a look and its step.* The step compares the judged keys.
//! - *A key expires during a release.* The outcome is put only if the key is unchanged, and then its lease exists.
//! - *There is no space.* A run that can't be recorded is not begun. The outcome of a begun run stays unknown.

use std::time::Duration;

use tokio::time::Instant;

use super::{
    client::{EtcdClient, EtcdResult},
    clock::{after, is_past},
    failure::{self, Trouble},
    messages::{Compare, KeyValue, RequestOp},
    names::EtcdNames,
    ops, record,
};
use crate::{
    backends::queue::record::{read_runs, write_runs},
    lock::{Denial, Fence, Kind, Request, Result, RunPolicy, RunRecord, RunState, Token, random},
};

/// A time for every moment: a record counts while its key exists.
const NOW: u64 = 1 << 40;
/// How long a grant may take; leases end that late anyway.
const LATE: Duration = Duration::from_secs(1);
/// The longest lease that etcd grants, in seconds.
const LONGEST: i64 = 9_000_000_000;

/// The purpose of a run record. Each purpose has a key of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RecordKind {
    AtLeast,
    SkewGuard,
    Once,
}

/// The order in which the policies are judged.
const RECORD_KINDS: [RecordKind; 3] = [RecordKind::AtLeast, RecordKind::SkewGuard, RecordKind::Once];

impl RecordKind {
    fn key(self, names: &EtcdNames) -> String {
        match self {
            Self::AtLeast => names.least(),
            Self::SkewGuard => names.run_record("guard"),
            Self::Once => names.run_record("once"),
        }
    }

    /// Returns how long the record of a run with this run policy counts.
    fn length(self, run_policy: &RunPolicy) -> Option<Duration> {
        match self {
            Self::AtLeast => run_policy.at_least,
            Self::SkewGuard => run_policy.skew_guard,
            Self::Once => run_policy.once.map(|once| once.window),
        }
    }

    /// Returns the part of a record for this purpose.
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
    /// The modification revision.
    revision: i64,
    lease: i64,
}

impl RunKey {
    fn read(kv: &KeyValue) -> Result<Self> {
        let mut record =
            read_runs(&kv.value).map_err(|error| if error.kind == Kind::Layout { error } else { failure::unreadable_value(&kv.key) })?;
        let (cooldown, start) =
            (record.cooldown.as_mut().map(|cooldown| &mut cooldown.fence), record.start.as_mut().map(|start| &mut start.fence));
        for fence in [cooldown, start].into_iter().flatten().filter(|fence| fence.0 == 0) {
            // The record was put in the step that created the key whose revision is the fence, so it can't contain the fence.
            *fence = record::fence(kv.mod_revision);
        }
        Ok(Self { record, revision: kv.mod_revision, lease: kv.lease })
    }

    fn fence(&self) -> Option<Fence> {
        self.record.cooldown.as_ref().map(|cooldown| cooldown.fence).or(self.record.start.as_ref().map(|start| start.fence))
    }

    /// Returns the record as it counts for this policy, at any time.
    fn as_it_counts(&self, policy: RecordKind) -> RunRecord {
        let mut record = self.record.clone();
        if let Some(cooldown) = &mut record.cooldown {
            cooldown.at_ms = NOW;
            *if policy == RecordKind::AtLeast { &mut cooldown.guard_ms } else { &mut cooldown.at_least_ms } = 0;
        }
        if let Some(start) = &mut record.start {
            start.at_ms = NOW;
        }
        record
    }
}

/// The run records that count now, in the order of [`RECORD_KINDS`].
#[derive(Clone, Debug, Default)]
pub(super) struct RunKeys([Option<Box<RunKey>>; 3]);

/// The leases for the records of a run that is about to begin.
#[derive(Clone, Debug)]
pub(super) struct Leases {
    /// When the leases may have become too short since they were requested, by the runtime's clock.
    late_at: Instant,
    ids: [Option<i64>; 3],
}

impl Leases {
    /// Returns the leases for `request`, and their lengths in seconds.
    pub(super) fn of(request: &Request) -> (Self, Vec<(i64, i64)>) {
        let mut wanted = Vec::new();
        let ids = RECORD_KINDS.map(|policy| {
            let length = policy.length(request.run_policy.as_ref()?)?;
            let id = i64::try_from(random() >> 1).unwrap_or(1).max(1);
            wanted.push((id, i64::try_from(length.as_millis().div_ceil(1000)).unwrap_or(i64::MAX).clamp(1, LONGEST)));
            Some(id)
        });
        (Self { late_at: after(LATE), ids }, wanted)
    }

    /// Grants the leases.
    pub(super) async fn grant(client: &mut EtcdClient, request: &Request) -> EtcdResult<Self> {
        let (leases, wanted) = Self::of(request);
        Self::granted(client.grant_all(&wanted).await)?;
        Ok(leases)
    }

    /// Returns whether all leases were granted. Their ids are random: a lease that exists already was granted by an earlier member, which
    /// dlock left because it was silent.
    pub(super) fn granted(answers: impl IntoIterator<Item = EtcdResult<i64>>) -> EtcdResult<()> {
        answers.into_iter().try_for_each(|answer| match answer {
            Ok(_) | Err(Trouble::LeaseExists) => Ok(()),
            Err(trouble) => Err(trouble),
        })
    }

    /// Extends the leases, if the grant took so long that it matters. A grant does not depend on the extension.
    pub(super) async fn extend_if_late(&self, client: &mut EtcdClient) {
        if is_past(self.late_at) {
            for id in self.ids.into_iter().flatten() {
                let _ = client.keep_alive(id).await;
            }
        }
    }

    /// Revokes the leases, which have no keys. They would also expire by themselves.
    pub(super) async fn end(self, client: &mut EtcdClient) {
        let ids: Vec<_> = self.ids.into_iter().flatten().collect();
        client.revoke_all(&ids).await;
    }
}

/// Returns whether a run with this request is recorded.
pub(super) fn records(request: &Request) -> bool {
    request.run_policy.as_ref().is_some_and(RunPolicy::record_anything)
}

impl RunKeys {
    /// Reads the run records among the keys below a lock's last fence.
    pub(super) fn read(names: &EtcdNames, keys: Vec<KeyValue>) -> Result<Self> {
        let mut runs = Self::default();
        for kv in keys {
            if let Some(at) = RECORD_KINDS.iter().position(|policy| kv.key == policy.key(names).as_bytes()) {
                runs.0[at] = Some(Box::new(RunKey::read(&kv)?));
            }
        }
        Ok(runs)
    }

    fn keys(&self) -> impl Iterator<Item = (RecordKind, &RunKey)> {
        RECORD_KINDS.into_iter().zip(&self.0).filter_map(|(policy, key)| Some((policy, &**key.as_ref()?)))
    }

    fn once(&self) -> Option<&RunKey> {
        self.0[2].as_deref()
    }

    /// Returns whether the run of the hold with this fence is recorded.
    pub(super) fn knows(&self, fence: Fence) -> bool {
        self.keys().any(|(_, key)| key.fence() == Some(fence))
    }

    /// Returns whether any record is on these leases.
    pub(super) fn use_of(&self, leases: &Leases) -> bool {
        self.0.iter().zip(leases.ids).any(|(key, id)| id.is_some() && id == key.as_ref().map(|key| key.lease))
    }

    /// Returns the record for people, by the hosts' clocks.
    pub(super) fn record(&self) -> RunRecord {
        let cooldown = self.keys().filter_map(|(_, key)| key.record.cooldown.as_ref()).max_by_key(|cooldown| cooldown.fence);
        RunRecord { cooldown: cooldown.cloned(), start: self.once().and_then(|key| key.record.start.clone()) }
    }

    /// Returns why the run policy denies a request, and the lease with which the denial ends.
    pub(super) fn judge(&self, run_policy: Option<&RunPolicy>, token: &Token) -> Option<(Denial, i64)> {
        self.keys().find_map(|(policy, key)| Some((key.as_it_counts(policy).judge(run_policy, token, NOW)?, key.lease)))
    }

    /// Requires that the records that a request with this run policy is judged by are unchanged.
    pub(super) fn unchanged(&self, names: &EtcdNames, run_policy: Option<&RunPolicy>) -> Vec<Compare> {
        let asks =
            |policy: RecordKind| policy == RecordKind::AtLeast || run_policy.is_some_and(|run_policy| policy.length(run_policy).is_some());
        let policies = RECORD_KINDS.into_iter().zip(&self.0).filter(|(policy, _)| asks(*policy));
        // A missing key has revision 0.
        policies.map(|(policy, key)| ops::unchanged(&policy.key(names), key.as_ref().map_or(0, |key| key.revision))).collect()
    }

    /// Returns the operations that record the next run. The fence is `None` if its key is put in the same step.
    pub(super) fn begin(&self, names: &EtcdNames, request: &Request, fence: Option<Fence>, leases: &Leases) -> Vec<RequestOp> {
        let mut record = self.once().map(|key| key.record.clone()).unwrap_or_default();
        let at_ms = request.at_ms.unwrap_or_default();
        if let Some(start) = &mut record.start {
            // The record counts, whatever its host's clock says.
            start.at_ms = at_ms;
        }
        record.begin(request, fence.unwrap_or(Fence(0)), at_ms);
        let mut ops = Vec::new();
        for (policy, lease) in RECORD_KINDS.into_iter().zip(leases.ids) {
            let (name, part) = (policy.key(names), policy.part(&record));
            match lease {
                Some(lease) => ops.push(ops::put(&name, write_runs(&part), lease)),
                // The record of one run replaces every part of another run's.
                None if part.cooldown.is_some() => ops.push(ops::delete(&name)),
                None => {}
            }
        }
        ops
    }

    /// Returns the operations that record the outcome of the run of the hold with this fence.
    pub(super) fn end(&self, names: &EtcdNames, fence: Fence, state: Option<RunState>) -> Vec<RequestOp> {
        let Some(state) = state else { return Vec::new() };
        let changed = self.keys().filter_map(|(policy, key)| {
            let mut record = key.record.clone();
            let name = policy.key(names);
            // If the key exists, so does its lease.
            let change = record.end(fence, state).then(|| {
                if record == RunRecord::default() { ops::delete(&name) } else { ops::put(&name, write_runs(&record), key.lease) }
            })?;
            Some(ops::when(vec![ops::unchanged(&name, key.revision)], vec![change], Vec::new()))
        });
        changed.collect()
    }

    /// Undoes the records of this hold, whose lease is over and which was never reported as granted.
    pub(super) async fn undo(client: &mut EtcdClient, names: &EtcdNames, hold: &str) -> EtcdResult<()> {
        let runs = Self::read(names, client.run(vec![ops::under(&names.below_fence(), false)]).await?.keys()?)?;
        let is_own = |record: &RunRecord| {
            record.start.as_ref().is_some_and(|start| start.hold == hold)
                || record.cooldown.as_ref().is_some_and(|cooldown| cooldown.hold == hold)
        };
        let own = runs.keys().find(|(_, key)| is_own(&key.record)).and_then(|(_, key)| key.fence());
        if let Some(fence) = own {
            client.run(runs.end(names, fence, Some(RunState::Cancelled))).await?;
        }
        Ok(())
    }

    /// Revokes the lease of the record that these leases replace: it has no key any more, and may be long.
    pub(super) async fn end_before(&self, client: &mut EtcdClient, leases: &Leases) {
        if let (Some(key), [.., Some(_)]) = (self.once(), leases.ids) {
            client.revoke_all(&[key.lease]).await;
        }
    }
}
