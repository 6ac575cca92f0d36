//! What is asked of the servers, as data: several things go out in one go, and a transaction is one of them.

pub(super) use zookeeper_client::Stat;

/// A denial of the server.
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
pub(super) enum Ask<'a> {
    Create(&'a str, &'a [u8], Node),
    Delete(&'a str),
    /// Only if it is of this version still.
    DeleteSince(&'a str, i32),
    Exists(&'a str),
    Read(&'a str),
    Write(&'a str, &'a [u8]),
    /// Only if it is of this version still.
    WriteSince(&'a str, &'a [u8], i32),
    Children(&'a str),
    /// What follows in this session sees all that was done before anywhere.
    Sync(&'a str),
    /// The node is there, in whatever version.
    Check(&'a str),
    /// All or nothing.
    All(Vec<Ask<'a>>),
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
