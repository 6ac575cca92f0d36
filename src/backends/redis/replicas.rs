//! Waiting until replicas have what was written.
//!
//! Redis answers before its replicas know. A grant that none of them has is forgotten by a failover; and a master that is
//! cut off from them would go on granting and renewing beside its successor. Worst cases: the replicas don't confirm in
//! time (a grant is given back, a renewal is not counted); the connection breaks meanwhile (unknown: the core asks again
//! or undoes it); a replica has the grant but not that it was given back (it ends with its lease).

use redis::Value;

use super::{Redis, failure, names::Names, reply, servers::Line};
use crate::lock::{Effect, Error, Parting, Request, Result};

impl Redis {
    /// Waits until as many replicas as were asked for have all that was written over `line`; says if they have not.
    pub(super) async fn shortfall(&self, line: &mut Line) -> Result<Option<Error>> {
        let Some(replicas) = self.options().replicas else { return Ok(None) };
        let mut wait = redis::cmd("WAIT");
        wait.arg(replicas.count).arg(u64::try_from(replicas.within.as_millis()).unwrap_or(u64::MAX).max(1));
        let have = match line.ask(&wait.get_packed_command()).await? {
            Value::ServerError(error) => return Ok(Some(failure::refused(&error).effect(Effect::Unknown))),
            have => reply::int(&have).ok_or_else(failure::unreadable)?,
        };
        let enough = have >= i64::from(replicas.count);
        Ok((!enough).then(|| failure::too_few_replicas(replicas, have).effect(Effect::Unknown)))
    }

    /// Gives a grant back that too few replicas have. The connection isn't kept: there may be another master by now.
    pub(super) async fn undo(&mut self, line: Line, names: &Names, request: &Request, why: Error) -> Error {
        match self.release_over(line, names, &request.token, &Parting::UNDO).await {
            Ok((_, reply)) if !matches!(reply, Value::ServerError(_)) => why.effect(Effect::NotApplied),
            _ => why,
        }
    }
}
