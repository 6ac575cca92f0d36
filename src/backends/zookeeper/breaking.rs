//! Changes to a hold by another process: the mark of a break, a warning, and the eviction.
//!
//! A break mark stands in the mark of the grant. A renewal reads that after its write, in the same
//! batch and session, so it sees at least what a majority confirmed to the session. The session
//! itself lives as long as its process, so a break waits for a whole lease before the eviction.
//!
//! The worst interleavings:
//! - **The hold ends, or another begins, during a change or an eviction:** both check the
//!   contender's node. Its numbered name is never reused, and it was found by the number of the
//!   change that created it.
//! - **Holds enter or leave, or the session is handed down, meanwhile:** they write the mark too,
//!   each only in the version that was read.
//! - **The evicted holder lives on:** it learns that its node is gone, and takes a moment to stop.
//!   Its mark stays, so that the next holder waits for that, but is no longer a hold's: the history
//!   has the hold already.

use super::{
    ZooKeeper,
    acquire::LOOKS,
    contender::fence as fence_of,
    failure::{self, ZkResult, unexpected},
    history::{Run, make},
    hold::{LockListing, ZkHold},
    names::{HistoryKind, ZkNames, guid, parents_of},
    record::GrantMark,
    session::ZkSession,
    wire::{Code, NodeKind, Reply, Stat, WireRequest},
};
use crate::{
    backends::queue::record::HoldRecord,
    lock::{Break, Fence, HistoryEntry, Key, Result},
};

/// A hold to change.
struct BreakTarget {
    /// The contender's node.
    path: String,
    /// The mark of its grant, and the mark's content.
    mark: String,
    granted: GrantMark,
    stat: Stat,
    /// The node of its permit, and its second one in the queue.
    besides: Vec<String>,
}

impl ZooKeeper {
    /// Changes the mark of the hold with this fence. Returns false if there is no such hold, or
    /// `change` changes nothing.
    pub(super) async fn ask_amend(
        &mut self,
        key: &Key,
        fence: Fence,
        change: impl Fn(HoldRecord) -> Option<HoldRecord>,
    ) -> Result<bool> {
        let (mut session, names) = self.visit_lock(key).await?;
        Ok(amend(&mut session, &names, fence, change).await?)
    }

    pub(super) async fn ask_evict(
        &mut self,
        key: &Key,
        fence: Fence,
        mark: &Break,
    ) -> Result<bool> {
        let (mut session, names) = self.visit_lock(key).await?;
        Ok(evict(&mut session, &names, fence, mark).await?)
    }
}

/// Returns the holder with this fence, if there is one. Holders of other libraries have none.
async fn find(
    session: &mut ZkSession,
    names: &ZkNames,
    fence: Fence,
) -> ZkResult<Option<BreakTarget>> {
    let asked = [
        WireRequest::Sync(&names.lock),
        WireRequest::Children(&names.lock),
        WireRequest::Children(&names.meta),
    ];
    let seen = LockListing::read(session.ask(&asked).await?)?;
    let holders: Vec<_> = seen
        .queue
        .holders()
        .filter_map(|at| {
            seen.contenders[at].guid().map(|guid| {
                (
                    &seen.contenders[at],
                    names.contender(&seen.contenders[at].name),
                    names.mark(guid),
                )
            })
        })
        .collect();
    let mut asked = Vec::new();
    for (_, path, mark) in &holders {
        asked.extend([WireRequest::Exists(path), WireRequest::Read(mark)]);
    }
    let mut answers = session.ask(&asked).await?.into_iter();
    for (one, path, mark) in holders {
        let (Some(Ok(Reply::Stat(own))), Some(Ok(Reply::Data { data, stat }))) =
            (answers.next(), answers.next())
        else {
            continue;
        };
        if fence_of(&own) == Some(fence) {
            let missing = || GrantMark {
                hold: HoldRecord {
                    is_hold: true,
                    ..HoldRecord::waiting(one.mode)
                },
                inherited_session: None,
            };
            let granted = GrantMark::read(&data).unwrap_or_else(missing);
            let number = granted.hold.number.map(|number| names.permit(number));
            let besides = number
                .into_iter()
                .chain(
                    one.second_node
                        .as_ref()
                        .map(|second_node| names.contender(second_node)),
                )
                .collect();
            let granted = GrantMark {
                hold: granted.hold.named(fence),
                ..granted
            };
            return Ok(Some(BreakTarget {
                path,
                mark,
                granted,
                stat,
                besides,
            }));
        }
    }
    Ok(None)
}

