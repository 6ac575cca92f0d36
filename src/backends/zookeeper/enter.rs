//! Enters a hold that an ancestor has: a nested hold, with a session and a lease of its own.
//!
//! The nested hold's node is next to the lock, not in its queue. If the outer hold is released
//! first, that hands its session down, sealed so that only holds of the same owner can open it.
//! Those holds then keep the session alive.
//!
//! A hold that enters or leaves writes the grant's mark, in the version that it read before it
//! counted the holds. So no hold enters while the last of the others frees the lock, and of two
//! that leave together one frees it.

use std::time::Duration;

use super::{
    ZooKeeper,
    acquire::{LOOKS, negotiate},
    failure::{self, Fault, ZkResult, unexpected},
    hold::{MarkNode, Place, ZkHold, listed, marked},
    names::{ZkNames, guid, holds_of, seal},
    record::{GrantMark, InheritedSession},
    session::{Ensemble, ZkSession},
    wire::{Code, NodeKind, Reply, Stat, WireRequest},
};
use crate::lock::{self, Attempt, Grant, Intent, Mode, Request, Result, Token, Ttl};

impl ZooKeeper {
    pub(super) async fn ask_to_enter(&mut self, at: usize, request: &Request) -> Result<Attempt> {
        let hold = &mut self.holds[at];
        for _ in 0..2 {
            if hold.session.is_none() {
                hold.session = Some(negotiate(&self.ensemble, request).await?);
            }
            match hold.note(request.mode).await {
                Err(Fault::Expired) => hold.forget(),
                Err(Fault::Error(error)) => return Err(error),
                Ok(attempt) => return Ok(attempt),
            }
        }
        Err(Fault::Expired.into())
    }
}

/// The nodes that keep a held lock.
pub(super) struct HoldNodes {
    /// The mark; without the mark no hold can enter any more.
    mark: MarkNode,
    /// The nodes of all holds of the owner.
    pub(super) holds: Vec<String>,
}

impl HoldNodes {
    /// Writes the mark, with its old content or with `data`, if no hold entered or left since.
    pub(super) fn remark<'a>(
        &'a self,
        path: &'a str,
        data: Option<&'a [u8]>,
    ) -> Option<WireRequest<'a>> {
        self.mark.as_ref().map(|(mark_data, stat)| {
            WireRequest::WriteSince(path, data.unwrap_or(mark_data), stat.version)
        })
    }

    /// Removes the mark, if no hold entered or left since.
    pub(super) fn unmark<'a>(&self, path: &'a str) -> Option<WireRequest<'a>> {
        self.mark
            .as_ref()
            .map(|(_, stat)| WireRequest::DeleteSince(path, stat.version))
    }

    /// Returns the session that was handed down to the remaining holds.
    pub(super) fn inherited_session(&self) -> Option<InheritedSession> {
        self.granted()
            .and_then(|(granted, _)| granted.inherited_session)
    }

    /// Returns the mark's content.
    pub(super) fn granted(&self) -> Option<(GrantMark, &Stat)> {
        self.mark
            .as_ref()
            .and_then(|(mark_data, stat)| Some((GrantMark::read(mark_data)?, stat)))
    }
}

impl InheritedSession {
    pub(super) fn session(&self, ensemble: &Ensemble, token: &Token) -> ZkSession {
        let handed = lock::StoreSession {
            id: self.session,
            password: seal(token, self.sealed),
        };
        ZkSession::handed_over(ensemble, handed, Duration::from_millis(self.timeout_ms))
    }
}

impl ZkHold {
    /// Creates this hold's node next to the lock, if its owner has the lock.
    async fn note(&mut self, mode: Mode) -> ZkResult<Attempt> {
        let (renewal_node, mark) = (self.renewal_node(), self.names.mark(&guid(&self.token)));
        let ttl = self
            .session
            .as_ref()
            .map(|session| session.timeout.as_millis().to_string())
            .unwrap_or_default();
        for _ in 0..LOOKS {
            let seen = self.read_line(true).await?;
            let Some(place) = self.owners_place(&seen).await? else {
                return Ok(Attempt::NotHeld);
            };
            let kept = self.hold_nodes(false).await?;
            let Some(remark) = kept.remark(&mark, None) else {
                return Ok(Attempt::NotHeld);
            };
            let granted = kept.granted().map(|(granted, _)| granted);
            let Some(granted) = granted else {
                return Ok(Attempt::NotHeld);
            };
            granted.hold.mode.check_nested(mode)?;
            // On a repeated request, the node exists already.
            let step = if kept.holds.contains(&renewal_node) {
                WireRequest::Write(&renewal_node, ttl.as_bytes())
            } else {
                WireRequest::Create(&renewal_node, ttl.as_bytes(), NodeKind::Ephemeral)
            };
            let steps = vec![WireRequest::Check(&place.path), remark, step];
            match self.ask(&[WireRequest::All(steps)]).await?.pop() {
                Some(Ok(Reply::AllDone { .. })) => {
                    self.outer = self.shortest(&kept).await?;
                    let others = kept
                        .holds
                        .iter()
                        .filter(|hold| **hold != renewal_node)
                        .count();
                    return self.entered(place, granted, others);
                }
                Some(Ok(Reply::RolledBack {
                    at: 0 | 1,
                    code: Code::NoNode,
                })) => return Ok(Attempt::NotHeld),
                Some(Ok(Reply::RolledBack {
                    code: Code::BadVersion | Code::NodeExists | Code::NoNode,
                    ..
                })) => {}
                answer => return Err(unexpected(answer).into()),
            }
        }
        Err(failure::unsettled().into())
    }

