//! Renewing, verifying and releasing a hold on Redis.

use ::redis::Value;

use super::{
    CAPABILITIES, Redis, answer::read_renewal, connection::ServerConnection, flag, history,
    names::RedisNames, script,
};
use crate::lock::{End, Intent, Key, ReleaseInfo, Renewal, Result, RunState, Scope, Token};

impl Redis {
    /// Extends a hold, exclusive or a share. Only the lock is declared: it is the only key that all
    /// kinds of hold have.
    async fn renew_over(
        &mut self,
        conn: ServerConnection,
        names: &RedisNames,
        token: &Token,
        ttl: &str,
        purpose: &str,
    ) -> Result<(ServerConnection, Value)> {
        let (owner, hold) = (token.owner.to_string(), token.hold_text());
        let arguments = [
            &*owner,
            &hold,
            ttl,
            purpose,
            &names.record,
            &names.shares,
            &names.ends,
        ];
        self.eval_over(conn, &script::RENEW, &[&names.lock], &arguments)
            .await
    }

    pub(super) async fn ask_renew(
        &mut self,
        key: &Key,
        token: &Token,
        intent: Intent,
    ) -> Result<Renewal> {
        if let Some(ttl) = intent.ttl() {
            CAPABILITIES.check_ttl(ttl)?;
        }
        let names = self.names(key)?;
        let ttl = intent
            .ttl()
            .map(|ttl| ttl.as_millis().to_string())
            .unwrap_or_default();
        let purpose = if intent == Intent::Drain {
            "stop"
        } else {
            "go-on"
        };
        let conn = self.servers.take_for_long(&names.lock).await?;
        let (mut conn, reply) = self.renew_over(conn, &names, token, &ttl, purpose).await?;
        let renewal = match &reply {
            Value::ServerError(error) => Err(self.servers.refused(error)),
            reply => read_renewal(reply),
        };
        // `Kept` includes a renewal that would have shortened the hold.
        if matches!(renewal, Ok(Renewal::Renewed { .. } | Renewal::Kept { .. }))
            && let Some(why) = self.shortfall(&mut conn).await?
        {
            return Err(why);
        }
        self.servers.put_back_after(&names.lock, conn, &reply);
        renewal
    }

    pub(super) async fn ask_verify(&mut self, key: &Key, token: &Token) -> Result<Renewal> {
        let names = self.names(key)?;
        let conn = self.servers.take(&names.lock).await?;
        // A TTL of 0 would shorten any hold, so nothing is changed.
        let (conn, reply) = self.renew_over(conn, &names, token, "0", "look").await?;
        let holding = match &reply {
            Value::ServerError(error) => Err(self.servers.refused(error)),
            reply => read_renewal(reply),
        };
        self.servers.put_back_after(&names.lock, conn, &reply);
        holding
    }

    pub(super) async fn release_over(
        &mut self,
        conn: ServerConnection,
        names: &RedisNames,
        token: &Token,
        info: &ReleaseInfo,
    ) -> Result<(ServerConnection, Value)> {
        let sides: [&str; 10] = [
            &names.record,
            &names.queue,
            &names.wake,
            &names.runs,
            &names.bad_runs,
            &names.starts,
            &names.shares,
            &names.ends,
            &names.ordered_queue,
            &names.wake_ordered,
        ];
        let (owner, hold) = (token.owner.to_string(), token.hold_text());
        let (tree, sharded) = (flag(info.scope == Scope::Tree), flag(self.is_cluster()));
        let how = history::how(info)?;
        let bad = flag(info.end.as_ref().is_some_and(End::is_bad));
        let run_state = info.run_state.map_or("", RunState::as_str);
        let told = [
            &*names.channel,
            &names.rw_channel,
            &names.fair_queue,
            sharded,
        ];
        let arguments = [
            &[&*owner, &hold, tree],
            &told[..],
            &[&how, bad, run_state, &names.wakes],
            &sides,
        ]
        .concat();
        let number = self.unanswered.next(token);
        if number == 1 {
            return self
                .eval_arriving(conn, &script::RELEASE, &[&names.lock], &sides, &arguments)
                .await;
        }
        let (late, number) = (names.late.clone() + &hold, number.to_string());
        let (sides, arguments) = (
            [&sides[..], &[&late]].concat(),
            [&arguments[..], &[&late, &number]].concat(),
        );
        self.eval_arriving(conn, &script::RELEASE, &[&names.lock], &sides, &arguments)
            .await
    }
}
