//! Keeps a hold: renews it, and detects its end before its lease is over.

use super::{
    CAPABILITIES, ZooKeeper,
    failure::{self, Fault, ZkResult},
    hold::ZkHold,
    record::GrantMark,
};
use crate::lock::{Intent, Key, Renewal, Result, Token, Ttl};

impl ZooKeeper {
    pub(super) async fn ask_renew(
        &mut self,
        key: &Key,
        token: &Token,
        intent: Intent,
    ) -> Result<Renewal> {
        let taken_with = self
            .position(key, token)
            .and_then(|at| self.holds[at].session.as_ref())
            .map(|session| session.timeout);
        // A session's timeout can't change.
        if let Some(ttl) = intent.ttl().filter(|ttl| taken_with != Some(ttl.get())) {
            CAPABILITIES.check_new_ttl(ttl)?;
        }
        let Some(at) = self.hold_of(key, token).await? else {
            return Ok(Renewal::NotHeld);
        };
        let hold = &mut self.holds[at];
        let outcome = if hold.granted {
            hold.renew(intent).await
        } else {
            Ok(Renewal::NotHeld)
        };
        match outcome {
            Ok(Renewal::NotHeld) => {
                // The session that another process handed over is of no more use to this hold, but
                // perhaps to its nested holds.
                let handed_down = hold.is_handed_down().await;
                if let Some(session) = hold
                    .session
                    .take_if(|session| session.is_given_away())
                    .filter(|_| !handed_down)
                {
                    session.close();
                }
                Ok(Renewal::NotHeld)
            }
            Ok(renewal) => Ok(renewal),
            Err(Fault::Expired) => {
                hold.forget();
                Ok(Renewal::NotHeld)
            }
            Err(Fault::Error(error)) => Err(error),
        }
    }

    /// Completes when the hold's node, or the connection that would report its loss, is gone.
    pub(super) async fn await_trouble(&mut self, key: &Key, token: &Token) {
        let hold = self.holds.iter_mut().find(|hold| hold.is(key, token));
        let Some((hold, place)) =
            hold.and_then(|hold| hold.place.clone().map(|place| (hold, place)))
        else {
            return std::future::pending().await;
        };
        if hold.trouble.is_none() {
            let Some(session) = &mut hold.session else {
                return;
            };
            let Ok(Some(watch)) = session.watch(&place.path).await else {
                return;
            };
            hold.trouble = Some(watch);
        }
        if let Some(watch) = &mut hold.trouble {
            watch.await;
        }
        hold.trouble = None;
    }
}

impl ZkHold {
    async fn renew(&mut self, intent: Intent) -> ZkResult<Renewal> {
        let Some(mark) = self.confirm_and_read().await? else {
            return Ok(Renewal::NotHeld);
        };
        let granted = mark
            .as_ref()
            .and_then(|(mark_data, stat)| Some((GrantMark::read(mark_data)?, *stat)));
        let broken = granted
            .as_ref()
            .and_then(|(granted, _)| granted.hold.mark.clone());
        if let (Some(broken), Intent::Extend(_)) = (broken, intent) {
            if let Some(session) = &mut self.session {
                session.stop_keeping_alive();
            }
            return Ok(Renewal::Broken(broken));
        }
        let mut lasts = self
            .session
            .as_ref()
            .map(|session| session.timeout)
            .unwrap_or_default();
        if !self.root {
            match self.keep_inherited_session(mark, intent).await? {
                Some(keeps) => lasts = lasts.min(keeps).min(self.outer),
                None => return Ok(Renewal::NotHeld),
            }
        }
        // A hold that keeps the session that was handed down has already written the note.
        if let (
            Some((
                granted @ GrantMark {
                    inherited_session: None,
                    ..
                },
                stat,
            )),
            Intent::Drain,
        ) = (&granted, intent)
        {
            self.note_seen(granted, stat).await;
        }
        let (Some(place), Some(session)) = (&self.place, &mut self.session) else {
            return Err(failure::unsettled().into());
        };
        session.stop_keeping_alive();
        Ok(Renewal::Renewed {
            ttl: Ttl::new(lasts)?,
            fence: place.fence,
        })
    }
}
