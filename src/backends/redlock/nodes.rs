//! All nodes, asked at the same time.

use std::{
    future::poll_fn,
    task::{Context, Poll},
    time::Duration,
};

use ::redis::Value;
use tokio::time::timeout;

use super::node::{Question, RedlockNode};
use crate::{
    backends::redis::RedisOptions,
    lock::{Effect, Error, Kind, Result},
};

/// The answer of each node; `None` for a node that was not asked.
pub(super) type NodeAnswers = Vec<Option<Result<Value>>>;

pub(super) struct Nodes(Vec<RedlockNode>);

impl Nodes {
    pub(super) fn new(options: &[RedisOptions]) -> Self {
        Self(options.iter().cloned().map(RedlockNode::new).collect())
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the smallest number of nodes such that any two sets of that size share a node.
    pub(super) fn majority(&self) -> usize {
        majority(self.0.len())
    }

    pub(super) fn name(&self, node: usize) -> &str {
        self.0.get(node).map_or("", |node| &node.name)
    }

    /// Closes all connections. No request may be under way.
    pub(super) fn close(&mut self) {
        for node in &mut self.0 {
            node.close();
        }
    }

    /// Sends each node its `question`, and collects the answers that come within `bound`.
    ///
    /// The bound is part of the algorithm, not the call's limit, which the core sets: a node that
    /// is down must not block a majority. After a node missed the bound once, later calls with a
    /// majority wait only `bound / 20` for it, until it answers again. Cancel safe: requests under
    /// way stay on their connections.
    pub(super) async fn ask(
        &mut self,
        bound: Duration,
        mut question: impl FnMut(usize) -> Option<Question>,
    ) -> NodeAnswers {
        let majority = self.majority();
        let mut answers: NodeAnswers = (0..self.len()).map(|_| None).collect();
        let mut open = Vec::with_capacity(self.len());
        for (n, node) in self.0.iter_mut().enumerate() {
            if let Some(question) = question(n) {
                node.ask(question);
                open.push(n);
            }
        }
        let in_time = timeout(
            bound,
            poll_fn(|context| {
                self.poll_answers(context, &mut open, &mut answers);
                let heard = answers
                    .iter()
                    .filter(|answer| matches!(answer, Some(Ok(_))))
                    .count();
                let enough = heard >= majority && open.iter().all(|n| self.0[*n].late);
                if open.is_empty() || enough {
                    Poll::Ready(())
                } else {
                    Poll::Pending
                }
            }),
        );
        if in_time.await.is_ok() && !open.is_empty() {
            let rest = poll_fn(|context| {
                self.poll_answers(context, &mut open, &mut answers);
                if open.is_empty() {
                    Poll::Ready(())
                } else {
                    Poll::Pending
                }
            });
            // The result is ignored: the answers are in `answers`.
            let _ = timeout(bound / 20, rest).await;
        }
        for n in open {
            self.0[n].late = true;
            answers[n] = Some(Err(
                Error::new(Kind::Timeout, "no answer in time").effect(Effect::Unknown)
            ));
        }
        answers
    }

    fn poll_answers(
        &mut self,
        context: &mut Context<'_>,
        open: &mut Vec<usize>,
        answers: &mut NodeAnswers,
    ) {
        open.retain(|n| match self.0[*n].poll(context) {
            Poll::Ready(answer) => {
                self.0[*n].late = false;
                answers[*n] = Some(answer);
                false
            }
            Poll::Pending => true,
        });
    }

    /// Returns the error for too few answers. If permanent failures alone rule out a majority, it
    /// is the first of them, otherwise it is "unavailable". `failures` are those of the nodes
    /// without an answer.
    pub(super) fn too_few(&self, answered: usize, failures: Vec<(usize, Error)>) -> Error {
        let needed = self.majority();
        let lasting = failures
            .iter()
            .filter(|(_, error)| !error.is_transient())
            .count();
        let unknown = failures
            .iter()
            .any(|(_, error)| error.effect != Effect::NotApplied);
        let effect = if unknown {
            Effect::Unknown
        } else {
            Effect::NotApplied
        };
        let hopeless = lasting > self.len() - needed;
        let Some((n, first)) = failures
            .into_iter()
            .find(|(_, error)| !hopeless || !error.is_transient())
        else {
            return Error::new(
                Kind::Unavailable,
                "the nodes' answers don't agree, as while some of them restart",
            )
            .effect(effect);
        };
        if hopeless {
            let message = format!("{}: {}", self.name(n), first.message);
            return Error {
                effect,
                message,
                ..first
            };
        }
        let message = format!(
            "{answered} of {} nodes answered as needed, fewer than {needed}; {}: {}",
            self.len(),
            self.name(n),
            first.message
        );
        Error {
            kind: Kind::Unavailable,
            effect,
            message,
            ..first
        }
    }
}

/// Returns the smallest number that is more than half of `nodes`.
pub(super) const fn majority(nodes: usize) -> usize {
    nodes / 2 + 1
}
