//! Keeping a lock that a session has, and giving it back.

use std::time::Duration;

use super::{super::statement::Value, Hold, Mode, Sessions};
use crate::{
    backends::sql::{micros, ms},
    lock::{Break, Intent, Key, Release, ReleaseInfo, Renewal, Result, Token},
};

impl Sessions {
    pub(super) async fn ask_renew(&mut self, key: &Key, token: &Token, intent: Intent) -> Result<Renewal> {
        let Some(at) = self.hold_of(key, token).filter(|at| !self.holds[*at].leaving) else { return Ok(Renewal::NotHeld) };
        let Some((now, mark)) = self.extend(at, None).await? else { return Ok(Renewal::NotHeld) };
        match mark {
            Some(mark) if matches!(intent, Intent::Extend(_)) => return Ok(Renewal::Broken(mark)),
            Some(mark) if !mark.seen => {
                let (name, fence) = (self.names.of(key), self.holds[at].fence);
                self.see(&name, fence).await;
            }
            _ => {}
        }
        let hold = &self.holds[at];
        let length = intent.ttl().unwrap_or(hold.ttl);
        let ends = now.saturating_add(ms(length).saturating_mul(1000));
        if ends < hold.ends {
            return Ok(Renewal::Kept { expires_in: Some(micros(hold.ends - now)) });
        }
        let fence = hold.fence;
        if length.get() != hold.keeper.patience {
            if self.extend(at, Some(length.get())).await?.is_none() {
                return Ok(Renewal::NotHeld);
            }
            self.holds[at].ends = ends;
            self.tell_patience(at).await;
        }
        self.holds[at].ends = ends;
        Ok(Renewal::Renewed { ttl: length, fence })
    }

    /// The server's time in µs and the break, if the hold lasts; otherwise it is forgotten. A statement can fail by itself, which ends a
    /// transaction, and what a session has only with the session.
    pub(super) async fn extend(&mut self, at: usize, patience: Option<Duration>) -> Result<Option<(i64, Option<Break>)>> {
        let Hold { keeper, fence, .. } = &mut self.holds[at];
        match keeper.renew(*fence, patience).await {
            Ok(found) => Ok(Some(found)),
            Err(error) if self.options.mode == Mode::Advisory && keeper.session.is_open() => Err(error),
            Err(_) => {
                self.holds.swap_remove(at);
                Ok(None)
            }
        }
    }

    /// Publishes another length of a lease, for people only: a failure changes nothing else.
    pub(super) async fn tell_patience(&mut self, at: usize) {
        let sql = self.tables.fill("UPDATE {sessions} SET ttl_ms = $4 WHERE name = $1 AND pid = $2 AND hold = $3");
        let Hold { key, token, keeper, .. } = &self.holds[at];
        let (name, hold, pid) = (self.names.of(key), token.hold_text(), keeper.pid);
        let length = i64::try_from(keeper.patience.as_millis()).unwrap_or(i64::MAX);
        let told: Result<()> = self
            .aside(async |table| {
                let parameters = [Value::Text(&name), Value::Pid(pid), Value::Text(&hold), Value::Int(length)];
                table.session.query(&sql, &parameters).await.map(|_| ())
            })
            .await;
        drop(told);
    }

    pub(super) async fn ask_release(&mut self, key: &Key, token: &Token, info: &ReleaseInfo) -> Result<Release> {
        if let Some(at) = self.try_of(key, token) {
            // An abandoned hold ends with its session, before its absence is reported.
            self.tries[at].2.blocked |= !self.tries[at].2.session.is_open();
            let _ = self.take_try(key, token).await;
        }
        let Some(at) = self.hold_of(key, token) else {
            self.forget(key, token, info.run_state).await;
            return Ok(Release::NotHeld);
        };
        if !self.holds[at].keeper.session.is_alive() {
            self.holds.swap_remove(at);
            self.forget(key, token, info.run_state).await;
            return Ok(Release::NotHeld);
        }
        // It stays here until it is done: dropped half-way and asked again, the same session goes on with it.
        self.holds[at].leaving = true;
        let Hold { keeper, fence, matters, .. } = &mut self.holds[at];
        let given_back = keeper.end((&token.hold_text(), *fence), info, *matters).await;
        self.holds.swap_remove(at);
        given_back.map(|()| Release::Released)
    }
}
