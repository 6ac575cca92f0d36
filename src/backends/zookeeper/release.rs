//! Releases a hold, or leaves the queue.

use super::{
    ZooKeeper,
    acquire::LOOKS,
    enter::HoldNodes,
    failure::{self, Fault, ZkResult, unexpected},
    history::make,
    hold::{Place, StaleNode, ZkHold},
    names::{HistoryKind, guid, holds_of, parents_of},
    runs::{RunRecordChange, RunRecordNode},
    session::{Purpose, VISIT, ZkSession},
    wire::{Code, NodeKind, Reply, WireRequest, children},
};
use crate::lock::{Key, Release, ReleaseInfo, Request, Result, RunState, Scope, Token};

/// The history folders that a release may have to trim.
const MEMORIES: [HistoryKind; 2] = [HistoryKind::Fine, HistoryKind::Bad];

impl ZooKeeper {
    pub(super) async fn ask_release(
        &mut self,
        key: &Key,
        token: &Token,
        info: &ReleaseInfo,
    ) -> Result<Release> {
        let Some(at) = self.hold_of(key, token).await? else {
            return Ok(Release::NotHeld);
        };
        let hold = &mut self.holds[at];
        if !hold.granted && hold.waiting {
            // The answer to a grant may have been lost. A waiter without a grant stays in the queue
            // until it leaves.
            match hold.confirm().await {
                Ok(confirmed) => hold.granted = confirmed,
                Err(Fault::Expired) => hold.forget(),
                Err(Fault::Error(error)) => return Err(error),
            }
            if !hold.granted {
                return Ok(Release::NotHeld);
            }
        }
        if info.end.is_none() {
            // Nothing was done under the hold, perhaps because the vanished holders' drain delay
            // was not over.
            hold.stale.clear();
        }
        let outcome = if hold.granted {
            hold.release_hold(info).await
        } else {
            hold.undo(info.run_state).await
        };
        let answer = match outcome {
            Ok(answer) => answer,
            Err(Fault::Expired) => Release::NotHeld,
            Err(Fault::Error(error)) => return Err(error),
        };
        let mut hold = self.holds.remove(at);
        if hold.session.is_none() || answer == Release::NotHeld && hold.is_handed_down().await {
            return Ok(answer);
        }
        if hold.root && matches!(answer, Release::StillHeld(_)) {
            // The nested holds have the session now. It is dropped here without being ended.
            return Ok(answer);
        }
        if hold.root {
            // The mark has all that is known of a hold that was found to be gone.
            let gone = hold.granted && answer == Release::NotHeld;
            let mark = hold.own_mark();
            hold.stale.push(StaleNode {
                hold_record: mark.hold_record.filter(|_| gone),
                ..mark
            });
        }
        hold.archive();
        let Some(session) = hold.session else {
            return Ok(answer);
        };
        session.close();
        if let Some(inherited_session) = hold.inherited_session {
            inherited_session
                .session(&self.ensemble, &hold.token)
                .close();
        }
        Ok(answer)
    }

    /// Ends the session of a hold that could not be given back: all its nodes go with it, whatever
    /// their rights are. Returns whether its node in the queue is gone after that.
    pub(super) async fn end_session_of(&mut self, key: &Key, token: &Token) -> bool {
        let Some(at) = self.position(key, token).filter(|at| self.holds[*at].root) else {
            return false;
        };
        let hold = self.holds.remove(at);
        let (Some(session), Some(place)) = (hold.session, hold.place) else {
            return false;
        };
        session.close();
        self.ensemble.await_ended_sessions().await;
        let gone = async {
            let mut visit = ZkSession::open(&self.ensemble, VISIT, Purpose::Visit).await?;
            let asked = [
                WireRequest::Sync(&place.path),
                WireRequest::Exists(&place.path),
            ];
            Ok(visit.ask(&asked).await?.pop() == Some(Err(Code::NoNode)))
        };
        let gone: ZkResult<bool> = gone.await;
        gone.unwrap_or(false)
    }

    pub(super) async fn remove_from_queue(&mut self, request: &Request) -> Result<()> {
        let Some(at) = self
            .position(&request.key, &request.token)
            .filter(|at| !self.holds[*at].granted)
        else {
            return Ok(());
        };
        match self.holds[at].undo(None).await {
            Ok(_) | Err(Fault::Expired) => {}
            Err(Fault::Error(error)) => return Err(error),
        }
        if let Some(session) = self.holds.remove(at).session {
            session.close();
        }
        Ok(())
    }
}

