//! The fence counter.

use ::redis::{Pipeline, Value};

use crate::{
    backends::redis::{failure, names::RedisNames, reply},
    lock::{Fence, Result},
};

/// Adds the commands that raise the counter from `before` to at least `fence`. Returns the index of
/// the reply with the counter.
///
/// A packet that arrives late must not begin the counter a second time: with the time counted
/// twice, it would soon be at its end.
pub(super) fn count(
    commands: &mut Pipeline,
    names: &RedisNames,
    before: Option<Fence>,
    fence: Fence,
) -> usize {
    if before.is_none() {
        commands.cmd("SET").arg(&names.fence).arg(fence.0).arg("NX");
    }
    let more = before.map_or(0, |before| fence.0 - before.0);
    commands.cmd("INCRBY").arg(&names.fence).arg(more);
    commands.len() - 1
}

/// Whether the counter was raised to `fence` or more. It is higher if other clients counted too
/// before their comparison failed, and lower if another program began or changed it meanwhile.
pub(super) fn counted(fence: Fence, reply: &Value) -> Result<bool> {
    match reply {
        Value::ServerError(error) => Err(failure::refused(error)),
        reply => Ok(reply::int(reply)
            .and_then(|counted| u64::try_from(counted).ok())
            .is_some_and(|counted| counted >= fence.0)),
    }
}
