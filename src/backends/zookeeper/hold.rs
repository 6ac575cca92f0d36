//! The state of one request: its session, its node in the queue, and the steps that several
//! requests share.

use std::{collections::HashSet, time::Duration};

use tokio::time::Instant;

use super::{
    contender::{self, ContenderNode, fence},
    failure::{self, Fault, ZkResult, unexpected},
    names::{HistoryKind, MARK, OLD, PERMIT, ZkNames, guid, parents_of},
    record::{GrantMark, InheritedSession},
    runs::{JudgementData, RunRecordNode},
    session::{Ensemble, NodeWatch, Purpose, VISIT, ZkSession},
    wire::{Code, NodeKind, Reply, Stat, WireReply, WireRequest, children},
};
use crate::{
    backends::queue::{
        Contender, Contenders, GrantEvidence,
        record::{HoldRecord, older_layout},
    },
    lock::{self, Busy, Fence, Key, Result, Token},
};

/// A contender's node: our own, or for a nested hold that of its owner.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) contender: ContenderNode,
    pub(super) path: String,
    pub(super) fence: Fence,
}

impl Place {
    /// Returns the path of its second node, in the same directory.
    pub(super) fn second_node(&self, names: &ZkNames) -> Option<String> {
        self.contender
            .second_node
            .as_ref()
            .map(|second_node| names.contender(second_node))
    }
}

/// A hold that was requested.
#[allow(clippy::struct_excessive_bools)] // what may have happened, each by itself
pub(super) struct ZkHold {
    pub(super) ensemble: Ensemble,
    pub(super) key: Key,
    pub(super) token: Token,
    pub(super) names: ZkNames,
    pub(super) session: Option<ZkSession>,
    /// Its position in the queue.
    pub(super) place: Option<Place>,
    /// Whether a node may exist that this process doesn't know of.
    pub(super) maybe_placed: bool,
    /// Whether the grant is marked, or for a nested hold, whether its node exists.
    pub(super) granted: bool,
    /// Whether the contender's node is its own and ends with its session. Otherwise the hold is
    /// nested.
    pub(super) root: bool,
    /// The timeout of the outer holds' sessions.
    pub(super) outer: Duration,
    /// Whether a waiter asked for it, which leaves the queue by a request of its own.
    pub(super) waiting: bool,
    /// The marks of vanished holders, which the release removes.
    pub(super) stale: Vec<StaleNode>,
    /// The session that was handed down to it and that its release freed.
    pub(super) inherited_session: Option<InheritedSession>,
    /// The content of the grant's mark, as far as it is known, and the mark's creation time.
    pub(super) grant: Option<GrantMark>,
    pub(super) since: Option<i64>,
    /// The run records as its grant left them, as far as they are known.
    pub(super) runs: Option<RunRecordNode>,
    /// The node that is waited for, and the watch for its removal.
    pub(super) blocker: Option<(String, NodeWatch)>,
    /// The state of its wait: the proofs of life, and the last answer.
    pub(super) waits: Waits,
    /// The watch for the loss of a granted hold's node.
    pub(super) trouble: Option<NodeWatch>,
}

impl ZkHold {
    pub(super) fn new(ensemble: &Ensemble, key: &Key, token: &Token, root: bool) -> Self {
        Self {
            ensemble: ensemble.clone(),
            key: key.clone(),
            token: *token,
            names: ensemble.names(key),
            session: None,
            place: None,
            maybe_placed: false,
            granted: false,
            root,
            outer: Duration::MAX,
            waiting: false,
            stale: Vec::new(),
            inherited_session: None,
            grant: None,
            since: None,
            runs: None,
            blocker: None,
            waits: Waits::default(),
            trouble: None,
        }
    }

    pub(super) fn is(&self, key: &Key, token: &Token) -> bool {
        self.key == *key && self.token.owner == token.owner && self.token.hold == token.hold
    }

    /// Drops its session, which is over, and all state of it.
    pub(super) fn forget(&mut self) {
        *self = Self::new(&self.ensemble, &self.key, &self.token, self.root);
    }

    /// Returns the node that its renewals write.
    pub(super) fn renewal_node(&self) -> String {
        self.names.hold(&self.token)
    }

