//! Keeping a lock that a session has, and giving it back.

use std::time::Duration;

use super::{
    super::{
        keeper::{Heard, Keeper, heard},
        life::Life,
        readers::own_lamp,
        starts,
        statement::Value,
        table::leaving,
    },
    Hold, Mode, Sessions,
};
use crate::{
    backends::sql::{micros, ms},
    lock::{Intent, Key, Release, ReleaseInfo, Renewal, Result, RunState, Token, Ttl},
};

impl Sessions {
    /// Extends a hold. With an intent it also reads the mark of a break.
    pub(super) async fn ask_renew(&mut self, key: &Key, token: &Token, ttl: Option<Ttl>, intent: Option<Intent>) -> Result<Renewal> {
        let Some(at) = self.hold_of(key, token).filter(|at| !self.holds[*at].leaving) else { return Ok(Renewal::NotHeld) };
        let fence = self.holds[at].fence;
        if self.options.mode == Mode::Row {
            // First, since the session's silence is counted from what is asked last.
            let length = ttl.unwrap_or(self.holds[at].ttl);
            let heard = self.tell(at, token, length, intent).await;
            if self.holds[at].keeper.session.is_alive()
                && let Some(mark) = self.holds[at].heed(heard, intent)?
            {
                return Ok(Renewal::Broken(mark));
            }
        }
        let now = match self.holds[at].keeper.renew(None, token, fence, intent).await {
            Ok(Some((now, _))) if self.options.mode == Mode::Row => now,
            Ok(Some((now, heard))) => match self.holds[at].heed(heard, intent)? {
                Some(mark) => return Ok(Renewal::Broken(mark)),
                None => now,
            },
            // A statement can fail by itself; a session that is over has ended the hold.
            Err(error) if self.holds[at].keeper.session.is_open() => return Err(error),
            Ok(None) | Err(_) => {
                self.holds.swap_remove(at);
                return Ok(Renewal::NotHeld);
            }
        };
        let hold = &self.holds[at];
        let length = ttl.unwrap_or(hold.ttl);
        let ends = now.saturating_add(ms(length).saturating_mul(1000));
        // The session lasts for as long as the server is patient, whatever its clock was set back to meanwhile.
        let left = micros(hold.ends - now).min(hold.keeper.patience);
        if length.get() < left {
            return Ok(Renewal::Kept { expires_in: Some(left) });
        }
        if length.get() != hold.keeper.patience {
            match self.holds[at].keeper.renew(Some(length.get()), token, fence, None).await {
                Ok(Some(_)) => {}
                Err(error) if self.holds[at].keeper.session.is_open() => return Err(error),
                Ok(None) | Err(_) => {
                    self.holds.swap_remove(at);
                    return Ok(Renewal::NotHeld);
                }
            }
        }
        self.holds[at].ends = ends;
        Ok(Renewal::Renewed { ttl: length, fence })
    }

    /// Shows a renewal to other clients, and asks for the mark of a break, over another session than the one that is in a transaction,
    /// where what is written is seen. That it fails or hangs must not keep the renewal.
    pub(super) async fn tell(&mut self, at: usize, token: &Token, length: Ttl, intent: Option<Intent>) -> Heard {
        let Hold { keeper, fence, .. } = &self.holds[at];
        let touch = keeper.touch(token, *fence, length.get(), intent);
        let patience = (length.get() / 30).clamp(Duration::from_millis(50), Duration::from_secs(1));
        match tokio::time::timeout(patience, self.try_aside(&touch)).await {
            Ok(Ok(answers)) => heard(&answers, 0, intent),
            _ => Heard::default(),
        }
    }

