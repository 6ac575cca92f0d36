//! Joins the queue, and takes the lock in the same step if the queue is empty.

use super::{
    contender::{self, ContenderNode, fence},
    failure::{self, ZkResult, unexpected},
    hold::{LockListing, ParentNode, Place, ZkHold},
    names::{ZkNames, guid},
    record::{GrantMark, write_last},
    runs::{JudgementData, RunRecordNode},
    wire::{Code, NodeKind, Reply, Stat, WireReply, WireRequest},
};
use crate::{
    backends::queue::record::ContenderInfo,
    lock::{Mode, Request},
};

/// The outcome of joining the queue.
pub(super) enum JoinOutcome {
    /// The queue after that.
    Listing(Box<LockListing>),
    /// A directory was missing.
    NoParent,
    /// Something has changed since the last look.
    Changed,
}

/// The outcome of the joining transaction.
enum JoinAnswer {
    /// It made these nodes; some servers return only the path of the first one.
    Created {
        path: String,
        stat: Option<Stat>,
        second_node: Option<String>,
    },
    Not(JoinOutcome),
}

/// The data that joining and a grant write.
struct JoinData {
    path: String,
    second_node: String,
    mark: String,
    renewal_node: String,
    numbered: String,
    own: String,
    data: Vec<u8>,
    mark_data: Vec<u8>,
    last: Vec<u8>,
    ttl: String,
}

impl JoinData {
    /// Returns the steps that join. With `version`, that of the lock's own node at the last look,
    /// adds the steps of a grant at once.
    fn steps<'a>(
        &'a self,
        names: &'a ZkNames,
        mode: Mode,
        version: Option<i32>,
    ) -> Vec<WireRequest<'a>> {
        let create = |path: &'a str, data: &'a [u8], node| WireRequest::Create(path, data, node);
        let mut steps = vec![create(&self.path, &self.data, NodeKind::Contender)];
        if let Some(version) = version {
            steps.push(create(&self.mark, &self.mark_data, NodeKind::Persistent));
            steps.push(create(
                &self.renewal_node,
                self.ttl.as_bytes(),
                NodeKind::Ephemeral,
            ));
            steps.push(match mode {
                // Readers may join at the same time.
                Mode::Shared => WireRequest::Write(&names.meta, &self.last),
                _ => WireRequest::WriteSince(&names.meta, &self.last, version),
            });
            if let Mode::Permits(_) = mode {
                steps.push(create(
                    &self.numbered,
                    self.own.as_bytes(),
                    NodeKind::Ephemeral,
                ));
            }
        }
        steps.push(create(&self.second_node, &self.data, NodeKind::Contender));
        steps
    }
}

