//! Requests to the servers, as data. Several are sent in one batch, and one of them may be a
//! transaction.

pub(super) use zookeeper_client::Stat;

/// A denial of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Code {
    NoNode,
    NodeExists,
    NotEmpty,
    /// The node was written or removed since it was read.
    BadVersion,
    NoAuth,
    InvalidAcl,
    Unimplemented,
    QuotaExceeded,
    Throttled,
    SessionMoved,
    /// The parent is ephemeral, so it can have no children.
    NoChildren,
    Other(String),
}

/// The kind of a new node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NodeKind {
    Persistent,
    /// The node ends with its session.
    Ephemeral,
    /// An ephemeral node with a number at the end of its name, which rises within its parent.
    Contender,
    /// The server removes the node once its children are gone.
    Container,
}

/// One request. A transaction may contain only requests that change or check something.
#[derive(Clone, Debug)]
pub(super) enum WireRequest<'a> {
    Create(&'a str, &'a [u8], NodeKind),
    Delete(&'a str),
    /// Deletes the node only in this version.
    DeleteSince(&'a str, i32),
    Exists(&'a str),
    Read(&'a str),
    Write(&'a str, &'a [u8]),
    /// Writes the node only in this version.
    WriteSince(&'a str, &'a [u8], i32),
    Children(&'a str),
    /// Lets later requests in this session see everything that was done before, on any server.
    Sync(&'a str),
    /// Requires that the node exists, in any version.
    Check(&'a str),
    /// A transaction: all or nothing.
    All(Vec<WireRequest<'a>>),
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    Done,
    /// The transaction was done. It made this node first, and this one last if it made several.
    AllDone {
        made: Option<(String, Option<Stat>)>,
        last: Option<String>,
    },
    Created {
        path: String,
        stat: Stat,
    },
    Stat(Stat),
    Data {
        data: Vec<u8>,
        stat: Stat,
    },
    Children(Vec<String>),
    /// The transaction was refused because of the step at this index. Nothing of it was done.
    RolledBack {
        at: usize,
        code: Code,
    },
}

/// The answer to one request, or its denial.
pub(super) type WireReply = Result<Reply, Code>;

/// Returns the children of a node; none if it doesn't exist.
pub(super) fn children(answer: Option<WireReply>) -> Vec<String> {
    match answer {
        Some(Ok(Reply::Children(names))) => names,
        _ => Vec::new(),
    }
}
