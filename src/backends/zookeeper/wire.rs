//! What is asked of the servers, as data: several things go out in one go, and a transaction is one of them.

/// A refusal of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Code {
    NoNode,
    NodeExists,
    NotEmpty,
    /// It was written or removed since it was read.
    BadVersion,
    NoAuth,
    InvalidAcl,
    Unimplemented,
    QuotaExceeded,
    Throttled,
    SessionMoved,
    /// The parent is ephemeral, so that nothing can lie below it.
    NoChildren,
    Other(String),
}

/// What kind of node is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Node {
    Persistent,
    /// Gone with its session.
    Ephemeral,
    /// The same, with a number at the end of its name that rises within its parent.
    Contender,
    /// Removed by the server once its children are gone.
    Container,
}

/// One thing to be done; within a transaction only those that change or check something.
#[derive(Clone, Debug)]
pub(super) enum Request<'a> {
    Create {
        path: &'a str,
        data: &'a [u8],
        node: Node,
    },
    Delete {
        path: &'a str,
    },
    /// Only if it is of this version still.
    DeleteSince {
        path: &'a str,
        version: i32,
    },
    Exists {
        path: &'a str,
    },
    Read {
        path: &'a str,
    },
    Write {
        path: &'a str,
        data: &'a [u8],
    },
    /// Only if it is of this version still.
    WriteSince {
        path: &'a str,
        data: &'a [u8],
        version: i32,
    },
    Children {
        path: &'a str,
    },
    /// What follows in this session sees all that was done before anywhere.
    Sync {
        path: &'a str,
    },
    /// The node is there, in whatever version.
    Check {
        path: &'a str,
    },
    /// All or nothing.
    All(Vec<Request<'a>>),
}

/// What is known of a node beside its data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Stat {
    /// The number of the change that made it: rises over all nodes of the ensemble.
    pub(super) czxid: i64,
    /// When it was made, in ms of the leader's clock.
    pub(super) ctime: i64,
    /// When it was last written.
    pub(super) mtime: i64,
    /// The number of the change that wrote it last.
    pub(super) mzxid: i64,
    /// How often it was written.
    pub(super) version: i32,
    /// The session that it ends with; 0 if with none.
    pub(super) session: i64,
    pub(super) children: i32,
}

/// What a request was answered with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    Done,
    /// A transaction was done, which made this node first, and this one last if it made several.
    AllDone {
        made: Option<(String, Option<Stat>)>,
        last: Option<String>,
    },
    Made {
        path: String,
        stat: Stat,
    },
    Stat(Stat),
    Data {
        data: Vec<u8>,
        stat: Stat,
    },
    Children(Vec<String>),
    /// A transaction was refused because of the step at this place; nothing of it was done.
    RolledBack {
        at: usize,
        code: Code,
    },
}

/// What one request was answered with, or refused.
pub(super) type Answer = Result<Reply, Code>;
