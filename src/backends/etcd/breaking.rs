//! Changes to a hold by another process: the mark of a break, a warning, and the eviction.
//!
//! A break mark stands in the hold's record. A renewal reads the record and the own key by a quorum
//! before it extends the lease, which etcd itself would go on extending. A renewal that began
//! before the mark may extend the lease once more, so a break waits for a whole lease before the
//! eviction.
//!
//! The code handles these interleavings:
//! - *The hold ends, or another begins, during a change or an eviction.* Both compare the key's
//!   create revision, which no other key ever has.
//! - *The record changes between the look and the change* (its holder saw an earlier mark). The
//!   record is read again.
//! - *The evicted holder lives on.* It learns that its key is gone, and takes a moment to stop. Its
//!   record stays, so that the next holder waits for that, but is no longer a hold's: the history
//!   has the hold already.

use super::{
    client::{EtcdClient, EtcdResult},
    failure,
    history::{self, ReleaseWrites},
    names::EtcdNames,
    ops, permits,
    queue::LockAtRevision,
    record::{StoredRecord, last_fence},
};
use crate::{
    backends::queue::record::HoldRecord,
    lock::{Break, Error, Fence, HistoryEntry, Key, Kind},
};

/// Returns the error for a holder of another library.
fn foreign() -> Error {
    let error = Error::new(
        Kind::Unsupported,
        "another program has it, which does not listen to dlock",
    );
    error.hint("the program that took the lock has to release it, or its lease ends")
}

async fn look(client: &mut EtcdClient, names: &EtcdNames) -> EtcdResult<LockAtRevision> {
    Ok(client.run(ops::look(names, ops::ALL)).await?.look(names)?)
}

/// Changes the record of the hold with this fence; false if there is no such hold, or `change`
/// changes nothing.
pub(super) async fn amend(
    client: &mut EtcdClient,
    key: &Key,
    fence: Fence,
    change: impl Fn(HoldRecord) -> Option<HoldRecord>,
) -> EtcdResult<bool> {
    let names = EtcdNames::new(&client.options().namespace, key);
    for _ in 0..ops::TRIES {
        let look = look(client, &names).await?;
        let Some(at) = look.holder(fence) else {
            return Ok(false);
        };
        let one = &look.contenders[at];
        let info = one.info()?.ok_or_else(foreign)?;
        let record = look.record_of(one);
        // If the record is missing (the store had no space for it, or it was deleted), the record
        // is written now.
        let missing = || HoldRecord {
            is_hold: true,
            metadata: info.metadata,
            ..HoldRecord::waiting(look.queue.all()[at].mode)
        };
        let Some(hold_record) = change(
            record
                .map_or_else(missing, |record| record.hold_record.clone())
                .named(fence),
        ) else {
            return Ok(false);
        };
        let open = names.open_as(one.id());
        let compare = vec![
            ops::created_at(&one.name, one.created),
            ops::unchanged(&open, record.map_or(0, |record| record.revision)),
        ];
        if client
            .run_if(compare, vec![ops::put(&open, hold_record.write(), 0)])
            .await?
            .succeeded
        {
            return Ok(true);
        }
    }
    Err(failure::contended().into())
}

/// Notes in the record that the holder saw the mark. Nothing depends on the note.
pub(super) async fn note_seen(client: &mut EtcdClient, record: &StoredRecord) {
    let Some(hold_record) = record.named().seen() else {
        return;
    };
    let compare = vec![ops::unchanged(&record.name, record.revision)];
    let _ = client
        .run_if(
            compare,
            vec![ops::put(&record.name, hold_record.write(), 0)],
        )
        .await;
}

/// Removes the hold with this fence.
pub(super) async fn evict(
    client: &mut EtcdClient,
    key: &Key,
    fence: Fence,
    mark: &Break,
) -> EtcdResult<bool> {
    let names = EtcdNames::new(&client.options().namespace, key);
    let look = look(client, &names).await?;
    let Some(at) = look.holder(fence) else {
        return Ok(false);
    };
    let one = &look.contenders[at];
    let (metadata, record) = (
        one.info()?.ok_or_else(foreign)?.metadata,
        look.record_of(one),
    );
    let past = HistoryEntry {
        started_ms: record.and_then(|record| record.hold_record.since_ms),
        ..HistoryEntry::unreleased(Some(fence), Some(mark), metadata)
    };
    let compare = vec![ops::created_at(&one.name, one.created)];
    let mut gone = vec![
        ops::delete_under(&names.nested(one.lease)),
        ops::delete(&one.name),
    ];
    gone.extend(
        look.number_of(at)
            .map(|number| permits::release(&names, number)),
    );
    let mut history = vec![ops::put(&names.last(), last_fence(fence, false), 0)];
    history.extend(record.map(|record| {
        ops::put(
            &record.name,
            HoldRecord::ended(record.hold_record.mode, fence).write(),
            0,
        )
    }));
    let outcome = ReleaseWrites {
        history,
        ..ReleaseWrites::default()
    };
    let Some(freed) = history::end(client, &names, compare, gone, outcome, Some(&past)).await?
    else {
        return Ok(false);
    };
    // The eviction is done, and no later failure may hide that. Leases without keys expire by
    // themselves.
    for lease in freed
        .leases
        .iter()
        .copied()
        .filter(|lease| *lease != one.lease)
        .chain([one.lease])
    {
        let _ = client.revoke(lease).await;
    }
    history::trim(client, &names, freed.runs).await;
    Ok(true)
}
