//! Removes the leftovers: the fence of each key that was ever locked, and the record of each holder
//! that vanished from a lock that was not taken since.
//!
//! etcd has no clock that tells how long ago that was. So each unused key gets a lease of that
//! length, which is never extended: the key expires once it was unused for so long. A release puts
//! the fence anew, without a lease. A lock's history goes with the next collection after both.

use std::{collections::BTreeSet, time::Duration};

use super::{
    client::{EtcdClient, EtcdResult},
    messages::KeyValue,
    names::{self, EtcdNames},
    ops,
    record::StoredRecord,
};
use crate::lock::{Key, Progress};

/// Lets the keys of locks that stay unused for `unused_for` expire; returns how many locks. A lock
/// with only a history does not count.
pub(super) async fn collect(
    client: &mut EtcdClient,
    unused_for: Duration,
    progress: &Progress,
) -> EtcdResult<u64> {
    let namespace = client.options().namespace.clone();
    let mut records: Vec<(Key, KeyValue)> = Vec::new();
    for folder in names::records(&namespace) {
        let mut answers = client.run(vec![ops::under(&folder, false)]).await?;
        progress.part();
        for kv in answers.keys()? {
            let rest = str::from_utf8(&kv.key)
                .ok()
                .and_then(|name| name.strip_prefix(&*folder));
            let key: Option<Key> =
                rest.and_then(|rest| names::ENCODING.decode(rest.split('/').next()?));
            // A key with a lease was found unused before.
            if let Some(key) = key.filter(|_| kv.lease == 0) {
                records.push((key, kv));
            }
        }
    }
    let ended = end_records(client, records, unused_for, progress).await?;
    forget(client, progress).await?;
    Ok(ended)
}

/// Lets the records of unused locks expire; returns how many locks.
async fn end_records(
    client: &mut EtcdClient,
    records: Vec<(Key, KeyValue)>,
    unused_for: Duration,
    progress: &Progress,
) -> EtcdResult<u64> {
    let seconds = i64::try_from(unused_for.as_secs()).unwrap_or(i64::MAX);
    let lease = i64::try_from(crate::lock::random() >> 1)
        .unwrap_or(1)
        .max(1);
    if records.is_empty() {
        return Ok(0);
    }
    if seconds > 0 {
        client.grant(lease, seconds).await?;
    }
    let mut ended = BTreeSet::new();
    for (key, kv) in records {
        let names = EtcdNames::new(&client.options().namespace, &key);
        let Ok(name) = String::from_utf8(kv.key.clone()) else {
            continue;
        };
        let revision = kv.mod_revision;
        // A hold record may be identified by its revision alone, so the hold is named before the
        // record is rewritten.
        let record = StoredRecord::read(kv.clone()).filter(|_| name.starts_with(&names.open()));
        let value = record.map_or(kv.value, |record| record.named().write());
        let end = if seconds > 0 {
            ops::put(&name, value, lease)
        } else {
            ops::delete(&name)
        };
        // The lock has no contender, and the record is unchanged. A record that was put anew
        // belongs to a used lock.
        let compare = vec![
            ops::nothing_under(&names.folder),
            ops::unchanged(&name, revision),
        ];
        if client.run_if(compare, vec![end]).await?.succeeded {
            ended.insert(key);
        }
        progress.part();
    }
    if ended.is_empty() && seconds > 0 {
        client.revoke(lease).await?;
    }
    Ok(u64::try_from(ended.len()).unwrap_or(u64::MAX))
}

/// Removes the history of locks that have no record any more.
async fn forget(client: &mut EtcdClient, progress: &Progress) -> EtcdResult<()> {
    let namespace = client.options().namespace.clone();
    let mut keys = BTreeSet::new();
    for folder in names::history_folders(&namespace) {
        let mut answers = client.run(vec![ops::under(&folder, true)]).await?;
        progress.part();
        let name_of = |kv: &KeyValue| -> Option<Key> {
            names::ENCODING.decode(
                str::from_utf8(&kv.key)
                    .ok()?
                    .strip_prefix(&*folder)?
                    .split('/')
                    .next()?,
            )
        };
        keys.extend(answers.keys()?.iter().filter_map(name_of));
    }
    for key in keys {
        let names = EtcdNames::new(&namespace, &key);
        let compare = vec![
            ops::nothing_under(&names.folder),
            ops::nothing_under(&names.open()),
            ops::absent(&names.last()),
        ];
        let success = [names.runs(false), names.runs(true), names.skips()]
            .iter()
            .map(|folder| ops::delete_under(folder))
            .collect();
        client.run_if(compare, success).await?;
        progress.part();
    }
    Ok(())
}