/// The steps of a release besides removing the hold, as far as they were not refused.
struct ReleaseExtras {
    /// Writes the history entry.
    run: bool,
    /// The folders for the history were made.
    folders: bool,
    /// Removes the permit's node and the second node in the queue.
    nodes: bool,
}

impl ZkHold {
    /// Releases a granted hold.
    async fn release_hold(&mut self, info: &ReleaseInfo) -> ZkResult<Release> {
        let Some(place) = self.place.clone() else {
            return Ok(Release::NotHeld);
        };
        // The order in which holds entered is not recorded: only the first hold is known to enclose
        // all others.
        let whole = self.root && info.scope == Scope::Tree;
        let mut extras = ReleaseExtras {
            run: true,
            folders: false,
            nodes: true,
        };
        for nth in 0..LOOKS {
            let kept = if whole && nth == 0 {
                None
            } else {
                Some(self.hold_nodes(true).await?)
            };
            if let Some(release) = self
                .try_to_release_hold(info, &place, (whole, kept), &mut extras)
                .await?
            {
                return Ok(release);
            }
        }
        Err(failure::unsettled().into())
    }

    /// Tries once to give back the hold, by the mark and holds if `kept` has them. Returns `None`
    /// after a change or a refusal.
    async fn try_to_release_hold(
        &mut self,
        info: &ReleaseInfo,
        place: &Place,
        (whole, kept): (bool, Option<HoldNodes>),
        extras: &mut ReleaseExtras,
    ) -> ZkResult<Option<Release>> {
        let (renewal_node, mark, meta) = (
            self.renewal_node(),
            self.names.mark(&guid(&self.token)),
            self.names.meta.clone(),
        );
        if kept
            .as_ref()
            .is_some_and(|kept| !kept.holds.contains(&renewal_node))
        {
            return Ok(Some(Release::NotHeld));
        }
        let mark_data = kept
            .as_ref()
            .filter(|_| self.root)
            .and_then(|kept| self.mark_with_session(kept));
        let others = kept
            .as_ref()
            .filter(|_| !whole)
            .map_or(0, |kept| kept.holds.len() - 1);
        let own = if others == 0 {
            WireRequest::Delete(&place.path)
        } else {
            WireRequest::Check(&place.path)
        };
        let mut steps = vec![own, WireRequest::Delete(&renewal_node)];
        steps.extend(match &kept {
            None => Some(WireRequest::Delete(&mark)),
            Some(kept) if others == 0 => kept.unmark(&mark),
            Some(kept) => kept.remark(&mark, mark_data.as_deref()),
        });
        let granted = kept.as_ref().and_then(HoldNodes::granted);
        let number = granted
            .as_ref()
            .map(|(granted, _)| granted)
            .or(self.grant.as_ref())
            .and_then(|granted| granted.hold.number);
        let number = number.map(|number| self.names.permit(number));
        let nodes: Vec<_> = number
            .into_iter()
            .chain(place.second_node(&self.names))
            .filter(|_| others == 0 && extras.nodes)
            .collect();
        let of_nodes = steps.len()..steps.len() + nodes.len();
        steps.extend(nodes.iter().map(|path| WireRequest::Delete(path)));
        let run = if others == 0 && extras.run {
            self.run(info, granted)
        } else {
            None
        };
        let run = run.and_then(|run| run.node(&self.names));
        let outcome = self.ending(info.run_state).await?;
        steps.extend(outcome.iter().map(RunRecordChange::step));
        let last = steps.len();
        steps.extend(
            run.iter()
                .map(|(path, data)| WireRequest::Create(path, data, NodeKind::Persistent)),
        );
        let folders = MEMORIES.map(|what| self.names.memory(what));
        let mut asks = vec![WireRequest::All(steps), WireRequest::Children(&meta)];
        asks.extend(folders.iter().map(|path| WireRequest::Exists(path)));
        let mut answers = self.ask(&asks).await?.into_iter();
        let (done, left) = (answers.next(), children(answers.next()));
        match done {
            Some(Ok(Reply::AllDone { .. })) if others > 0 => {
                return Ok(Some(Release::StillHeld(
                    u32::try_from(others).unwrap_or(u32::MAX),
                )));
            }
            Some(Ok(Reply::AllDone { .. })) => {
                // The nested holds that remain end with their sessions. No reader needs to see them
                // until then.
                let start = holds_of(&guid(&self.token));
                let nested = left.into_iter().filter(|name| name.starts_with(&start));
                self.stale.extend(nested.map(|name| StaleNode {
                    path: format!("{meta}/{name}"),
                    hold_record: None,
                }));
                // Once the lock is free, the session that was handed down with it has no node any
                // more.
                self.inherited_session = kept.and_then(|kept| kept.inherited_session());
                for (what, answer) in MEMORIES.into_iter().zip(answers) {
                    self.trim(what, &answer).await;
                }
                return Ok(Some(Release::Released));
            }
            // Some nodes were removed from outside. The rest of them goes with the session.
            Some(Ok(Reply::RolledBack {
                at,
                code: Code::NoNode,
            })) if of_nodes.contains(&at) => extras.nodes = false,
            // A release needs no history: the entry can't be written, or exists already.
            Some(Ok(Reply::RolledBack { at, code })) if run.is_some() && at == last => {
                extras.run = code == Code::NoNode && !extras.folders;
                if extras.run {
                    let folders: Vec<_> = folders
                        .iter()
                        .flat_map(|folder| parents_of(folder))
                        .collect();
                    self.ask(&make(&folders)).await?;
                    extras.folders = true;
                }
            }
            Some(Ok(Reply::RolledBack {
                at: 0 | 1,
                code: Code::NoNode,
            })) => return Ok(Some(Release::NotHeld)),
            // A hold entered or left, or the mark was removed.
            Some(Ok(Reply::RolledBack {
                code: Code::BadVersion | Code::NoNode,
                ..
            })) => {}
            answer => return Err(unexpected(answer).into()),
        }
        Ok(None)
    }

