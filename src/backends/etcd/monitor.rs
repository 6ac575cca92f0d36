//! Finds waiters that died, so that a living waiter need not prove all the time that it lives.
//!
//! A waiter only extends its lease, once per third of its length. One waiter, the queue monitor,
//! checks the front of the queue every second. The monitor probes the waiters at the front, and
//! more of them while they don't answer. A probe is a key that the probed waiter watches. A probed
//! waiter extends its lease at once, answers, and then extends it every [`BEAT`]. A waiter that is
//! silent for [`SILENT`] after its probe is dead, and is removed once it is in the way.
//!
//! The monitor's key is [`EtcdNames::monitor`], on a lease of a few seconds. All waiters watch the
//! key. When the key goes, a waiter recreates it. The server tells how long ago a lease was
//! extended. A probe states that time as of its creation, so any client can judge the answer.

use std::time::Duration;

use super::{
    client::{EtcdClient, EtcdResult},
    clock::{after, is_past},
    failure::Trouble,
    names::EtcdNames,
    ops,
    probe::{HERE, Probe},
    queue::{Keys, LockAtRevision, StoredWaiter},
    session::{QueueMonitor, Queued},
};

/// How often the queue monitor checks the queue.
const ROUND: Duration = Duration::from_secs(1);
/// The pause after probes, unless some waiters behind are known to live. A living waiter has
/// answered by then.
const AGAIN: Duration = Duration::from_millis(250);
/// The length of the queue monitor's lease in seconds, unless the server's minimum is longer.
const LEASE: i64 = 3;
/// How often a probed waiter extends its lease to prove that it lives.
pub(super) const BEAT: Duration = Duration::from_millis(1500);
/// The silence in whole seconds, rounded up, after which a waiter that should extend its lease each
/// [`BEAT`] is dead.
const SILENT: i64 = 5;
/// The whole seconds within which a probed waiter has extended its lease.
const ANSWERED: i64 = 4;
/// The number of living waiters that the queue monitor wants at the front; it looks no further.
const LIVING: usize = 2;
/// The number of waiters that one round probes. Each silent waiter adds two.
const PROBES_PER_ROUND: usize = 8;
/// The number of waiters that are read together, and removed together.
const TOGETHER: usize = 30;

/// Does what is due. `lease` is the lease for the queue monitor's key, and `own` is the waiter's
/// own lease.
pub(super) async fn serve(
    client: &mut EtcdClient,
    names: &EtcdNames,
    queued: &mut Queued,
    (lease, own): (i64, i64),
) -> EtcdResult<()> {
    let due = match queued.monitor {
        QueueMonitor::Another => return Ok(()),
        // The first waiter has no other waiter to monitor.
        QueueMonitor::Vacant(_) if queued.busy.position == Some(1) => {
            queued.monitor = QueueMonitor::Another;
            return Ok(());
        }
        QueueMonitor::Vacant(_) if !become_monitor(client, names, lease, own).await? => {
            queued.monitor = QueueMonitor::Another;
            return Ok(());
        }
        QueueMonitor::Vacant(_) => after(Duration::ZERO),
        QueueMonitor::Own(due) => {
            if client.keep_alive(lease).await?.is_none() {
                queued.monitor = QueueMonitor::Vacant(after(Duration::ZERO));
                return Ok(());
            }
            due
        }
    };
    // A monitor that is late itself, on a busy host, does not judge others.
    let next = if is_past(due + ROUND) {
        ROUND
    } else {
        check_front(client, names, &queued.own).await?
    };
    queued.monitor = QueueMonitor::Own(after(next));
    Ok(())
}

/// Stops being the queue monitor. If the request fails, the monitor's key ends with its lease.
pub(super) async fn retire(client: &mut EtcdClient, queued: &mut Queued, lease: i64) {
    if queued.monitor.is_own() {
        queued.monitor = QueueMonitor::Another;
        let _ = client.revoke(lease).await;
    }
}

