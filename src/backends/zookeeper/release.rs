//! Giving back: a hold, or a place in line.

use super::{
    ZooKeeper,
    acquire::LOOKS,
    enter::Kept,
    failure::{self, Asked, Fault},
    history::make,
    hold::{Hold, Stale, unexpected},
    look::children,
    names::{Memory, guid, holds_of, way_to},
    session::{Ensemble, Purpose, Session, VISIT},
    starts::Change,
    wire::{Code, Node, Reply, Request as Ask},
};
use crate::lock::{Key, Parting, Release, Request, Result, Scope, Stage, Token};

impl ZooKeeper {
    pub(super) async fn ask_release(&mut self, key: &Key, token: &Token, parting: &Parting) -> Result<Release> {
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
        if parting.end.is_none() {
            // Nothing was done under it, and perhaps because the time to let others die in was not over.
            hold.stale.clear();
        }
        let outcome =
            if hold.granted { hold.give_back(&self.ensemble, parting).await } else { hold.undo(&self.ensemble, parting.became).await };
        let answer = match outcome {
            Ok(answer) => answer,
            Err(Fault::Expired) => Release::NotHeld,
            Err(Fault::Error(error)) => return Err(error),
        };
        let mut hold = self.holds.remove(at);
        if hold.session.is_none() || answer == Release::NotHeld && hold.is_handed_down(&self.ensemble).await {
            return Ok(answer);
        }
        if hold.root && matches!(answer, Release::StillHeld(_)) {
            // It is theirs now; dropped, it isn't ended.
            return Ok(answer);
        }
        if hold.root {
            // Of a hold that was found to be gone, what its mark says is all that is known.
            let gone = hold.granted && answer == Release::NotHeld;
            let mark = hold.own_mark();
            hold.stale.push(Stale { run: mark.run.filter(|_| gone), ..mark });
        }
        hold.bury(&self.ensemble);
        let Some(session) = hold.session else { return Ok(answer) };
        session.close(&self.ensemble);
        if let Some(heirloom) = hold.heirloom {
            heirloom.session(&hold.token).close(&self.ensemble);
        }
        Ok(answer)
    }

    /// Ends the session of a hold that could not be given back: all of its nodes go with it, whatever their rights are. Whether its
    /// place in the line is gone after that.
    pub(super) async fn end_session_of(&mut self, key: &Key, token: &Token) -> bool {
        let Some(at) = self.position(key, token).filter(|at| self.holds[*at].root) else { return false };
        let hold = self.holds.remove(at);
        let (Some(session), Some(place)) = (hold.session, hold.place) else { return false };
        session.close(&self.ensemble);
        self.ensemble.tidy().await;
        let gone = async {
            let mut visit = Session::open(&self.ensemble, VISIT, Purpose::Visit).await?;
            let asked = [Ask::Sync { path: &place.path }, Ask::Exists { path: &place.path }];
            Ok(visit.ask(&self.ensemble, &asked).await?.pop() == Some(Err(Code::NoNode)))
        };
        let gone: Asked<bool> = gone.await;
        gone.unwrap_or(false)
    }