async fn amend(
    session: &mut ZkSession,
    names: &ZkNames,
    fence: Fence,
    change: impl Fn(HoldRecord) -> Option<HoldRecord>,
) -> ZkResult<bool> {
    for _ in 0..LOOKS {
        let Some(BreakTarget {
            path,
            mark,
            granted,
            stat,
            ..
        }) = find(session, names, fence).await?
        else {
            return Ok(false);
        };
        let Some(hold) = change(granted.hold) else {
            return Ok(false);
        };
        let mark_data = GrantMark {
            hold,
            inherited_session: granted.inherited_session,
        }
        .write();
        let steps = vec![
            WireRequest::Check(&path),
            WireRequest::WriteSince(&mark, &mark_data, stat.version),
        ];
        match session.ask(&[WireRequest::All(steps)]).await?.pop() {
            Some(Ok(Reply::AllDone { .. })) => return Ok(true),
            Some(Ok(Reply::RolledBack {
                code: Code::NoNode | Code::BadVersion,
                ..
            })) => {}
            answer => return Err(unexpected(answer).into()),
        }
    }
    Err(failure::unsettled().into())
}

async fn evict(
    session: &mut ZkSession,
    names: &ZkNames,
    fence: Fence,
    mark: &Break,
) -> ZkResult<bool> {
    let (mut remember, mut numbered) = (true, true);
    for _ in 0..LOOKS {
        let Some(target) = find(session, names, fence).await? else {
            return Ok(false);
        };
        let HoldRecord { metadata, mode, .. } = target.granted.hold;
        let (started_ms, over) = (
            u64::try_from(target.stat.ctime).ok(),
            HoldRecord::ended(mode, fence).write(),
        );
        let run = Run::ending_now(HistoryEntry {
            started_ms,
            ..HistoryEntry::unreleased(Some(fence), Some(mark), metadata)
        })
        .node(names);
        let mut steps = vec![
            WireRequest::Delete(&target.path),
            WireRequest::WriteSince(&target.mark, &over, target.stat.version),
        ];
        let run = run.as_ref().filter(|_| remember);
        let besides = &target.besides[..if numbered { target.besides.len() } else { 0 }];
        let of_besides = steps.len()..steps.len() + besides.len();
        steps.extend(besides.iter().map(|path| WireRequest::Delete(path)));
        let at_run = steps.len();
        steps.extend(run.map(|(path, data)| WireRequest::Create(path, data, NodeKind::Persistent)));
        match session.ask(&[WireRequest::All(steps)]).await?.pop() {
            Some(Ok(Reply::AllDone { .. })) => return Ok(true),
            // The node was removed from outside.
            Some(Ok(Reply::RolledBack {
                at,
                code: Code::NoNode,
            })) if of_besides.contains(&at) => numbered = false,
            Some(Ok(Reply::RolledBack { at, code })) if run.is_some() && at == at_run => {
                // The folder for bad ends is missing, or the entry can't be written, or the holder
                // wrote it already.
                let bad = parents_of(&names.memory(HistoryKind::Bad));
                let made = session.ask(&make(&bad)).await?;
                remember = code == Code::NoNode
                    && matches!(made.last(), Some(Ok(_) | Err(Code::NodeExists)));
            }
            Some(Ok(Reply::RolledBack {
                code: Code::NoNode | Code::BadVersion,
                ..
            })) => {}
            answer => return Err(unexpected(answer).into()),
        }
    }
    Err(failure::unsettled().into())
}

impl ZkHold {
    /// Notes in the mark, as it was read, that the holder saw the break mark. Nothing depends on
    /// the note.
    pub(super) async fn note_seen(&mut self, granted: &GrantMark, stat: &Stat) {
        let Some(mark_data) = granted.seen() else {
            return;
        };
        let path = self.names.mark(&guid(&self.token));
        let _ = self
            .ask(&[WireRequest::WriteSince(&path, &mark_data, stat.version)])
            .await;
    }
}