impl ZkHold {
    /// Puts a node at the end of the queue.
    ///
    /// If the queue seemed empty at the last look, the same transaction marks the grant. It is
    /// confirmed if the queue really is empty, and taken back otherwise. The data that the first
    /// contender is judged by is read after that. `at_once` is the version that the lock's own node
    /// had before that look, and the number for a permit.
    pub(super) async fn join(
        &mut self,
        request: &Request,
        at_once: Option<(i32, u32)>,
        parents: &[ParentNode],
    ) -> ZkResult<JoinOutcome> {
        let (names, own) = (self.names.clone(), guid(&self.token));
        let number = at_once.map(|(_, number)| number).unwrap_or_default();
        let grant = GrantMark::of(
            request,
            None,
            matches!(request.mode, Mode::Permits(_)).then_some(number),
        );
        let written = JoinData {
            path: names.contender(&contender::name(&own, request.mode)),
            second_node: names.contender(&contender::second_node(&own, request.mode)),
            mark: names.mark(&own),
            renewal_node: self.renewal_node(),
            numbered: names.permit(number),
            data: ContenderInfo::of(request).write(),
            mark_data: grant.write(),
            last: write_last(None),
            ttl: self.ttl(),
            own,
        };
        let mut requests: Vec<_> = parents
            .iter()
            .map(|(path, node, data)| WireRequest::Create(path, data, *node))
            .collect();
        requests.push(WireRequest::All(written.steps(
            &names,
            request.mode,
            at_once.map(|(version, _)| version),
        )));
        let runs = names.runs();
        requests.extend([
            WireRequest::Children(&names.lock),
            WireRequest::Children(&names.meta),
            WireRequest::Read(&runs),
        ]);
        self.maybe_placed = true;
        let mut answers = self.ask(&requests).await?;
        let seen = answers.split_off(parents.len() + 1);
        match self.joined(answers).await? {
            JoinAnswer::Not(joined) => Ok(joined),
            JoinAnswer::Created {
                path,
                stat,
                second_node,
            } => {
                let stat = match stat {
                    Some(stat) => Some(stat),
                    None => self.stat(&path).await?,
                };
                let name = |path: &str| path.rsplit_once('/').map(|(_, name)| name.to_owned());
                let contender = name(&path)
                    .and_then(|name| ContenderNode::parse(&name))
                    .map(|own| own.with(second_node.as_deref().and_then(name)));
                let (Some(contender), Some(stat)) = (contender, stat) else {
                    return Err(failure::unreadable().into());
                };
                let fence = fence(&stat).ok_or_else(failure::unreadable)?;
                self.place = Some(Place {
                    contender,
                    path,
                    fence,
                });
                self.grant = Some(grant);
                self.seen_joined(request.mode, at_once.is_some(), (seen, &stat))
                    .await
            }
        }
    }

    /// Interprets the answers to creating the parents and to joining.
    async fn joined(&mut self, mut answers: Vec<WireReply>) -> ZkResult<JoinAnswer> {
        let joined = match answers.pop() {
            Some(Ok(Reply::AllDone {
                made: Some((path, stat)),
                last,
            })) => {
                return Ok(JoinAnswer::Created {
                    path,
                    stat,
                    second_node: last,
                });
            }
            Some(Ok(Reply::RolledBack {
                code: Code::NoNode, ..
            })) => {
                if answers.contains(&Err(Code::NoAuth)) {
                    self.maybe_placed = false;
                    return Err(failure::refused(&Code::NoAuth).into());
                }
                JoinOutcome::NoParent
            }
            // An earlier session of ours left its mark.
            Some(Ok(Reply::RolledBack {
                at: 0..=2,
                code: Code::NodeExists,
            })) => {
                let mark = self.names.mark(&guid(&self.token));
                self.remove(&[&mark]).await?;
                JoinOutcome::Changed
            }
            // Another contender was granted the lock since the look.
            Some(Ok(Reply::RolledBack {
                code: Code::BadVersion | Code::NodeExists,
                ..
            })) => JoinOutcome::Changed,
            answer => return Err(unexpected(answer).into()),
        };
        self.maybe_placed = false;
        Ok(JoinAnswer::Not(joined))
    }

    /// Returns the queue as it was read just after joining, with the node that was made.
    async fn seen_joined(
        &mut self,
        mode: Mode,
        granted: bool,
        (mut seen, own): (Vec<WireReply>, &Stat),
    ) -> ZkResult<JoinOutcome> {
        self.since = granted.then_some(own.ctime);
        self.runs = granted.then(RunRecordNode::default);
        let mut basis = JudgementData {
            runs: RunRecordNode::read(seen.pop())?,
            version: 0,
            now: u64::try_from(own.ctime).ok(),
        };
        let mut seen = LockListing {
            joined: granted,
            ..LockListing::read(seen)?
        };
        // Another process may have taken and freed the lock since the run records were read.
        if granted && mode == Mode::Shared && self.judge(None, &mut basis).await?.is_some() {
            self.unmark().await?;
            seen.joined = false;
        }
        // A permit depends on data that was read before the permits were counted: read it now.
        seen.basis = Some(basis).filter(|_| granted || !matches!(mode, Mode::Permits(_)));
        Ok(JoinOutcome::Listing(Box::new(seen)))
    }
}
