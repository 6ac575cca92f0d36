//! Converts requests to the client library's calls, and its answers to data.

use std::{future::Future, pin::Pin};

use zookeeper_client::{Acls, Client, CreateMode, MultiWriteError, MultiWriteResult};

use super::{
    failure::{self, Fault, ZkResult},
    wire::{Code, NodeKind, Reply, Stat, WireReply, WireRequest},
};
use crate::lock::{Error, Kind};

type Sent<'a> = Pin<Box<dyn Future<Output = ZkResult<WireReply>> + 'a>>;

/// Sends a request at once. The returned future is the answer.
pub(super) fn send<'a>(
    client: &'a Client,
    request: &WireRequest<'a>,
    acls: Acls<'static>,
) -> Sent<'a> {
    match *request {
        WireRequest::Create(path, data, node) => {
            let made = client.create(path, data, &mode(node).with_acls(acls));
            Box::pin(async move {
                answer(made.await.map(|(stat, sequence)| {
                    let path = if node == NodeKind::Contender {
                        format!("{path}{sequence}")
                    } else {
                        path.to_owned()
                    };
                    Reply::Created { path, stat }
                }))
            })
        }
        WireRequest::Delete(path) => {
            let done = client.delete(path, None);
            Box::pin(async move { answer(done.await.map(|()| Reply::Done)) })
        }
        WireRequest::DeleteSince(path, version) => {
            let done = client.delete(path, Some(version));
            Box::pin(async move { answer(done.await.map(|()| Reply::Done)) })
        }
        WireRequest::Exists(path) => {
            let stat = client.check_stat(path);
            Box::pin(async move {
                match stat.await {
                    Ok(Some(stat)) => Ok(Ok(Reply::Stat(stat))),
                    Ok(None) => Ok(Err(Code::NoNode)),
                    Err(error) => answer(Err(error)),
                }
            })
        }
        WireRequest::Read(path) => {
            let read = client.get_data(path);
            Box::pin(
                async move { answer(read.await.map(|(data, stat)| Reply::Data { data, stat })) },
            )
        }
        WireRequest::Write(path, data) => {
            let written = client.set_data(path, data, None);
            Box::pin(async move { answer(written.await.map(Reply::Stat)) })
        }
        WireRequest::WriteSince(path, data, version) => {
            let written = client.set_data(path, data, Some(version));
            Box::pin(async move { answer(written.await.map(Reply::Stat)) })
        }
        WireRequest::Children(path) => {
            let names = client.list_children(path);
            Box::pin(async move { answer(names.await.map(Reply::Children)) })
        }
        WireRequest::Sync(path) => {
            let done = client.sync(path);
            Box::pin(async move { answer(done.await.map(|()| Reply::Done)) })
        }
        WireRequest::Check(..) => Box::pin(async { Err(failure::unreadable().into()) }),
        WireRequest::All(ref steps) => transact(client, steps, acls),
    }
}

fn transact<'a>(client: &'a Client, steps: &[WireRequest<'_>], acls: Acls<'static>) -> Sent<'a> {
    let mut writer = client.new_multi_writer();
    let added: Result<(), _> = steps.iter().try_for_each(|step| match *step {
        WireRequest::Create(path, data, node) => {
            writer.add_create(path, data, &mode(node).with_acls(acls))
        }
        WireRequest::Delete(path) => writer.add_delete(path, None),
        WireRequest::DeleteSince(path, version) => writer.add_delete(path, Some(version)),
        WireRequest::Write(path, data) => writer.add_set_data(path, data, None),
        WireRequest::WriteSince(path, data, version) => {
            writer.add_set_data(path, data, Some(version))
        }
        WireRequest::Check(path) => writer.add_check_version(path, -1),
        _ => Err(zookeeper_client::Error::BadArguments(
            &"no step of a transaction",
        )),
    });
    let done = added.map(|()| writer.commit());
    Box::pin(async move {
        match done {
            Err(error) => answer(Err(error)),
            Ok(done) => match done.await {
                Ok(done) => {
                    let mut all = done.into_iter().filter_map(made);
                    let first = all.next();
                    Ok(Ok(Reply::AllDone {
                        made: first,
                        last: all.next_back().map(|(path, _)| path),
                    }))
                }
                Err(MultiWriteError::OperationFailed { index, source }) => {
                    Ok(Ok(Reply::RolledBack {
                        at: index,
                        code: denial(source)?,
                    }))
                }
                Err(MultiWriteError::RequestFailed { source }) => answer(Err(source)),
            },
        }
    })
}

/// Returns the node that a transaction step made. Some servers return only its path.
fn made(step: MultiWriteResult) -> Option<(String, Option<Stat>)> {
    match step {
        MultiWriteResult::Create { path, stat } => {
            Some((path, (!stat.is_invalid()).then_some(stat)))
        }
        _ => None,
    }
}

fn mode(node: NodeKind) -> CreateMode {
    match node {
        NodeKind::Persistent => CreateMode::Persistent,
        NodeKind::Ephemeral => CreateMode::Ephemeral,
        NodeKind::Contender => CreateMode::EphemeralSequential,
        NodeKind::Container => CreateMode::Container,
    }
}

/// Converts a denial to an answer. All other errors concern the session or the way to the server.
fn answer(outcome: Result<Reply, zookeeper_client::Error>) -> ZkResult<WireReply> {
    match outcome {
        Ok(reply) => Ok(Ok(reply)),
        Err(error) => denial(error).map(Err),
    }
}

pub(super) fn denial(error: zookeeper_client::Error) -> ZkResult<Code> {
    use zookeeper_client::Error as Failure;
    Ok(match error {
        Failure::NoNode => Code::NoNode,
        Failure::NodeExists => Code::NodeExists,
        Failure::NotEmpty => Code::NotEmpty,
        Failure::BadVersion => Code::BadVersion,
        Failure::NoAuth => Code::NoAuth,
        Failure::InvalidAcl => Code::InvalidAcl,
        Failure::Unimplemented => Code::Unimplemented,
        Failure::QuotaExceeded => Code::QuotaExceeded,
        Failure::Throttled => Code::Throttled,
        Failure::SessionMoved => Code::SessionMoved,
        Failure::SessionExpired => return Err(Fault::Expired),
        Failure::AuthFailed => return Err(failure::login_refused().into()),
        Failure::BadArguments(why) => {
            return Err(
                Error::new(Kind::Internal, format!("a request was malformed: {why}")).into(),
            );
        }
        Failure::NoChildrenForEphemerals => Code::NoChildren,
        Failure::NotReadOnly => return Err(failure::read_only().into()),
        error @ Failure::UnexpectedErrorCode(_) => Code::Other(error.to_string()),
        error => return Err(failure::broken(error).into()),
    })
}
