//! The requests that dlock sends to a cluster.

use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Streaming, codegen::http::uri::PathAndQuery};
use tonic_prost::ProstCodec;

use super::{
    client::{EtcdClient, EtcdResult, Style, TXN},
    failure::{self, Trouble},
    messages::{
        Compare, LeaseGrantRequest, LeaseGrantResponse, LeaseKeepAliveResponse, LeaseRequest,
        LeaseRevokeResponse, LeaseTimeToLiveResponse, RequestOp, TxnRequest, TxnResponse,
        WatchRequest, WatchResponse,
    },
    names::EtcdNames,
    ops::{self, Part, TxnAnswers},
    queue::{AwaitedKeys, LockAtRevision},
};

const REVOKE: &str = "/etcdserverpb.Lease/LeaseRevoke";

impl EtcdClient {
    /// Does all operations in one step.
    pub(super) async fn run(&mut self, ops: Vec<RequestOp>) -> EtcdResult<TxnAnswers> {
        self.run_if(Vec::new(), ops).await
    }

    /// Does all operations if `compare` holds, and none otherwise: see [`TxnAnswers::succeeded`].
    pub(super) async fn run_if(
        &mut self,
        compare: Vec<Compare>,
        ops: Vec<RequestOp>,
    ) -> EtcdResult<TxnAnswers> {
        self.txn(compare, ops, Vec::new()).await
    }

    /// Does one of two lists of operations in one step.
    pub(super) async fn txn(
        &mut self,
        compare: Vec<Compare>,
        success: Vec<RequestOp>,
        failure: Vec<RequestOp>,
    ) -> EtcdResult<TxnAnswers> {
        let answer: TxnResponse = self
            .ask(
                TXN,
                TxnRequest {
                    compare,
                    success,
                    failure,
                },
                Style::Unary,
            )
            .await?;
        Ok(TxnAnswers::of(answer)?)
    }

    /// Does `puts` if all of `compare` holds, and looks at the lock in the same step.
    pub(super) async fn put_and_look(
        &mut self,
        names: &EtcdNames,
        compare: Vec<Compare>,
        puts: Vec<RequestOp>,
    ) -> EtcdResult<LockAtRevision> {
        self.put_and_look_at(names, Part::All, compare, puts).await
    }

    /// The same, with a look at this part of the lock.
    pub(super) async fn put_and_look_at(
        &mut self,
        names: &EtcdNames,
        part: Part<'_>,
        compare: Vec<Compare>,
        puts: Vec<RequestOp>,
    ) -> EtcdResult<LockAtRevision> {
        let (look, many) = (part.look(names), puts.len());
        let mut answers = self
            .txn(compare, [puts, look.clone()].concat(), look)
            .await?;
        if answers.succeeded {
            answers.skip(many);
        }
        Ok(answers.look_at(names, part)?)
    }