/// Returns whether this waiter became the queue monitor. It probes itself thereby: the next monitor
/// must know soon whether it died.
async fn become_monitor(
    client: &mut EtcdClient,
    names: &EtcdNames,
    lease: i64,
    own: i64,
) -> EtcdResult<bool> {
    let name = names.monitor();
    if client
        .run(vec![ops::peek(&name)])
        .await?
        .one()?
        .is_some_and(|kv| kv.lease != lease)
    {
        return Ok(false);
    }
    match client.grant(lease, LEASE).await {
        Ok(_) | Err(Trouble::LeaseExists) => {}
        Err(trouble) => return Err(trouble),
    }
    let compare = vec![ops::absent(&name)];
    let success = vec![
        ops::put(&name, "", lease),
        ops::put(&names.probe(own), "0", own),
    ];
    let mut answers = client.txn(compare, success, vec![ops::peek(&name)]).await?;
    // An earlier request of this waiter, whose answer was lost, may have put the key.
    let ours = answers.succeeded || answers.one()?.is_some_and(|kv| kv.lease == lease);
    if !ours {
        client.revoke(lease).await?;
    }
    Ok(ours)
}

/// Probes the waiters at the front that were not probed, and removes dead ones. Returns the delay
/// until the next round.
async fn check_front(
    client: &mut EtcdClient,
    names: &EtcdNames,
    own: &str,
) -> EtcdResult<Duration> {
    let (mut probed, mut living, mut silent, mut seen) = (0, 0, 0, 0);
    let mut gone = Vec::new();
    let mut alone = false;
    'front: loop {
        let look = front(client, names, seen + TOGETHER).await?;
        alone |= seen == 0 && look.queue.is_held_alone();
        let more = look.contenders.len() == seen + TOGETHER;
        for at in seen.min(look.contenders.len())..look.contenders.len() {
            if look.contenders[at].name == own {
                // This waiter lives, and the waiters behind it are not in its way.
                break 'front;
            }
            let Some(ahead) = look.waiting(at) else {
                continue;
            };
            match judge(client, names, &ahead).await? {
                WaiterState::Lives => living += 1,
                WaiterState::Silent => silent += 1,
                WaiterState::Probed => probed += 1,
                WaiterState::Gone => gone.push(ahead),
            }
            if living == LIVING || probed >= PROBES_PER_ROUND + 2 * (silent + gone.len()) {
                break 'front;
            }
        }
        if !more {
            break;
        }
        seen = look.contenders.len();
    }
    if !alone {
        for some in gone.chunks(TOGETHER) {
            remove(client, names, some).await?;
        }
    }
    Ok(if probed > 0 && living < LIVING {
        AGAIN
    } else {
        ROUND
    })
}

/// Reads the first `most` contenders, with their records and the keys that concern them.
async fn front(
    client: &mut EtcdClient,
    names: &EtcdNames,
    most: usize,
) -> EtcdResult<LockAtRevision> {
    let limit = i64::try_from(most).unwrap_or(i64::MAX);
    let mut answers = client
        .run(vec![
            ops::first(&names.folder, limit),
            ops::under(&names.below_fence(), false),
        ])
        .await?;
    let (keys, below_fence) = (answers.keys()?, answers.keys()?);
    let ids = keys.iter().filter_map(|kv| {
        Some(
            names.open_as(
                str::from_utf8(&kv.key)
                    .ok()?
                    .rsplit('/')
                    .next()?
                    .rsplit('-')
                    .next()?,
            ),
        )
    });
    let records: Vec<_> = ids.map(|record| ops::get(&record)).collect();
    let mut open = Vec::new();
    for some in records.chunks(ops::MOST_OPS) {
        let mut answers = client.run(some.to_vec()).await?;
        for _ in some {
            open.extend(answers.one()?);
        }
    }
    Ok(LockAtRevision::new(
        names,
        answers.revision,
        Keys {
            contenders: keys.clone(),
            with_values: keys,
            open,
            below_fence,
            ..Keys::default()
        },
    )?)
}