    pub(super) async fn ask(&mut self, requests: &[WireRequest<'_>]) -> ZkResult<Vec<WireReply>> {
        match &mut self.session {
            Some(session) => session.ask(requests).await,
            None => Err(Fault::Expired),
        }
    }

    /// Reads the contenders, and the nodes next to the lock. With `sync`, the server is brought up
    /// to date before.
    pub(super) async fn read_line(&mut self, sync: bool) -> ZkResult<LockListing> {
        let ZkNames { lock, meta, .. } = self.names.clone();
        let mut requests = vec![WireRequest::Children(&lock), WireRequest::Children(&meta)];
        if sync {
            requests.insert(0, WireRequest::Sync(&lock));
        }
        LockListing::read(self.ask(&requests).await?).map_err(Fault::Error)
    }

    /// Writes the hold's renewal node, if its contender's node still exists: a majority confirms
    /// that for a living session. Returns false if it doesn't exist.
    pub(super) async fn confirm(&mut self) -> ZkResult<bool> {
        Ok(self.confirm_and_read().await?.is_some())
    }

    /// Does likewise, and returns the grant's mark as of then, if it exists; `None` if the
    /// contender's node doesn't.
    pub(super) async fn confirm_and_read(&mut self) -> ZkResult<Option<MarkNode>> {
        let (Some(place), Some(session)) = (self.place.clone(), &self.session) else {
            return Ok(None);
        };
        let (renewal_node, ttl, mark) = (
            self.renewal_node(),
            session.timeout.as_millis().to_string(),
            self.names.mark(&guid(&self.token)),
        );
        // Without this permit's node, other contenders count one permit too few.
        let number = self.number();
        let mut steps = vec![
            WireRequest::Check(&place.path),
            WireRequest::Write(&renewal_node, ttl.as_bytes()),
        ];
        steps.extend(number.iter().map(|path| WireRequest::Check(path)));
        let mut answers = self
            .ask(&[WireRequest::All(steps), WireRequest::Read(&mark)])
            .await?;
        let marked = marked(answers.pop())?;
        match answers.pop() {
            Some(Ok(Reply::AllDone { .. })) => {}
            Some(Ok(Reply::RolledBack {
                code: Code::NoNode, ..
            })) => return Ok(None),
            answer => return Err(unexpected(answer).into()),
        }
        if let Some((data, stat)) = &marked {
            self.note_mark(data, stat);
        }
        Ok(Some(marked))
    }

    /// Returns the node of its permit, as far as it is known.
    pub(super) fn number(&self) -> Option<String> {
        self.grant
            .as_ref()
            .and_then(|granted| granted.hold.number)
            .map(|number| self.names.permit(number))
    }

    /// Keeps the content of the grant's mark.
    fn note_mark(&mut self, data: &[u8], stat: &Stat) {
        if let Some(granted) = GrantMark::read(data) {
            (self.grant, self.since) = (Some(granted), Some(stat.ctime));
        }
    }

    /// Returns the state of the node at `path`, if it exists.
    pub(super) async fn stat(&mut self, path: &str) -> ZkResult<Option<Stat>> {
        match self.ask(&[WireRequest::Exists(path)]).await?.pop() {
            Some(Ok(Reply::Stat(stat))) => Ok(Some(stat)),
            Some(Err(Code::NoNode)) => Ok(None),
            answer => Err(unexpected(answer).into()),
        }
    }

    /// Looks for this hold in a session that another process handed over. Returns false if it isn't
    /// there.
    ///
    /// The server uses the timeout of the last client that resumed a session. So a visiting session
    /// reads this session's timeout first.
    pub(super) async fn resume_hold(&mut self, handed: lock::StoreSession) -> ZkResult<bool> {
        let renewal_node = self.renewal_node();
        self.session = Some(ZkSession::open(&self.ensemble, VISIT, Purpose::Visit).await?);
        let seen = self.read_line(true).await?;
        let mark = self.names.mark(&guid(&self.token));
        let mut answers = self
            .ask(&[WireRequest::Read(&renewal_node), WireRequest::Read(&mark)])
            .await?;
        if let Some((data, stat)) = marked(answers.pop())? {
            self.note_mark(&data, &stat);
        }
        let ttl: Option<u64> = match answers.pop() {
            Some(Ok(Reply::Data { data, stat })) if stat.ephemeral_owner == handed.id => {
                std::str::from_utf8(&data).ok().and_then(|t| t.parse().ok())
            }
            Some(Ok(Reply::Data { .. }) | Err(Code::NoNode)) => None,
            answer => return Err(unexpected(answer).into()),
        };
        if ttl.is_some() {
            self.place = self.owners_place(&seen).await?;
        }
        let own = match &self.place {
            Some(place) => {
                let path = place.path.clone();
                self.stat(&path).await?.map(|stat| stat.ephemeral_owner)
            }
            None => None,
        };
        self.session = None;
        let (Some(ttl), Some(own)) = (ttl, own) else {
            return Ok(false);
        };
        self.root = own == handed.id;
        self.granted = true;
        self.session = Some(ZkSession::handed_over(
            &self.ensemble,
            handed,
            Duration::from_millis(ttl),
        ));
        Ok(true)
    }

    /// Returns the place of this hold's owner, if its grant is marked.
    pub(super) async fn owners_place(&mut self, seen: &LockListing) -> ZkResult<Option<Place>> {
        let guid = guid(&self.token);
        if !seen.is_marked(&guid) {
            return Ok(None);
        }
        let Some(contender) = seen
            .contenders
            .iter()
            .find(|c| c.guid() == Some(&*guid) && !c.is_twin())
        else {
            return Ok(None);
        };
        let path = self.names.contender(&contender.name);
        let stat = self.stat(&path).await?;
        Ok(stat.and_then(|stat| fence(&stat)).map(|fence| Place {
            contender: contender.clone(),
            path,
            fence,
        }))
    }

    /// Returns the parent nodes of this lock and of the nodes next to it: containers for the
    /// contenders, persistent ones for the rest.
    pub(super) fn parents(&self) -> Vec<ParentNode> {
        // Without a namespace, the directory's parent is not dlock's.
        let own = if self.ensemble.options.namespace.as_str().is_empty() {
            1
        } else {
            2
        };
        let (contenders, side_nodes) = (parents_of(&self.names.lock), parents_of(&self.names.meta));
        let (to_contenders, to_side_nodes) = (contenders.len() - own, side_nodes.len() - 1);
        let contenders = contenders.into_iter().enumerate().map(|(at, path)| {
            (
                path,
                if at < to_contenders {
                    NodeKind::Persistent
                } else {
                    NodeKind::Container
                },
                Vec::new(),
            )
        });
        let side_nodes = side_nodes
            .into_iter()
            .map(|path| (path, NodeKind::Persistent, Vec::new()));
        let memory = parents_of(&self.names.memory(HistoryKind::Fine))
            .into_iter()
            .skip(to_side_nodes)
            .map(|path| (path, NodeKind::Persistent, Vec::new()));
        contenders.chain(side_nodes).chain(memory).collect()
    }
}

/// The state of a waiter's wait.
#[derive(Default)]
pub(super) struct Waits {
    /// Whether its own proof node was made.
    pub(super) made: bool,
    /// When the next proof is due.
    pub(super) due: Option<Instant>,
    /// The preceding waiter.
    pub(super) ahead: Option<ContenderNode>,
    /// The last answer that it was given.
    pub(super) busy: Option<Busy>,
    /// How many times its position was only checked since that answer.
    pub(super) checks: u32,
}

/// A leftover node: the mark of a hold that was never released, which goes to the history, or that
/// of a nested hold.
pub(super) struct StaleNode {
    pub(super) path: String,
    /// The hold with its fence and the time of its grant; `None` if nothing goes to the history.
    pub(super) hold_record: Option<HoldRecord>,
}

/// The mark of a grant: its content, and its node's state. `None` if it was removed.
pub(super) type MarkNode = Option<(Vec<u8>, Stat)>;

/// Reads a mark from an answer.
pub(super) fn marked(answer: Option<WireReply>) -> Result<MarkNode> {
    match answer {
        Some(Ok(Reply::Data { data, stat })) => Ok(Some((data, stat))),
        Some(Err(Code::NoNode)) => Ok(None),
        answer => Err(unexpected(answer)),
    }
}

/// A parent node: its path, its kind and its data.
pub(super) type ParentNode = (String, NodeKind, Vec<u8>);

/// A lock at one moment.
pub(super) struct LockListing {
    pub(super) contenders: Vec<ContenderNode>,
    /// The same contenders, as input to the queue rules.
    pub(super) queue: Contenders,
    /// The names of the nodes next to the lock.
    pub(super) side_nodes: Vec<String>,
    /// Whether the directory of either is missing.
    pub(super) missing: bool,
    /// Whether the look came just after joining the queue and marking the grant.
    pub(super) joined: bool,
    /// The data that a contender is judged by, if it was read.
    pub(super) basis: Option<JudgementData>,
}

impl LockListing {
    /// Reads the last two answers, which are those of both directories: the contenders' first.
    pub(super) fn read(mut answers: Vec<WireReply>) -> Result<Self> {
        let (side_nodes, contenders) = (answers.pop(), answers.pop());
        let missing = [&side_nodes, &contenders]
            .into_iter()
            .any(|answer| *answer == Some(Err(Code::NoNode)));
        let side_nodes = listed(side_nodes)?;
        if side_nodes.iter().any(|name| OLD.contains(&&**name)) {
            return Err(older_layout());
        }
        Ok(Self {
            missing,
            ..Self::of(contenders_of(contenders)?, side_nodes)
        })
    }

