//! Taking a lock away from its holder.
//!
//! A mark stands in the hold's record, which renewals read together with the own key, by a quorum, before they keep the
//! lease alive: etcd itself would go on doing that. So a renewal that began before the mark may extend the lease once more,
//! and whoever breaks waits for a whole one before the eviction.
//!
//! The interleavings that this is written against:
//! - *The hold ends, or another begins, beside a mark or an eviction*: both compare the create revision of the key, which no
//!   other ever has.
//! - *The record changes between the look and the mark* (its holder has seen an earlier mark): it is looked at anew.
//! - *The holder that is evicted lives on*: it hears that its key is gone and stops, which takes a moment. Its record stays,
//!   so that the next holder leaves it that time, but tells of no hold any more: that is remembered already.

use super::{
    client::{Answer, Client},
    failure,
    history::{self, Said},
    hold::TRIES,
    messages::TxnRequest,
    names::Names,
    ops::{self, Answers},
    permits,
    queue::{Contender, Look},
    record::{Held, Record},
    value::Value,
};
use crate::lock::{Break, End, Error, Fence, Key, Kind, Past};

/// The holder with this fence; one who waits is none.
fn holder(look: &Look, fence: Fence) -> Option<&Contender> {
    let place = look.contenders.iter().position(|one| one.fence() == fence)?;
    look.has(place).then(|| &look.contenders[place])
}

/// What dlock said with a holder's key.
fn said(one: &Contender) -> Answer<Value> {
    let value = one.value.as_deref().map_or(Ok(None), Value::read)?;
    value.ok_or_else(|| {
        let error = Error::new(Kind::Unsupported, "another program has it, which does not listen to dlock");
        error.hint("what took the lock has to give it back, or its lease ends").into()
    })
}

async fn look(client: &mut Client, names: &Names) -> Answer<Look> {
    Ok(Answers::of(client.txn(ops::read(ops::look(names, ops::ALL))).await?)?.look(names)?)
}

/// Marks the hold with this fence.
pub(super) async fn mark(client: &mut Client, key: &Key, fence: Fence, mark: &Break) -> Answer<bool> {
    let names = Names::new(&client.options().namespace, key);
    for _ in 0..TRIES {
        let look = look(client, &names).await?;
        let Some(one) = holder(&look, fence) else { return Ok(false) };
        let value = said(one)?;
        let record = look.record_of(one);
        // Where the store had no space for it, or somebody deleted it, it is written now.
        let held = record.and_then(Record::with_fence).unwrap_or_else(|| Held {
            fence: Some(one.created),
            metadata: value.metadata,
            ..Held::in_mode(look.mode_of(one))
        });
        let seen = held.mark.as_ref().is_some_and(|known| known.seen);
        let held = Held { mark: Some(Break { seen, ..mark.clone() }), ..held };
        let open = names.open_as(one.id());
        let compare = vec![ops::created_at(&one.name, one.created), ops::unchanged(&open, record.map_or(0, |record| record.revision))];
        let txn = TxnRequest { compare, success: vec![ops::put(&open, held.write(), 0)], failure: Vec::new() };
        if Answers::of(client.txn(txn).await?)?.succeeded {
            return Ok(true);
        }
    }
    Err(failure::contended().into())
}

/// Notes that the holder has seen the mark. Nothing depends on it, so that no failure is worth a word.
pub(super) async fn note_seen(client: &mut Client, record: &Record) {
    let Some(mut held) = record.with_fence() else { return };
    let Some(mark) = held.mark.as_mut().filter(|mark| !mark.seen) else { return };
    mark.seen = true;
    let compare = vec![ops::unchanged(&record.name, record.revision)];
    let txn = TxnRequest { compare, success: vec![ops::put(&record.name, held.write(), 0)], failure: Vec::new() };
    let _ = client.txn(txn).await;
}

/// Removes the hold with this fence.
pub(super) async fn evict(client: &mut Client, key: &Key, fence: Fence, mark: &Break) -> Answer<bool> {
    let names = Names::new(&client.options().namespace, key);
    let look = look(client, &names).await?;
    let Some(one) = holder(&look, fence) else { return Ok(false) };
    let (metadata, record) = (said(one)?.metadata, look.record_of(one));
    let (end, why): (End, _) = mark.into();
    let since_ms = record.and_then(|record| record.held.as_ref()?.since_ms);
    let past = Past { fence: Some(fence), started_ms: since_ms, ended_ms: None, end, why, metadata };
    let compare = vec![ops::created_at(&one.name, one.created)];
    let mut gone = vec![ops::delete_under(&names.nested(one.lease)), ops::delete(&one.name)];
    gone.extend(look.number_of(one).map(|number| permits::give_back(&names, number)));
    let mut says = vec![ops::put(&names.last(), one.created.to_string(), 0)];
    says.extend(record.map(|record| ops::put(&record.name, Record::waiting(record.mode), 0)));
    let says = Said { beside: says, ..Said::default() };
    let Some(freed) = history::end(client, &names, compare, gone, says, Some(&past)).await? else { return Ok(false) };
    // It is done, which no failure from here on may hide. Leases that nothing lies on end by themselves.
    for lease in freed.leases.iter().copied().filter(|lease| *lease != one.lease).chain([one.lease]) {
        let _ = client.revoke(lease).await;
    }
    history::trim(client, &names, freed.runs).await;
    Ok(true)
}