    /// Returns the timeout of the shortest session among the owner's holds. The session that has
    /// the lock may be handed down at any time, and then needs renewals at its own pace.
    async fn shortest(&mut self, kept: &HoldNodes) -> ZkResult<Duration> {
        let reads: Vec<_> = kept
            .holds
            .iter()
            .map(|path| WireRequest::Read(path))
            .collect();
        let answers = if reads.is_empty() {
            Vec::new()
        } else {
            self.ask(&reads).await?
        };
        let timeouts = answers.into_iter().filter_map(|answer| match answer {
            Ok(Reply::Data { data, .. }) => str::from_utf8(&data).ok()?.parse().ok(),
            _ => None,
        });
        let handed_down = kept
            .inherited_session()
            .map(|inherited_session| inherited_session.timeout_ms);
        Ok(timeouts
            .chain(handed_down)
            .min()
            .map_or(Duration::MAX, Duration::from_millis))
    }

    fn entered(&mut self, place: Place, granted: GrantMark, others: usize) -> ZkResult<Attempt> {
        let Some(session) = &mut self.session else {
            return Err(Fault::Expired);
        };
        let grant = Grant {
            fence: place.fence,
            ttl: Ttl::new(session.timeout.min(self.outer))?,
            holds: u32::try_from(others + 1).unwrap_or(u32::MAX),
            drain_delay: Duration::ZERO,
            session: session.hand_over(),
            permit: granted.hold.number,
        };
        session.stop_keeping_alive();
        (self.granted, self.place, self.grant) = (true, Some(place), Some(granted));
        Ok(Attempt::Granted(grant))
    }

    /// Returns the mark of this owner's grant, and the owner's holds.
    pub(super) async fn hold_nodes(&mut self, sync: bool) -> ZkResult<HoldNodes> {
        let ZkNames { meta, .. } = self.names.clone();
        let guid = guid(&self.token);
        let (mark, start) = (self.names.mark(&guid), holds_of(&guid));
        // The count is at least as new as the version.
        let mut requests = vec![WireRequest::Read(&mark), WireRequest::Children(&meta)];
        if sync {
            requests.insert(0, WireRequest::Sync(&meta));
        }
        let mut answers = self.ask(&requests).await?;
        let holds = listed(answers.pop())?
            .into_iter()
            .filter(|name| name.starts_with(&start))
            .map(|name| format!("{meta}/{name}"));
        Ok(HoldNodes {
            mark: marked(answers.pop())?,
            holds: holds.collect(),
        })
    }

    /// Returns whether another process with this token released the hold and handed its session
    /// down to the nested holds. A session whose state can't be read is left to end by itself.
    pub(super) async fn is_handed_down(&mut self) -> bool {
        let own = self.session.as_ref().map(|session| session.id);
        if !self.root || !self.granted || own.is_none() {
            return false;
        }
        match self.hold_nodes(true).await {
            Ok(kept) => kept
                .inherited_session()
                .is_some_and(|inherited_session| Some(inherited_session.session) == own),
            Err(fault) => !matches!(fault, Fault::Expired),
        }
    }

    /// Returns the mark's content from now on, with the session of the contender's node.
    pub(super) fn mark_with_session(&self, kept: &HoldNodes) -> Option<Vec<u8>> {
        let inherited_session = self.session.as_ref().and_then(|session| {
            let lock::StoreSession { id, password } = session.password()?;
            let timeout_ms = u64::try_from(session.timeout.as_millis()).unwrap_or(u64::MAX);
            Some(InheritedSession {
                session: id,
                sealed: seal(&self.token, password),
                timeout_ms,
            })
        });
        kept.granted().map(|(granted, _)| {
            GrantMark {
                inherited_session,
                ..granted
            }
            .write()
        })
    }

    /// Keeps the contender's session alive, if the mark that was just read hands it down to this
    /// nested hold. Returns its timeout, the longest possible if its owner still keeps it, or
    /// `None` if it is over.
    pub(super) async fn keep_inherited_session(
        &mut self,
        mut mark: MarkNode,
        intent: Intent,
    ) -> ZkResult<Option<Duration>> {
        let Some(place) = self.place.clone() else {
            return Ok(None);
        };
        let path = self.names.mark(&guid(&self.token));
        for _ in 0..LOOKS {
            let Some((data, stat)) = mark else {
                return Ok(None);
            };
            let granted = GrantMark::read(&data);
            let Some(inherited_session) = granted
                .as_ref()
                .and_then(|granted| granted.inherited_session.as_ref())
            else {
                return Ok(Some(Duration::MAX));
            };
            let mut session = inherited_session.session(&self.ensemble, &self.token);
            let seen = granted
                .as_ref()
                .filter(|_| intent == Intent::Drain)
                .and_then(GrantMark::seen);
            // A majority confirms this write of that session, which checks its node. The content
            // stays the same.
            let mark_data = seen.as_ref().unwrap_or(&data);
            let steps = vec![
                WireRequest::Check(&place.path),
                WireRequest::WriteSince(&path, mark_data, stat.version),
            ];
            match session.ask(&[WireRequest::All(steps)]).await {
                Ok(mut answers) => match answers.pop() {
                    Some(Ok(Reply::AllDone { .. })) => return Ok(Some(session.timeout)),
                    Some(Ok(Reply::RolledBack {
                        code: Code::NoNode, ..
                    })) => return Ok(None),
                    // Another heir was first, or the hold is being broken.
                    Some(Ok(Reply::RolledBack {
                        code: Code::BadVersion,
                        ..
                    })) => {}
                    answer => return Err(unexpected(answer).into()),
                },
                Err(Fault::Expired) => return Ok(None),
                Err(fault) => return Err(fault),
            }
            mark = marked(
                self.ask(&[WireRequest::Sync(&path), WireRequest::Read(&path)])
                    .await?
                    .pop(),
            )?;
        }
        Err(failure::unsettled().into())
    }
}
