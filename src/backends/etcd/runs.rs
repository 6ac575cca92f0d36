//! The run records that earlier runs leave for later ones: at-least, skew guard, and once.
//!
//! etcd has no clock to judge them by. So each of the three has a key on a lease of its own, which
//! lasts as long as the record counts: the record counts while its key exists. The run chooses the
//! lease's length. Leases are whole seconds, end up to a second late, and restart when another
//! member becomes leader. So a record may count longer than requested, or shorter by the duration
//! of the grant, at most a second ([`LATE`]).
//!
//! The granting step puts the keys. Their leases are granted before, together with the lock's, to
//! save time. Each attempt has new leases, so that no late request of an earlier attempt ends a
//! record that counts. A lease without a key expires by itself.
//!
//! A key that a run replaces is moved, with its lease, until the outcome is recorded: a run that
//! executed nothing moves it back. The last success is moved too, since no later run takes it back.
//! So each record counts for as long as its own run chose.
//!
//! The code handles these interleavings:
//! - *The answer to the granting step is lost.* A repeated request finds the record of the own key:
//!   the step was done, with run records.
//! - *The lease of the lock ends before that step.* The step compares the own key.
//! - *Another process takes and releases the lock between a look and its step.* The step compares
//!   the judged keys.
//! - *A key expires during a release.* The outcome is put only if the key is unchanged, and then
//!   its lease exists. The same for a key that is moved.
//! - *There is no space.* A run that can't be recorded is not begun. The outcome of a begun run
//!   stays unknown.

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
    lock::{
        Denial, Fence, Kind, LastRun, Request, Result, RunPolicy, RunRecord, RunState, Token,
        random,
    },
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
const RECORD_KINDS: [RecordKind; 3] =
    [RecordKind::AtLeast, RecordKind::SkewGuard, RecordKind::Once];

impl RecordKind {
    fn key(self, names: &EtcdNames) -> String {
        match self {
            Self::AtLeast => names.least(),
            Self::SkewGuard => names.run_record("guard"),
            Self::Once => names.run_record("once"),
        }
    }

    /// Returns the key of the record that the last run replaced.
    fn replaced_key(self, names: &EtcdNames) -> String {
        self.key(names) + "/was"
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
            Self::Once => RunRecord {
                start: record.start.clone(),
                ..RunRecord::default()
            },
            _ => RunRecord {
                cooldown: record.cooldown.clone(),
                ..RunRecord::default()
            },
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
        let mut record = read_runs(&kv.value).map_err(|error| {
            if error.kind == Kind::Layout {
                error
            } else {
                failure::unreadable_value(&kv.key)
            }
        })?;
        let (cooldown, start) = (
            record.cooldown.as_mut().map(|cooldown| &mut cooldown.fence),
            record.start.as_mut().map(|start| &mut start.fence),
        );
        for fence in [cooldown, start]
            .into_iter()
            .flatten()
            .filter(|fence| fence.0 == 0)
        {
            // The record was put in the step that created the key whose revision is the fence, so
            // it can't contain the fence.
            *fence = record::fence(kv.mod_revision);
        }
        Ok(Self {
            record,
            revision: kv.mod_revision,
            lease: kv.lease,
        })
    }

    fn hold(&self) -> Option<&str> {
        let RunRecord {
            cooldown, start, ..
        } = &self.record;
        let hold = cooldown.as_ref().map(|cooldown| &*cooldown.hold);
        hold.or(start.as_ref().map(|start| &*start.hold))
    }

    fn state(&self) -> Option<RunState> {
        self.record.start.as_ref().map(|start| start.state)
    }

    /// Returns the operation that moves the record to `name`, while its key `from` is unchanged:
    /// then its lease exists.
    fn moved(&self, from: &str, name: &str) -> RequestOp {
        ops::when(
            vec![ops::unchanged(from, self.revision)],
            vec![ops::put(name, write_runs(&self.record), self.lease)],
            Vec::new(),
        )
    }

    fn fence(&self) -> Option<Fence> {
        let RunRecord {
            cooldown, start, ..
        } = &self.record;
        let fence = cooldown.as_ref().map(|cooldown| cooldown.fence);
        fence.or(start.as_ref().map(|start| start.fence))
    }

    /// Returns the record as it counts for this policy, at any time.
    fn as_it_counts(&self, policy: RecordKind) -> RunRecord {
        let mut record = self.record.clone();
        if let Some(cooldown) = &mut record.cooldown {
            cooldown.at_ms = NOW;
            *if policy == RecordKind::AtLeast {
                &mut cooldown.guard_ms
            } else {
                &mut cooldown.at_least_ms
            } = 0;
        }
        if let Some(start) = &mut record.start {
            start.at_ms = NOW;
        }
        record
    }
}