    /// Does the first operation if all of its conditions hold, else the other one likewise, and
    /// looks at the part of the lock that belongs to the first or the other one.
    pub(super) async fn put_either_and_look(
        &mut self,
        names: &EtcdNames,
        first: (Vec<Compare>, RequestOp, Part<'_>),
        other: (Vec<Compare>, RequestOp, Part<'_>),
    ) -> EtcdResult<LockAtRevision> {
        let success = [vec![first.1], first.2.look(names)].concat();
        let failure = [
            vec![ops::when(other.0, vec![other.1], Vec::new())],
            other.2.look(names),
        ]
        .concat();
        let mut answers = self.txn(first.0, success, failure).await?;
        answers.skip(1);
        let part = if answers.succeeded { first.2 } else { other.2 };
        Ok(answers.look_at(names, part)?)
    }

    /// Grants a lease with this id. Returns its length in seconds, which the server may have
    /// increased.
    pub(super) async fn grant(&mut self, id: i64, ttl: i64) -> EtcdResult<i64> {
        let answer: LeaseGrantResponse = self
            .ask(
                "/etcdserverpb.Lease/LeaseGrant",
                LeaseGrantRequest { ttl, id },
                Style::Unary,
            )
            .await?;
        Ok(answer.ttl)
    }

    /// Grants several leases at once. A lease that exists already is an error.
    pub(super) async fn grant_all(&mut self, wanted: &[(i64, i64)]) -> Vec<EtcdResult<i64>> {
        let questions = wanted
            .iter()
            .map(|(id, ttl)| LeaseGrantRequest { ttl: *ttl, id: *id })
            .collect();
        let answers = self
            .ask_all("/etcdserverpb.Lease/LeaseGrant", questions)
            .await;
        answers
            .into_iter()
            .map(|answer| answer.map(|answer: LeaseGrantResponse| answer.ttl))
            .collect()
    }

    /// Revokes several leases at once, which would also expire by themselves.
    pub(super) async fn revoke_all(&mut self, ids: &[i64]) {
        let questions = ids.iter().map(|id| LeaseRequest { id: *id }).collect();
        let _: Vec<EtcdResult<LeaseRevokeResponse>> = self.ask_all(REVOKE, questions).await;
    }

    /// Revokes a lease in the background, while other requests go on. The lease would also expire
    /// by itself.
    pub(super) fn revoke_meanwhile(&self, id: i64) {
        let Some(connection) = &self.connection else {
            return;
        };
        let (mut grpc, request) = (connection.grpc.clone(), self.request(LeaseRequest { id }));
        tokio::spawn(async move {
            let codec = ProstCodec::<LeaseRequest, LeaseRevokeResponse>::default();
            drop(
                grpc.unary(request, PathAndQuery::from_static(REVOKE), codec)
                    .await,
            );
        });
    }

    /// Revokes a lease and its keys. A missing lease is no error.
    pub(super) async fn revoke(&mut self, id: i64) -> EtcdResult<()> {
        let answer: EtcdResult<LeaseRevokeResponse> =
            self.ask(REVOKE, LeaseRequest { id }, Style::Unary).await;
        match answer {
            Ok(_) | Err(Trouble::NoLease) => Ok(()),
            Err(trouble) => Err(trouble),
        }
    }

    /// Extends a lease by its own length in seconds, and returns that length; `None` if there is no
    /// such lease.
    ///
    /// Each stream has one message and one answer: a stream kept open would hang unnoticed when its
    /// member does.
    pub(super) async fn keep_alive(&mut self, id: i64) -> EtcdResult<Option<i64>> {
        let answer: EtcdResult<LeaseKeepAliveResponse> = self
            .ask(
                "/etcdserverpb.Lease/LeaseKeepAlive",
                LeaseRequest { id },
                Style::OneOfStream,
            )
            .await;
        match answer {
            Ok(answer) => Ok(Some(answer.ttl).filter(|ttl| *ttl > 0)),
            Err(Trouble::NoLease) => Ok(None),
            Err(trouble) => Err(trouble),
        }
    }

    pub(super) async fn time_to_live(&mut self, id: i64) -> EtcdResult<LeaseTimeToLiveResponse> {
        self.ask(
            "/etcdserverpb.Lease/LeaseTimeToLive",
            LeaseRequest { id },
            Style::Unary,
        )
        .await
    }

    /// Opens a stream of watches, beginning with `first`. The stream ends with the connection.
    pub(super) async fn watch(&mut self, first: Vec<WatchRequest>) -> EtcdResult<Watches> {
        self.open().await?;
        self.under_way = false;
        let (wanted, receiver) = mpsc::unbounded_channel();
        for request in first {
            // The receiver still exists.
            let _ = wanted.send(request);
        }
        let request = self.request(UnboundedReceiverStream::new(receiver));
        let Some(connection) = &mut self.connection else {
            return Err(failure::unreadable().into());
        };
        let path = PathAndQuery::from_static("/etcdserverpb.Watch/Watch");
        let opened = connection
            .grpc
            .streaming(
                request,
                path,
                ProstCodec::<WatchRequest, WatchResponse>::default(),
            )
            .await;
        match opened {
            Ok(answers) => Ok(Watches {
                wanted,
                answers: answers.into_inner(),
                before: AwaitedKeys::default(),
            }),
            Err(status) => {
                let trouble = failure::of(status);
                match trouble {
                    Trouble::LoginOver(_) => self.login = None,
                    _ => self.next_member(),
                }
                Err(trouble)
            }
        }
    }
}

/// A stream of watches.
pub(super) struct Watches {
    pub wanted: mpsc::UnboundedSender<WatchRequest>,
    pub answers: Streaming<WatchResponse>,
    /// The keys that are waited for. They are among the watched keys.
    pub before: AwaitedKeys,
}