    pub(super) async fn leave_line(&mut self, request: &Request) -> Result<()> {
        let Some(at) = self.position(&request.key, &request.token).filter(|at| !self.holds[*at].granted) else { return Ok(()) };
        match self.holds[at].undo(&self.ensemble, None).await {
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
    async fn give_back(&mut self, ensemble: &Ensemble, parting: &Parting) -> Asked<Release> {
        let Some(place) = self.place.clone() else { return Ok(Release::NotHeld) };
        let (beat, mark, meta) = (self.beat(), self.names.mark(&guid(&self.token)), self.names.meta.clone());
        let memories = [Memory::Fine, Memory::Bad].map(|what| (what, self.names.memory(what)));
        let (mut remember, mut made, mut numbered) = (true, false, true);
        // Who entered whom is not recorded: only the first hold is known to enclose all others.
        let whole = self.root && parting.scope == Scope::Tree;
        for nth in 0..LOOKS {
            let kept = if whole && nth == 0 { None } else { Some(self.kept(ensemble, true).await?) };
            if kept.as_ref().is_some_and(|kept| !kept.holds.contains(&beat)) {
                return Ok(Release::NotHeld);
            }
            let says = kept.as_ref().filter(|_| self.root).map(|kept| self.legacy(kept));
            let others = kept.as_ref().filter(|_| !whole).map_or(0, |kept| kept.holds.len() - 1);
            let mut steps = if others == 0 { vec![Ask::Delete { path: &place.path }] } else { vec![Ask::Check { path: &place.path }] };
            steps.push(Ask::Delete { path: &beat });
            steps.extend(match &kept {
                None => Some(Ask::Delete { path: &mark }),
                Some(kept) if others == 0 => kept.unmark(&mark),
                Some(kept) => kept.remark(&mark, says.as_deref()),
            });
            let granted = kept.as_ref().and_then(Kept::granted).map(|(granted, _)| granted).or_else(|| self.grant.clone());
            let number = granted.and_then(|granted| granted.number()).map(|number| self.names.permit(number));
            let besides: Vec<_> = number.into_iter().chain(place.twin(&self.names)).filter(|_| others == 0 && numbered).collect();
            let of_besides = steps.len()..steps.len() + besides.len();
            steps.extend(besides.iter().map(|path| Ask::Delete { path }));
            let run = if others == 0 && remember { self.run(parting, kept.as_ref().and_then(Kept::granted)) } else { None };
            let run = run.and_then(|run| run.node(&self.names));
            let changes = self.ending(ensemble, parting.became).await?;
            steps.extend(changes.iter().map(Change::step));
            let last = steps.len();
            steps.extend(run.iter().map(|(path, data)| Ask::Create { path, data, node: Node::Persistent }));
            let mut asks = vec![Ask::All(steps), Ask::Children { path: &meta }];
            asks.extend(memories.iter().map(|(_, folder)| Ask::Exists { path: folder }));
            let mut answers = self.ask(ensemble, &asks).await?.into_iter();
            let (done, left) = (answers.next(), children(answers.next()));
            match done {
                Some(Ok(Reply::AllDone { .. })) if others == 0 => {
                    // Holds nested in this one that are left over end with their sessions; nobody needs to see them until then.
                    let start = holds_of(&guid(&self.token));
                    let nested = left.into_iter().filter(|name| name.starts_with(&start));
                    self.stale.extend(nested.map(|name| Stale { path: format!("{meta}/{name}"), run: None, alone: None }));
                    // Once the lock is free, the session that was handed down with it has no node any more.
                    self.heirloom = kept.and_then(|kept| kept.heirloom());
                    for ((what, _), answer) in memories.iter().zip(answers) {
                        self.trim(ensemble, *what, &answer).await;
                    }
                    return Ok(Release::Released);
                }
                // Removed from outside. What is left of them goes with the session.
                Some(Ok(Reply::RolledBack { at, code: Code::NoNode })) if of_besides.contains(&at) => numbered = false,
                // No history keeps a lock: it can't be written, or its end was told already.
                Some(Ok(Reply::RolledBack { at, code })) if run.is_some() && at == last => {
                    remember = code == Code::NoNode && !made;
                    if remember {
                        let folders: Vec<_> = memories.iter().flat_map(|(_, folder)| way_to(folder)).collect();
                        self.ask(ensemble, &make(&folders)).await?;
                        made = true;
                    }
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
    async fn undo(&mut self, ensemble: &Ensemble, became: Option<Stage>) -> Asked<Release> {
        if self.session.is_none() {
            return Ok(Release::NotHeld);
        }
        if !self.root {
            // What was entered is its owner's; only this hold in it is given back, if it is there.
            let seen = self.read_line(ensemble, true).await?;
            self.place = self.owners_place(ensemble, &seen).await?;
            return self.give_back(ensemble, &Parting::UNDO).await;
        }
        if self.place.is_none() && self.maybe_placed {
            let seen = self.read_line(ensemble, true).await?;
            self.find_place(ensemble, &seen.line).await?;
        }
        let beat = self.beat();
        let mark = self.place.as_ref().map(|_| self.names.mark(&guid(&self.token)));
        let place = self.place.clone();
        // As long as it is first in line, nobody else changes that.
        let changes = self.ending(ensemble, became).await?;
        let mut requests: Vec<_> = changes.iter().map(Change::step).collect();
        let ended = requests.len();
        requests.push(Ask::Delete { path: &beat });
        let twin = place.as_ref().and_then(|place| place.twin(&self.names));
        requests.extend(place.iter().map(|place| Ask::Delete { path: &place.path }));
        requests.extend(twin.iter().map(|path| Ask::Delete { path }));
        requests.extend(mark.iter().map(|path| Ask::Delete { path }));
        let answers = self.ask(ensemble, &requests).await?;
        if let Some(answer) = answers.iter().find(|answer| !matches!(answer, Ok(_) | Err(Code::NoNode | Code::BadVersion))) {
            return Err(unexpected(Some(answer.clone())).into());
        }
        // The node that renewals write is made by the grant alone.
        Ok(if matches!(answers.get(ended), Some(Ok(_))) { Release::Released } else { Release::NotHeld })
    }
}