/// The run records of a lock, in the order of [`RECORD_KINDS`].
#[derive(Clone, Debug, Default)]
pub(super) struct RunKeys {
    /// The records that count now.
    now: [Option<Box<RunKey>>; 3],
    /// The records that the last run replaced.
    replaced: [Option<Box<RunKey>>; 3],
    /// The last success before the start in [`RecordKind::Once`]; it counts too.
    success: Option<Box<RunKey>>,
}

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
            wanted.push((
                id,
                i64::try_from(length.as_millis().div_ceil(1000))
                    .unwrap_or(i64::MAX)
                    .clamp(1, LONGEST),
            ));
            Some(id)
        });
        (
            Self {
                late_at: after(LATE),
                ids,
            },
            wanted,
        )
    }

    /// Grants the leases.
    pub(super) async fn grant(client: &mut EtcdClient, request: &Request) -> EtcdResult<Self> {
        let (leases, wanted) = Self::of(request);
        Self::granted(client.grant_all(&wanted).await)?;
        Ok(leases)
    }

    /// Returns whether all leases were granted. Their ids are random: a lease that exists already
    /// was granted by an earlier member, which dlock left because it was silent.
    pub(super) fn granted(answers: impl IntoIterator<Item = EtcdResult<i64>>) -> EtcdResult<()> {
        answers.into_iter().try_for_each(|answer| match answer {
            Ok(_) | Err(Trouble::LeaseExists) => Ok(()),
            Err(trouble) => Err(trouble),
        })
    }

    /// Extends the leases, if the grant took so long that it matters. A grant does not depend on
    /// the extension.
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
    request
        .run_policy
        .as_ref()
        .is_some_and(RunPolicy::record_anything)
}

impl RunKeys {
    /// Reads the run records among the keys below a lock's last fence.
    pub(super) fn read(names: &EtcdNames, keys: Vec<KeyValue>) -> Result<Self> {
        let mut runs = Self::default();
        for kv in keys {
            let is = |name: String| kv.key == name.as_bytes();
            let place =
                if let Some(at) = RECORD_KINDS.iter().position(|policy| is(policy.key(names))) {
                    &mut runs.now[at]
                } else if let Some(at) = RECORD_KINDS
                    .iter()
                    .position(|policy| is(policy.replaced_key(names)))
                {
                    &mut runs.replaced[at]
                } else if is(success_key(names)) {
                    &mut runs.success
                } else {
                    continue;
                };
            *place = Some(Box::new(RunKey::read(&kv)?));
        }
        Ok(runs)
    }

    fn keys(&self) -> impl Iterator<Item = (RecordKind, &RunKey)> {
        RECORD_KINDS
            .into_iter()
            .zip(&self.now)
            .filter_map(|(policy, key)| Some((policy, &**key.as_ref()?)))
    }

    fn once(&self) -> Option<&RunKey> {
        self.now[2].as_deref()
    }

    /// Returns whether the run of the hold with this fence is recorded.
    pub(super) fn knows(&self, fence: Fence) -> bool {
        self.keys().any(|(_, key)| key.fence() == Some(fence))
    }

    /// Returns whether any record is on these leases.
    pub(super) fn use_of(&self, leases: &Leases) -> bool {
        self.now
            .iter()
            .zip(leases.ids)
            .any(|(key, id)| id.is_some() && id == key.as_ref().map(|key| key.lease))
    }

    /// Returns the record for people, by the hosts' clocks.
    pub(super) fn record(&self) -> RunRecord {
        let cooldown = self
            .keys()
            .filter_map(|(_, key)| key.record.cooldown.as_ref())
            .max_by_key(|cooldown| cooldown.fence);
        let start = self
            .once()
            .or(self.success.as_deref())
            .and_then(|key| key.record.start.clone());
        RunRecord {
            cooldown: cooldown.cloned(),
            start,
            ..RunRecord::default()
        }
    }

    /// Returns why the run policy denies a request, and the lease with which the denial ends.
    pub(super) fn judge(
        &self,
        run_policy: Option<&RunPolicy>,
        token: &Token,
    ) -> Option<(Denial, i64)> {
        let own = self.once().is_some_and(|key| {
            key.hold() == Some(&*token.hold_text()) && key.state() == Some(RunState::Started)
        });
        let success = self
            .success
            .as_deref()
            .filter(|_| !own)
            .map(|key| (RecordKind::Once, key));
        let mut keys = self.keys().chain(success);
        keys.find_map(|(policy, key)| {
            Some((
                key.as_it_counts(policy).judge(run_policy, token, NOW)?,
                key.lease,
            ))
        })
    }