    pub(super) fn of(contenders: Vec<ContenderNode>, side_nodes: Vec<String>) -> Self {
        let marked: HashSet<&str> = side_nodes
            .iter()
            .filter_map(|name| name.strip_prefix(MARK))
            .collect();
        let state = |one: &ContenderNode| match one.guid() {
            Some(guid) if marked.contains(guid) => GrantEvidence::Granted,
            // Curator's own nodes have public ids too, but no second node.
            Some(_) if one.second_node.is_some() => GrantEvidence::Waits,
            _ => GrantEvidence::Unknown,
        };
        let all = contenders
            .iter()
            .map(|one| Contender {
                mode: one.mode,
                state: state(one),
            })
            .collect();
        let permits = side_nodes
            .iter()
            .filter_map(|name| name.strip_prefix(PERMIT)?.parse().ok())
            .collect();
        Self {
            queue: Contenders::new(all, permits),
            contenders,
            side_nodes,
            missing: false,
            joined: false,
            basis: None,
        }
    }

    /// Returns the lock without the contender at this position.
    pub(super) fn without(mut self, at: usize) -> Self {
        self.contenders.remove(at);
        Self {
            missing: self.missing,
            joined: self.joined,
            basis: self.basis,
            ..Self::of(self.contenders, self.side_nodes)
        }
    }

