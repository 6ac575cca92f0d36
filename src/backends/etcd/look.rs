//! Looking at locks, for people and programs. Read only, and by a quorum.

use std::collections::BTreeSet;

use super::{
    client::{Answer, Client},
    holders,
    names::{self, Names},
    ops::{self, Answers},
    queue::Class,
};
use crate::lock::{Fence, Key, LockState};

/// What is known of one lock.
pub(super) async fn inspect(client: &mut Client, key: &Key) -> Answer<LockState> {
    let names = Names::new(&client.options().namespace, key);
    let mut ops = ops::look(&names, ops::ALL);
    ops.push(ops::get(&names.last()));
    let mut answers = Answers::of(client.txn(ops::read(ops)).await?)?;
    let look = answers.look(&names)?;
    let last = answers.one()?.and_then(|kv| str::from_utf8(&kv.value).ok()?.parse().ok()).map(Fence);
    let holders = holders::tell(client, &look, look.holders()).await?;
    Ok(LockState {
        nodes: Vec::new(),
        key: key.clone(),
        stored_as: names.shown(),
        // Those who hold came after whoever gave it back.
        last_fence: holders.iter().filter_map(|holder| holder.fence).max().or(last),
        holders,
        waiters: holders::waiters(&look)?,
    })
}

/// What is known of the locks that are held and whose keys begin with `start`, by key.
pub(super) async fn list(client: &mut Client, start: &str) -> Answer<Vec<LockState>> {
    let namespace = client.options().namespace.clone();
    let start = names::prefix(&namespace) + &names::ENCODING.encode_str(start);
    let mut answers = Answers::of(client.txn(ops::read(vec![ops::under(&start, true)])).await?)?;
    let mut keys = BTreeSet::new();
    for kv in answers.keys()? {
        let found = str::from_utf8(&kv.key).ok().and_then(|name| names::key_of(&namespace, name));
        // Without a lease it is nobody's hold; in an empty namespace it may be anything.
        keys.extend(found.filter(|(_, rest)| kv.lease != 0 && Class::of(rest).is_some()).map(|(key, _)| key));
    }
    let mut states = Vec::new();
    for key in keys {
        let state = inspect(client, &key).await?;
        if !state.holders.is_empty() {
            states.push(state);
        }
    }
    Ok(states)
}
