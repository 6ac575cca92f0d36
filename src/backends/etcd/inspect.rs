//! Reads locks, for people and programs. All reads go through a quorum.

use std::{collections::BTreeSet, time::Duration};

use super::{
    client::{EtcdClient, EtcdResult},
    clock,
    failure::{self, Trouble},
    names::{self, EtcdNames},
    ops,
    queue::{LockAtRevision, mode_of},
    record::read_last_fence,
};
use crate::{
    backends::queue::record::ContenderInfo,
    lock::{Holder, Key, LockState, Progress, Result, Waiter, Which},
};

/// Returns the state of one lock.
pub(super) async fn inspect(client: &mut EtcdClient, key: &Key) -> EtcdResult<LockState> {
    let names = EtcdNames::new(&client.options().namespace, key);
    let mut ops = ops::look(&names, ops::ALL);
    ops.push(ops::get(&names.last()));
    let mut answers = client.run(ops).await?;
    let look = answers.look(&names)?;
    let last = answers.one()?.and_then(|kv| read_last_fence(&kv.value));
    let holders = read_holders(client, &look, look.queue.holders(), true).await?;
    Ok(LockState {
        nodes: Vec::new(),
        key: key.clone(),
        stored_as: names.display_name(),
        // The current holders came after the last hold that was released.
        last_fence: holders
            .iter()
            .filter_map(|holder| holder.fence)
            .max()
            .or(last),
        holders,
        waiters: waiters(&look)?,
    })
}

/// Returns the state of the held locks whose keys begin with `start`, by key.
pub(super) async fn list(
    client: &mut EtcdClient,
    start: &str,
    progress: &Progress,
) -> EtcdResult<Vec<LockState>> {
    let namespace = client.options().namespace.clone();
    let start = names::prefix(&namespace) + &names::ENCODING.encode_str(start);
    let mut answers = client.run(vec![ops::under(&start, true)]).await?;
    let mut keys = BTreeSet::new();
    for kv in answers.keys()? {
        let found = str::from_utf8(&kv.key)
            .ok()
            .and_then(|name| names::key_of(&namespace, name));
        // In an empty namespace, a key without a lease may be anything.
        let may_hold = kv.lease != 0 || !namespace.as_str().is_empty();
        keys.extend(
            found
                .filter(|(_, rest)| may_hold && mode_of(rest).is_some())
                .map(|(key, _)| key),
        );
    }
    let mut states = Vec::new();
    for key in keys {
        let state = inspect(client, &key).await?;
        progress.part();
        if !state.holders.is_empty() {
            states.push(state);
        }
    }
    Ok(states)
}

/// Returns the keys that begin with `start` and have a fence, a record or a run record, by key.
pub(super) async fn known(
    client: &mut EtcdClient,
    start: &str,
    which: Which,
    progress: &Progress,
) -> EtcdResult<Vec<Key>> {
    let namespace = client.options().namespace.clone();
    let mut keys = BTreeSet::new();
    for folder in names::records(&namespace) {
        let mut answers = client
            .run(vec![ops::under(
                &(folder.clone() + &names::ENCODING.encode_str(start)),
                true,
            )])
            .await?;
        progress.part();
        for kv in answers.keys()? {
            let Some(rest) = str::from_utf8(&kv.key)
                .ok()
                .and_then(|name| name.strip_prefix(&*folder))
            else {
                continue;
            };
            let (name, what) = rest.split_once('/').unwrap_or((rest, ""));
            if which == Which::All || ["least", "guard"].contains(&what) {
                keys.extend(names::ENCODING.decode(name));
            }
        }
    }
    Ok(keys.into_iter().collect())
}

/// Returns the holders at these positions. With `ends`, adds the rest of their leases, with one
/// request for each.
///
/// etcd has no clock: the time of a grant is the holder's host's, compared with this host's. A hold
/// that would be younger than its last renewal shows that the two differ: its age is unknown. etcd
/// counts leases in whole seconds.
pub(super) async fn read_holders(
    client: &mut EtcdClient,
    look: &LockAtRevision,
    holders: impl Iterator<Item = usize>,
    ends: bool,
) -> EtcdResult<Vec<Holder>> {
    let mut found = Vec::new();
    for at in holders {
        let one = &look.contenders[at];
        let info = one.info()?;
        let left = if ends && one.lease != 0 {
            remaining(client, one.lease).await?
        } else {
            Remaining::Unknown
        };
        let (expires_in, renewed_ago) = match left {
            Remaining::For { left, ago } => (Some(left), Some(ago)),
            // It ended after the look.
            Remaining::Over => (Some(Duration::ZERO), None),
            Remaining::Unknown => (None, None),
        };
        let record = look.record_of(one).map(|record| &record.hold_record);
        let held_for = record
            .and_then(|record| clock::since(record.since_ms?))
            .filter(|held| renewed_ago.is_none_or(|ago| ago <= *held));
        found.push(Holder {
            permit: look.number_of(at).map(|number| number.number),
            foreign: one.value.is_some() && info.is_none(),
            fence: Some(one.fence()),
            held_for,
            renewed_ago,
            expires_in,
            removal: (one.lease == 0).then(|| failure::removal(&one.name)),
            holds: look.holds_of(one.lease),
            ..ContenderInfo::holder(info.as_ref(), record, look.queue.all()[at].mode)
        });
    }
    Ok(found)
}

/// Returns the waiters, by the data that they wrote.
fn waiters(look: &LockAtRevision) -> Result<Vec<Waiter>> {
    let waiter = |at: usize| -> Result<Waiter> {
        let one = &look.contenders[at];
        let record = look.record_of(one);
        Ok(Waiter {
            metadata: one.info()?.and_then(|info| info.metadata),
            mode: Some(look.queue.all()[at].mode),
            waiting_for: record.and_then(|record| clock::since(record.hold_record.since_ms?)),
            in_order: true,
        })
    };
    look.queue.waiters().map(waiter).collect()
}

/// The rest of a lease.
pub(super) enum Remaining {
    /// The rest of the lease, rounded up.
    For {
        /// The time until the lease ends.
        left: Duration,
        /// The time since the lease was extended.
        ago: Duration,
    },
    /// The lease ended.
    Over,
    /// This user may not read the lease.
    Unknown,
}

/// Returns the rest of a lease.
pub(super) async fn remaining(client: &mut EtcdClient, lease: i64) -> EtcdResult<Remaining> {
    let answer = match client.time_to_live(lease).await {
        Ok(answer) => answer,
        Err(Trouble::NoLease) => return Ok(Remaining::Over),
        Err(Trouble::Refused(_)) => return Ok(Remaining::Unknown),
        Err(trouble) => return Err(trouble),
    };
    let (Ok(left), Ok(granted)) = (u64::try_from(answer.ttl), u64::try_from(answer.granted_ttl))
    else {
        return Ok(Remaining::Over);
    };
    let left = Duration::from_secs((left + 1).min(granted));
    Ok(Remaining::For {
        left,
        ago: Duration::from_secs(granted).saturating_sub(left),
    })
}