    /// Returns the position of a contender.
    pub(super) fn find(&self, name: &str) -> Option<usize> {
        self.contenders.iter().position(|one| one.name == name)
    }

    /// Returns whether a grant to the owner of this public id is marked.
    pub(super) fn is_marked(&self, guid: &str) -> bool {
        self.side_nodes
            .iter()
            .any(|name| name.strip_prefix(MARK) == Some(guid))
    }

    /// Returns the marks of owners that are no contenders: of vanished holders.
    pub(super) fn stale(&self) -> Vec<String> {
        let present: HashSet<&str> = self
            .contenders
            .iter()
            .filter_map(ContenderNode::guid)
            .collect();
        self.side_nodes
            .iter()
            .filter(|name| {
                name.strip_prefix(MARK)
                    .is_some_and(|guid| !present.contains(guid))
            })
            .cloned()
            .collect()
    }
}

/// Returns the names in a directory; none if the directory doesn't exist.
pub(super) fn listed(answer: Option<WireReply>) -> Result<Vec<String>> {
    match answer {
        Some(Err(Code::NoNode)) => Ok(Vec::new()),
        Some(Err(_)) | None => Err(unexpected(answer)),
        names => Ok(children(names)),
    }
}

/// Returns the queue in a lock's directory.
pub(super) fn contenders_of(answer: Option<WireReply>) -> Result<Vec<ContenderNode>> {
    contender::contenders(&listed(answer)?).map_err(|child| failure::no_lock(&child))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::Kind;

    #[test]
    fn run_records_of_an_older_layout_are_refused() {
        let seen = |side_nodes: &str| {
            LockListing::read(vec![
                Err(Code::NoNode),
                Ok(Reply::Children(vec![side_nodes.into()])),
            ])
        };
        assert!(
            OLD.iter()
                .all(|old| seen(old).is_err_and(|error| error.kind == Kind::Layout))
        );
        assert!(seen("runs").is_ok_and(|seen| seen.missing));
    }
}