    /// Undoes an attempt that may have been granted without this process seeing the answer.
    async fn undo(&mut self, run_state: Option<RunState>) -> ZkResult<Release> {
        if self.session.is_none() {
            return Ok(Release::NotHeld);
        }
        if !self.root {
            // The outer hold is its owner's. Only this nested hold is given back, if it exists.
            let seen = self.read_line(true).await?;
            self.place = self.owners_place(&seen).await?;
            return self.release_hold(&ReleaseInfo::UNDO).await;
        }
        if self.place.is_none() && self.maybe_placed {
            let seen = self.read_line(true).await?;
            self.find_place(&seen.contenders).await?;
        }
        let renewal_node = self.renewal_node();
        let mark = self
            .place
            .as_ref()
            .map(|_| self.names.mark(&guid(&self.token)));
        let place = self.place.clone();
        // While this contender is first, no other one changes the run records.
        let changes = self.ending(run_state).await?;
        let mut requests: Vec<_> = changes.iter().map(RunRecordChange::step).collect();
        let ended = requests.len();
        requests.push(WireRequest::Delete(&renewal_node));
        let second_node = place
            .as_ref()
            .and_then(|place| place.second_node(&self.names));
        requests.extend(place.iter().map(|place| WireRequest::Delete(&place.path)));
        requests.extend(second_node.iter().map(|path| WireRequest::Delete(path)));
        requests.extend(mark.iter().map(|path| WireRequest::Delete(path)));
        let answers = self.ask(&requests).await?;
        if let Some(answer) = answers
            .iter()
            .find(|answer| !matches!(answer, Ok(_) | Err(Code::NoNode | Code::BadVersion)))
        {
            return Err(unexpected(Some(answer.clone())).into());
        }
        // Only the grant makes the node that renewals write.
        Ok(if matches!(answers.get(ended), Some(Ok(_))) {
            Release::Released
        } else {
            Release::NotHeld
        })
    }

    /// Returns the change that records the outcome of this hold's run, if it has one.
    async fn ending(&mut self, state: Option<RunState>) -> ZkResult<Option<RunRecordChange>> {
        // The outcome of a nested hold does not concern the outer run.
        let (Some(state), Some(fence), true) = (
            state,
            self.place.as_ref().map(|place| place.fence),
            self.root,
        ) else {
            return Ok(None);
        };
        // Only the first attempt uses the known records.
        let runs = if let Some(runs) = self.runs.take() {
            runs
        } else {
            let path = self.names.runs();
            RunRecordNode::read(self.ask(&[WireRequest::Read(&path)]).await?.pop())?
        };
        Ok(runs.end(&self.names, fence, state))
    }
}