    /// Requires that the records that a request with this run policy is judged by, or replaces, are
    /// unchanged.
    pub(super) fn unchanged(
        &self,
        names: &EtcdNames,
        run_policy: Option<&RunPolicy>,
    ) -> Vec<Compare> {
        let asks = |policy: RecordKind| match (policy, run_policy) {
            (RecordKind::AtLeast, _) => true,
            // A run with at-least replaces the whole record of another cooldown.
            (RecordKind::SkewGuard, Some(asked)) => asked.skew_guard.or(asked.at_least).is_some(),
            (RecordKind::Once, Some(asked)) => asked.once.is_some(),
            (_, None) => false,
        };
        let policies = RECORD_KINDS.into_iter().zip(&self.now);
        let asked = policies.filter(|(policy, _)| asks(*policy));
        asked
            .map(|(policy, key)| {
                // A missing key has revision 0.
                let revision = key.as_ref().map_or(0, |key| key.revision);
                ops::unchanged(&policy.key(names), revision)
            })
            .collect()
    }

    /// Returns the operations that record the next run. The fence is `None` if its key is put in
    /// the same step.
    pub(super) fn begin(
        &self,
        names: &EtcdNames,
        request: &Request,
        fence: Option<Fence>,
        leases: &Leases,
    ) -> Vec<RequestOp> {
        let mut record = self
            .once()
            .map(|key| key.record.clone())
            .unwrap_or_default();
        let at_ms = request.at_ms.unwrap_or_default();
        if let Some(start) = &mut record.start {
            // The record counts, whatever its host's clock says.
            start.at_ms = at_ms;
        }
        record.begin(request, fence.unwrap_or(Fence(0)), at_ms);
        let mut ops = Vec::new();
        for (at, (policy, lease)) in RECORD_KINDS.into_iter().zip(leases.ids).enumerate() {
            let (name, part) = (policy.key(names), policy.part(&record));
            match lease {
                Some(lease) => ops.push(ops::put(&name, write_runs(&part), lease)),
                // The record of one run replaces every part of another run's.
                None if part.cooldown.is_some() => ops.push(ops::delete(&name)),
                None => continue,
            }
            ops.extend(self.replace(names, request, (at, policy)));
        }
        ops
    }

    /// Returns the operations that keep a record which is being replaced, and the last success.
    fn replace(
        &self,
        names: &EtcdNames,
        request: &Request,
        (at, policy): (usize, RecordKind),
    ) -> Vec<RequestOp> {
        let (from, was) = (policy.key(names), policy.replaced_key(names));
        let forgets = request.run_policy.as_ref().is_some_and(RunPolicy::forgets);
        let hold = request.token.hold_text();
        let mut ops = Vec::new();
        match self.now[at].as_deref().filter(|_| !forgets) {
            Some(key)
                if key.hold() == Some(&*hold)
                    && key.state().is_none_or(|state| state == RunState::Started) => {}
            Some(key) => {
                ops.push(key.moved(&from, &was));
                if key.state() == Some(RunState::Ok) {
                    ops.push(key.moved(&from, &success_key(names)));
                }
            }
            None => {
                ops.extend(self.replaced[at].as_ref().map(|_| ops::delete(&was)));
                let success = self
                    .success
                    .as_ref()
                    .filter(|_| forgets && policy == RecordKind::Once);
                ops.extend(success.map(|_| ops::delete(&success_key(names))));
            }
        }
        ops
    }

    /// Returns the operations that record the outcome of the run of the hold with this fence.
    pub(super) fn end(
        &self,
        names: &EtcdNames,
        fence: Fence,
        state: Option<RunState>,
    ) -> Vec<RequestOp> {
        let Some(state) = state else {
            return Vec::new();
        };
        let revision = self.revision_of(fence);
        let ends = |key: &&RunKey| {
            key.fence() == Some(fence) && key.state().is_none_or(|state| state == RunState::Started)
        };
        let mut ops = Vec::new();
        for (at, policy) in RECORD_KINDS.into_iter().enumerate() {
            let own = self.now[at].as_deref().filter(ends);
            // The same step wrote it.
            let was = self.replaced[at]
                .as_deref()
                .filter(|was| Some(was.revision) == revision);
            let success = self
                .success
                .as_deref()
                .filter(|_| own.is_some() && policy == RecordKind::Once);
            ops.extend(end_one(
                names,
                policy,
                state,
                EndedKeys { own, was, success },
            ));
        }
        ops
    }

    /// Returns the revision in which the run of the hold with this fence was recorded.
    fn revision_of(&self, fence: Fence) -> Option<i64> {
        self.keys()
            .find(|(_, key)| key.fence() == Some(fence))
            .map(|(_, key)| key.revision)
    }

