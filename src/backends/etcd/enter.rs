//! Enters a hold that an ancestor process has.
//!
//! The nested hold is a key with a lease of its own, outside the lock's folder, so that it expires
//! by itself. It lasts no longer than the lock's lease, whose length can't change any more.

use std::time::Duration;

use super::{
    client::{EtcdClient, EtcdResult},
    failure::{self, Trouble},
    ops,
    session::{EtcdSession, HoldState, Nested, NestedName, OwnHold, seconds, ttl},
};
use crate::lock::{Attempt, Grant, Request, Result};

/// Enters the hold, if the owner has the lock.
pub(super) async fn enter(
    client: &mut EtcdClient,
    session: &mut EtcdSession,
    request: &Request,
) -> EtcdResult<Attempt> {
    let Some(found) = super::hold::find(client, session).await? else {
        return Ok(Attempt::NotHeld);
    };
    found.mode.check_nested(request.mode)?;
    let Some(outer) = client.keep_alive(session.lease).await? else {
        return Ok(Attempt::NotHeld);
    };
    let granted = |length| -> Result<Grant> {
        let permit = found.hold.number.as_ref().map(|number| number.number);
        Ok(Grant {
            fence: found.hold.fence(),
            ttl: ttl(length)?,
            holds: found.holds,
            drain_delay: Duration::ZERO,
            session: None,
            permit,
        })
    };
    if found.is_root {
        session.state = HoldState::Held(found.hold.clone());
        return Ok(Attempt::Granted(granted(outer)?));
    }
    let NestedName { name, lease } = session.inner();
    let length = match client.grant(lease, seconds(request.ttl).min(outer)).await {
        Ok(length) => length,
        Err(Trouble::LeaseExists) => client
            .keep_alive(lease)
            .await?
            .ok_or_else(failure::lease_gone)?,
        Err(trouble) => return Err(trouble),
    };
    let folder = session.names.nested(session.lease);
    let compare = vec![ops::created_at(&found.hold.own, found.hold.created)];
    let mut answers = client
        .run_if(
            compare,
            vec![
                ops::put(&name, "", lease),
                ops::peek(&name),
                ops::under(&folder, true),
            ],
        )
        .await?;
    if !answers.succeeded {
        client.revoke(lease).await?;
        return Ok(Attempt::NotHeld);
    }
    answers.skip(1);
    let created = answers
        .one()?
        .ok_or_else(failure::unreadable)?
        .create_revision;
    let left = session.names.released_mark(session.lease);
    let (marks, holds): (Vec<_>, Vec<_>) = answers
        .keys()?
        .into_iter()
        .partition(|kv| kv.key == left.as_bytes());
    let holds = u32::try_from(holds.len() + usize::from(marks.is_empty())).unwrap_or(u32::MAX);
    let hold = OwnHold {
        seen: answers.revision,
        nested: Some(Nested {
            name,
            lease,
            created,
        }),
        ..found.hold.clone()
    };
    session.state = HoldState::Held(hold);
    Ok(Attempt::Granted(Grant {
        holds,
        ..granted(length.min(outer))?
    }))
}
