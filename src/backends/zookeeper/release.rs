//! Giving back: a hold, or a place in line.

use super::{
    ZooKeeper,
    failure::{Asked, Fault},
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
        session.close(&self.ensemble).await;
        Ok(answer)
    }

    pub(super) async fn leave_line(&mut self, request: &Request) -> Result<()> {
        let Some(at) = self.position(&request.key, &request.token).filter(|at| !self.holds[*at].granted) else { return Ok(()) };
        match self.holds[at].undo(&self.ensemble).await {
            Ok(_) | Err(Fault::Expired) => {}
            Err(Fault::Error(error)) => return Err(error),
        }
        if let Some(session) = self.holds.remove(at).session {
            session.close(&self.ensemble).await;
        }
        Ok(())
    }
}

impl Hold {
    /// Gives back a granted hold.
    async fn give_back(&mut self, ensemble: &Ensemble, scope: Scope) -> Asked<Release> {
        let Some(place) = self.place.clone() else { return Ok(Release::NotHeld) };
        let (beat, mark) = (self.beat(), self.names.mark(&guid(&self.token)));
        // Who entered whom is not recorded: only the first hold is known to enclose all others.
        let others = if self.root && scope == Scope::Tree {
            0
        } else {
            let holds = self.holds(ensemble, true).await?;
            if !holds.contains(&beat) {
                return Ok(Release::NotHeld);
            }
            holds.len() - 1
        };
        let heirloom = self.heirloom();
        let mut steps = vec![Ask::Check { path: &place.path }, Ask::Delete { path: &beat }];
        if others == 0 {
            steps = vec![Ask::Delete { path: &place.path }, Ask::Delete { path: &beat }, Ask::Delete { path: &mark }];
        } else if self.root {
            steps.push(Ask::Write { path: &mark, data: &heirloom });
        }
        let meta = self.names.meta.clone();
        let mut answers = self.ask(ensemble, &[Ask::All(steps), Ask::Children { path: &meta }]).await?;
        // Holds nested in this one that are left over end with their sessions; nobody needs to see them until then.
        let start = holds_of(&guid(&self.token));
        let left = children(answers.pop()).into_iter().filter(|name| others == 0 && name.starts_with(&start));
        self.stale.extend(left);
        match answers.pop() {
            Some(Ok(Reply::AllDone { .. })) if others == 0 => Ok(Release::Released),
            Some(Ok(Reply::AllDone { .. })) => Ok(Release::StillHeld(u32::try_from(others).unwrap_or(u32::MAX))),
            Some(Ok(Reply::RolledBack { at: 0 | 1, code: Code::NoNode })) => Ok(Release::NotHeld),
            // Somebody removed the mark: the place itself is what counts.
            Some(Ok(Reply::RolledBack { code: Code::NoNode, .. })) => {
                match self.ask(ensemble, &[Ask::Delete { path: &place.path }]).await?.pop() {
                    Some(Ok(_)) => Ok(Release::Released),
                    Some(Err(Code::NoNode)) => Ok(Release::NotHeld),
                    answer => Err(unexpected(answer).into()),
                }
            }
            answer => Err(unexpected(answer).into()),
        }
    }

    /// Takes back what an attempt may have done that was not seen to be granted.
    async fn undo(&mut self, ensemble: &Ensemble) -> Asked<Release> {
        if self.session.is_none() {
            return Ok(Release::NotHeld);
        }
        if self.place.is_none() && self.root && self.maybe_placed {
            let seen = self.read_line(ensemble, true).await?;
            self.find_place(ensemble, &seen.line).await?;
        }
        let beat = self.beat();
        let place = self.place.clone().filter(|_| self.root);
        let mark = place.as_ref().map(|_| self.names.mark(&guid(&self.token)));
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