    /// Returns the leases that have no key any more once this outcome is recorded. They may be
    /// long.
    pub(super) fn unused_leases(&self, fence: Fence, state: Option<RunState>) -> Vec<i64> {
        let (Some(state), Some(revision)) = (state, self.revision_of(fence)) else {
            return Vec::new();
        };
        let [.., own] = &self.now;
        let [.., was] = &self.replaced;
        let (own, was) = (
            own.as_ref().filter(|key| key.fence() == Some(fence)),
            was.as_ref().filter(|was| was.revision == revision),
        );
        let Some(own) = own else { return Vec::new() };
        let success = self.success.as_ref();
        let mut leases = vec![own.lease];
        leases.extend(was.into_iter().chain(success).map(|key| key.lease));
        let kept = match state {
            RunState::Cancelled => [was, success],
            RunState::Ok => [Some(own), None],
            _ => [Some(success.unwrap_or(own)), None],
        };
        leases.retain(|lease| !kept.iter().flatten().any(|key| key.lease == *lease));
        leases.dedup();
        leases
    }

    /// Undoes the records of this hold, whose lease is over and which was never reported as
    /// granted.
    pub(super) async fn undo(
        client: &mut EtcdClient,
        names: &EtcdNames,
        hold: &str,
    ) -> EtcdResult<()> {
        let runs = Self::read(
            names,
            client
                .run(vec![ops::under(&names.below_fence(), false)])
                .await?
                .keys()?,
        )?;
        let is_own = |record: &RunRecord| {
            record
                .start
                .as_ref()
                .is_some_and(|start| start.hold == hold)
                || record
                    .cooldown
                    .as_ref()
                    .is_some_and(|cooldown| cooldown.hold == hold)
        };
        let own = runs
            .keys()
            .find(|(_, key)| is_own(&key.record))
            .and_then(|(_, key)| key.fence());
        if let Some(fence) = own {
            client
                .run(runs.end(names, fence, Some(RunState::Cancelled)))
                .await?;
        }
        Ok(())
    }
}

/// Returns the key of the last success before the start that is recorded.
fn success_key(names: &EtcdNames) -> String {
    RecordKind::Once.key(names) + "/ok"
}

/// The keys that the outcome of a run concerns.
struct EndedKeys<'a> {
    /// The run's own record, without an outcome.
    own: Option<&'a RunKey>,
    /// The record that it replaced.
    was: Option<&'a RunKey>,
    /// The last success before it.
    success: Option<&'a RunKey>,
}

/// Returns the operations that record an outcome in the records of one kind: see
/// [`RunRecord::end`].
fn end_one(
    names: &EtcdNames,
    policy: RecordKind,
    state: RunState,
    EndedKeys { own, was, success }: EndedKeys<'_>,
) -> Vec<RequestOp> {
    let (name, was_name, success_name) = (
        policy.key(names),
        policy.replaced_key(names),
        success_key(names),
    );
    let own_unchanged = ops::unchanged(&name, own.map_or(0, |own| own.revision));
    // If a key exists, so does its lease.
    let back = |from: &str, key: &RunKey, otherwise: Vec<RequestOp>| {
        let put = ops::put(&name, write_runs(&key.record), key.lease);
        ops::when(
            vec![own_unchanged.clone(), ops::unchanged(from, key.revision)],
            vec![put, ops::delete(from)],
            otherwise,
        )
    };
    let gone = || {
        ops::when(
            vec![own_unchanged.clone()],
            vec![ops::delete(&name)],
            Vec::new(),
        )
    };
    let mut ops = Vec::new();
    let mut over = vec![(was, &was_name), (success, &success_name)];
    match (own, state) {
        (own, RunState::Cancelled) => {
            let gone = own.map(|_| gone());
            ops.extend(match was {
                Some(was) => Some(back(&was_name, was, gone.into_iter().collect())),
                None => gone,
            });
            let needed = was.is_some_and(|was| was.state() != Some(RunState::Ok));
            over = vec![(success.filter(|_| !needed), &success_name)];
        }
        (Some(own), RunState::Ok | RunState::Failed | RunState::Unknown)
            if policy == RecordKind::Once =>
        {
            let mut record = own.record.clone();
            record.start = record.start.map(|start| LastRun { state, ..start });
            let put = ops::put(&name, write_runs(&record), own.lease);
            let put = ops::when(vec![own_unchanged.clone()], vec![put], Vec::new());
            ops.push(match success.filter(|_| state != RunState::Ok) {
                Some(success) => {
                    over.pop();
                    back(&success_name, success, vec![put])
                }
                None => put,
            });
        }
        _ => {}
    }
    let delete = |(key, name): (Option<&RunKey>, &String)| {
        Some(ops::when(
            vec![ops::unchanged(name, key?.revision)],
            vec![ops::delete(name)],
            Vec::new(),
        ))
    };
    ops.extend(over.into_iter().filter_map(delete));
    ops
}
