//! Contenders as people see them: what they said of themselves, and what is left of their leases.

use std::time::Duration;

use super::{
    client::{Answer, Client},
    failure::Trouble,
    queue::{Contender, Look},
    value::Value,
};
use crate::lock::{Holder, Metadata, Result, Waiter};

/// `holders` with their leases.
///
/// etcd has no clock that could tell since when, and counts leases in whole seconds.
pub(super) async fn tell<'a>(client: &mut Client, look: &Look, holders: impl Iterator<Item = &'a Contender>) -> Answer<Vec<Holder>> {
    let mut told = Vec::new();
    for one in holders {
        let value = said(one)?;
        let lease = match one.lease {
            0 => None,
            lease => match left(client, lease).await? {
                Left::For { left, ago } => Some((left, ago)),
                Left::Over | Left::Unknown => None,
            },
        };
        told.push(Holder {
            permit: look.number_of(one).map(|number| number.number),
            mode: look.mode_of(one),
            foreign: one.value.is_some() && value.is_none(),
            detached: value.as_ref().is_some_and(|value| value.detached),
            metadata: value.and_then(|value| value.metadata),
            fence: Some(one.fence()),
            held_for: None,
            renewed_ago: lease.map(|(_, ago)| ago),
            expires_in: lease.map(|(left, _)| left),
            holds: look.holds_of(one.lease),
            broken: look.record_of(one).and_then(|record| record.held.as_ref()?.mark.clone()),
        });
    }
    Ok(told)
}

/// Those who wait, by what they said of themselves.
pub(super) fn waiters(look: &Look) -> Result<Vec<Waiter>> {
    let waiter = |one: &Contender| -> Result<Waiter> { Ok(Waiter { metadata: metadata(one)?, waiting_for: None }) };
    look.waiters().map(waiter).collect()
}

fn metadata(one: &Contender) -> Result<Option<Metadata>> {
    Ok(said(one)?.and_then(|value| value.metadata))
}

/// What dlock wrote with the key; `None` for others, or if it was not read.
fn said(one: &Contender) -> Result<Option<Value>> {
    one.value.as_deref().map_or(Ok(None), Value::read)
}

/// What is left of a lease.
pub(super) enum Left {
    /// So much, rounded up.
    For {
        /// Until it ends.
        left: Duration,
        /// Since it was extended.
        ago: Duration,
    },
    /// It ended.
    Over,
    /// It is not for this user to see.
    Unknown,
}

/// What is left of a lease.
pub(super) async fn left(client: &mut Client, lease: i64) -> Answer<Left> {
    let answer = match client.time_to_live(lease).await {
        Ok(answer) => answer,
        Err(Trouble::NoLease) => return Ok(Left::Over),
        Err(Trouble::Refused(_)) => return Ok(Left::Unknown),
        Err(trouble) => return Err(trouble),
    };
    let (Ok(left), Ok(granted)) = (u64::try_from(answer.ttl), u64::try_from(answer.granted_ttl)) else { return Ok(Left::Over) };
    let left = Duration::from_secs((left + 1).min(granted));
    Ok(Left::For { left, ago: Duration::from_secs(granted).saturating_sub(left) })
}