    pub(super) async fn ask_release(&mut self, key: &Key, token: &Token, info: &ReleaseInfo) -> Result<Release> {
        // One that was given up on: its session, asked in order behind what may still be under way there, lets go of it; if
        // it doesn't answer, it ends, and the lock with it, and what it wrote is taken out over another one meanwhile.
        if let Some(mut keeper) = self.take_try(key, token) {
            let undo = self.undoing(key, token, info.end.is_none());
            let let_go = self.letting_go(key, token, &keeper, &undo);
            let waits = keeper.session.is_open();
            let elsewhere = async {
                if waits {
                    std::future::pending::<()>().await;
                }
                let _ = self.aside(&undo).await;
            };
            let answered = tokio::select! {
                answer = keeper.session.ask(&let_go) => answer.is_ok(),
                () = elsewhere => return Ok(Release::NotHeld),
            };
            if answered {
                self.side = Some(keeper.session);
                return Ok(Release::NotHeld);
            }
        }
        let Some(at) = self.hold_of(key, token) else {
            // Its answer was lost with its session: what it wrote is not to be taken for a holder that vanished, nor for a start.
            let _: Result<()> = if info.end.is_none() {
                self.aside(&self.undoing(key, token, true)).await.map(|_| ())
            } else {
                self.forget(key, token, info.run_state).await
            };
            return Ok(Release::NotHeld);
        };
        if !self.holds[at].keeper.session.is_alive() {
            self.holds.swap_remove(at);
            let _: Result<()> = self.forget(key, token, info.run_state).await;
            return Ok(Release::NotHeld);
        }
        // It stays here until it is done: dropped half-way and asked again, the same session goes on with it.
        self.holds[at].leaving = true;
        let Hold { keeper, fence, .. } = &mut self.holds[at];
        let released = keeper.give_back(token, *fence, info).await;
        let mut hold = self.holds.swap_remove(at);
        let released = released?;
        if self.is_queued(key, token) {
            // The lock is given back already: no client waits for this, and nothing depends on it.
            let _ = hold.keeper.session.ask(&leaving(&self.tables, &self.names.of(key), token)).await;
            self.queued.retain(|(of, who)| of != key || who != token);
        }
        self.side.get_or_insert(hold.keeper.session);
        Ok(if released { Release::Released } else { Release::NotHeld })
    }

    /// Gives back whatever a session has of a lock, as if it had never had it.
    pub(super) fn letting_go(&self, key: &Key, token: &Token, keeper: &Keeper, undo: &str) -> String {
        match self.options.mode {
            // Without the lamp nothing more is written of the hold.
            Mode::Row if keeper.shared => {
                let lamp = own_lamp(&self.tables, &self.names.of(key), &token.hold_text());
                format!("DO RELEASE_LOCK({lamp});\n{undo}COMMIT;\n")
            }
            Mode::Row => format!("{undo}COMMIT;\n"),
            _ => format!("{undo}DO RELEASE_LOCK({});\n", self.lock_of(key)),
        }
    }

    /// Takes out what an unused grant wrote; `for_good` if it is not asked for again, so that none may come later.
    pub(super) fn undoing(&self, key: &Key, token: &Token, for_good: bool) -> String {
        let undo = if for_good { include_str!("../sql/undo_for_good.sql") } else { include_str!("../sql/forget_hold.sql") };
        self.taking_out(undo, key, token, Some(RunState::Cancelled), "1")
    }

    /// Takes out what was written of a hold that is over with its server, and given back since: the next one need not wait.
    pub(super) async fn forget(&mut self, key: &Key, token: &Token, run_state: Option<RunState>) -> Result<()> {
        let session = self.side().await?;
        let gone = format!("NOT {}", Life::of(&session.server).lives);
        self.side = Some(session);
        let forget = self.taking_out(include_str!("../sql/forget_hold.sql"), key, token, run_state, &gone);
        self.aside(&forget).await.map(|_| ())
    }

    pub(super) fn taking_out(&self, undo: &str, key: &Key, token: &Token, run_state: Option<RunState>, which: &str) -> String {
        let (name, root, became) = (self.names.of(key), token.hold_text(), starts::became(run_state));
        let values =
            [("name", Value::Bytes(&name)), ("root", Value::Text(&root)), ("became", Value::Sql(&became)), ("which", Value::Sql(which))];
        let read =
            if self.options.mode == Mode::Row { "\nDELETE FROM :readers WHERE name = :name AND root = :root AND :which;" } else { "" };
        self.tables.fill(&format!("{undo}{read}"), &values)
    }
}