/// Answers the probe of this waiter, which has extended its lease. If the store refuses, the waiter
/// only counts as slow: its extended lease keeps it from being removed.
pub(super) async fn answer(client: &mut EtcdClient, names: &EtcdNames, own: i64) {
    let _ = client
        .run(vec![ops::put(&names.probe(own), HERE, own)])
        .await;
}

/// The state of a waiter.
enum WaiterState {
    Lives,
    /// For longer than a probed waiter is silent.
    Silent,
    /// The waiter was probed just now.
    Probed,
    Gone,
}

/// Judges whether a waiter lives. Probes a waiter of which nothing is known.
async fn judge(
    client: &mut EtcdClient,
    names: &EtcdNames,
    one: &StoredWaiter,
) -> EtcdResult<WaiterState> {
    let lease = match client.time_to_live(one.lease).await {
        Ok(lease) => lease,
        // The waiter's key expires by itself, or this user may not read the lease.
        Err(Trouble::NoLease | Trouble::Refused(_)) => return Ok(WaiterState::Silent),
        Err(trouble) => return Err(trouble),
    };
    let silent = lease.granted_ttl - lease.ttl;
    match one.probed {
        _ if !one.answers => Ok(WaiterState::Silent),
        Some(Probe::Answered) if silent >= SILENT => Ok(WaiterState::Gone),
        Some(Probe::Answered) => Ok(if silent < ANSWERED {
            WaiterState::Lives
        } else {
            WaiterState::Silent
        }),
        Some(Probe::Open(probed)) if silent >= SILENT.max(probed + ANSWERED) => {
            Ok(WaiterState::Gone)
        }
        // With a shorter silence the waiter has extended its lease. Its answer is on its way or
        // lost: it is probed anew.
        Some(Probe::Open(probed)) if silent + 2 >= probed => Ok(WaiterState::Silent),
        _ => {
            // The probe lies on the lease of the probed waiter, and is put only if that waiter's
            // key is still there.
            let compare = vec![ops::created_at(&one.key, one.created)];
            let probe = ops::put(&names.probe(one.lease), silent.to_string(), one.lease);
            match client.run_if(compare, vec![probe]).await {
                Ok(_) | Err(Trouble::NoLease | Trouble::Full(_)) => Ok(WaiterState::Probed),
                Err(trouble) => Err(trouble),
            }
        }
    }
}

/// Removes a dead waiter on behalf of a process that does not wait. Returns whether it did. Probes
/// a waiter that was not probed.
pub(super) async fn remove_if_gone(
    client: &mut EtcdClient,
    names: &EtcdNames,
    one: &StoredWaiter,
) -> EtcdResult<bool> {
    Ok(
        matches!(judge(client, names, one).await?, WaiterState::Gone)
            && remove(client, names, std::slice::from_ref(one)).await?,
    )
}

/// Removes several dead waiters in one step. Returns whether it removed any.
///
/// A holder is never removed: a grant rewrites or removes the record, and compares the key in the
/// same step. A waiter that is alive after all finds its key gone, and queues up anew.
async fn remove(
    client: &mut EtcdClient,
    names: &EtcdNames,
    gone: &[StoredWaiter],
) -> EtcdResult<bool> {
    let each = gone.iter().map(|one| {
        let compare = vec![
            ops::created_at(&one.key, one.created),
            ops::unchanged(&one.record, one.revision),
        ];
        ops::when(
            compare,
            vec![
                ops::delete(&one.key),
                ops::delete(&one.record),
                ops::delete(&names.probe(one.lease)),
            ],
            Vec::new(),
        )
    });
    let mut answers = client.run(each.collect()).await?;
    Ok(answers.any_branch())
}
