//! Giving back: a hold, or a place in line.

use super::{
    ZooKeeper,
    acquire::LOOKS,
    failure::{self, Asked, Fault},
    hold::{Hold, unexpected},
    look::children,
    names::{guid, holds_of},
    session::Ensemble,
    wire::{Code, Reply, Request as Ask},
};
use crate::lock::{Key, Release, Request, Result, Scope, Token};

impl ZooKeeper {
    pub(super) async fn ask_release(&mut self, key: &Key, token: &Token, scope: Scope) -> Result<Release> {
        let Some(at) = self.hold_of(key, token).await? else { return Ok(Release::NotHeld) };
        let hold = &mut self.holds[at];
        if !hold.granted && hold.waiting {
            // The answer to a grant may have been lost; otherwise it stays in line until it leaves it.
            match hold.confirm(&self.ensemble).await {
                Ok(confirmed) => hold.granted = confirmed,
                Err(Fault::Expired) => hold.forget(),
                Err(Fault::Error(error)) => return Err(error),
            }
            if !hold.granted {
                return Ok(Release::NotHeld);
            }
        }
        let outcome = if hold.granted { hold.give_back(&self.ensemble, scope).await } else { hold.undo(&self.ensemble).await };
        let answer = match outcome {
            Ok(answer) => answer,
            Err(Fault::Expired) => Release::NotHeld,
            Err(Fault::Error(error)) => return Err(error),
        };
        let hold = self.holds.remove(at);
        let Some(session) = hold.session else { return Ok(answer) };
        if hold.root && matches!(answer, Release::StillHeld(_)) {
            // It is theirs now; dropped, it isn't ended.
            return Ok(answer);
        }
        let stale: Vec<String> = hold.stale.iter().map(|name| format!("{}/{name}", hold.names.meta)).collect();
        let mark = hold.root.then(|| hold.names.mark(&guid(&hold.token)));
        let tidy: Vec<_> = stale.iter().chain(&mark).map(|path| Ask::Delete { path }).collect();
        session.tell(&self.ensemble, &tidy);
        session.close(&self.ensemble);
        if let Some(heirloom) = hold.heirloom {
            heirloom.session(&hold.token).close(&self.ensemble);
        }
        Ok(answer)
    }

    pub(super) async fn leave_line(&mut self, request: &Request) -> Result<()> {
        let Some(at) = self.position(&request.key, &request.token).filter(|at| !self.holds[*at].granted) else { return Ok(()) };
        match self.holds[at].undo(&self.ensemble).await {
            Ok(_) | Err(Fault::Expired) => {}
            Err(Fault::Error(error)) => return Err(error),
        }
        if let Some(session) = self.holds.remove(at).session {
            session.close(&self.ensemble);
        }
        Ok(())
    }
}

impl Hold {
    /// Gives back a granted hold.
    async fn give_back(&mut self, ensemble: &Ensemble, scope: Scope) -> Asked<Release> {
        let Some(place) = self.place.clone() else { return Ok(Release::NotHeld) };
        let (beat, mark, meta) = (self.beat(), self.names.mark(&guid(&self.token)), self.names.meta.clone());
        let says = self.legacy();
        // Who entered whom is not recorded: only the first hold is known to enclose all others.
        let whole = self.root && scope == Scope::Tree;
        for nth in 0..LOOKS {
            let kept = if whole && nth == 0 { None } else { Some(self.kept(ensemble, true).await?) };
            if kept.as_ref().is_some_and(|kept| !kept.holds.contains(&beat)) {
                return Ok(Release::NotHeld);
            }
            let others = kept.as_ref().filter(|_| !whole).map_or(0, |kept| kept.holds.len() - 1);
            let mut steps = if others == 0 { vec![Ask::Delete { path: &place.path }] } else { vec![Ask::Check { path: &place.path }] };
            steps.push(Ask::Delete { path: &beat });
            steps.extend(match &kept {
                None => Some(Ask::Delete { path: &mark }),
                Some(kept) if others == 0 => kept.unmark(&mark),
                Some(kept) => kept.remark(&mark, self.root.then_some(&*says)),
            });
            let mut answers = self.ask(ensemble, &[Ask::All(steps), Ask::Children { path: &meta }]).await?;
            let left = children(answers.pop());
            match answers.pop() {
                Some(Ok(Reply::AllDone { .. })) if others == 0 => {
                    // Holds nested in this one that are left over end with their sessions; nobody needs to see them until then.
                    let start = holds_of(&guid(&self.token));
                    self.stale.extend(left.into_iter().filter(|name| name.starts_with(&start)));
                    // Once the lock is free, the session that was handed down with it has no node any more.
                    self.heirloom = kept.and_then(|kept| kept.heirloom());
                    return Ok(Release::Released);
                }
                Some(Ok(Reply::AllDone { .. })) => return Ok(Release::StillHeld(u32::try_from(others).unwrap_or(u32::MAX))),
                Some(Ok(Reply::RolledBack { at: 0 | 1, code: Code::NoNode })) => return Ok(Release::NotHeld),
                // Somebody entered or left, or removed the mark.
                Some(Ok(Reply::RolledBack { code: Code::BadVersion | Code::NoNode, .. })) => {}
                answer => return Err(unexpected(answer).into()),
            }
        }
        Err(failure::unsettled().into())
    }

    /// Takes back what an attempt may have done that was not seen to be granted.
    async fn undo(&mut self, ensemble: &Ensemble) -> Asked<Release> {
        if self.session.is_none() {
            return Ok(Release::NotHeld);
        }
        if !self.root {
            // What was entered is its owner's; only this hold in it is given back, if it is there.
            let seen = self.read_line(ensemble, true).await?;
            self.place = self.owners_place(ensemble, &seen).await?;
            return self.give_back(ensemble, Scope::Hold).await;
        }
        if self.place.is_none() && self.maybe_placed {
            let seen = self.read_line(ensemble, true).await?;
            self.find_place(ensemble, &seen.line).await?;
        }
        let beat = self.beat();
        let mark = self.place.as_ref().map(|_| self.names.mark(&guid(&self.token)));
        let place = self.place.clone();
        let mut requests = vec![Ask::Delete { path: &beat }];
        requests.extend(place.iter().map(|place| Ask::Delete { path: &place.path }));
        requests.extend(mark.iter().map(|path| Ask::Delete { path }));
        let answers = self.ask(ensemble, &requests).await?;
        if let Some(answer) = answers.iter().find(|answer| !matches!(answer, Ok(_) | Err(Code::NoNode))) {
            return Err(unexpected(Some(answer.clone())).into());
        }
        // The node that renewals write is made by the grant alone.
        Ok(if matches!(answers.first(), Some(Ok(_))) { Release::Released } else { Release::NotHeld })
    }
}
