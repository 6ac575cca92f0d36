//! The types of a lock, and the trait that every store implements.
//!
//! Nothing here does I/O, sleeps, prints or reads a clock. Backends depend on this module only.

mod admin;
mod backend;
mod breaking;
mod capabilities;
pub mod document;
mod encoding;
mod error;
mod history;
mod key;
mod library;
mod request;
mod run_policy;
mod state;
#[cfg(test)]
mod tests;
mod time;
mod token;

pub use admin::{
    Admin, Check, Finding, Grants, Init, Notice, PASSWORD, Role, ServerTime, Severity, UNCHECKED,
    check,
};
pub use backend::{
    Amendment, Attempt, Backend, Busy, DRAIN_DELAY, Grant, Identity, LastResort, Progress, Release,
    Renewal, Wake, Which,
};
pub use breaking::{Break, Intent};
pub use capabilities::{Capabilities, Pace};
pub use encoding::{Encoding, printable};
pub use error::{Effect, Error, Kind, Origin, Result, plain};
pub use history::{
    End, History, HistoryEntry, Note, REMEMBERED, ReleaseInfo, RunOutcome, SKIPPING_HOSTS, Scope,
    SkipCount, forgotten_hosts,
};
pub use key::{Key, Namespace};
pub use library::{Excludes, Library, Neighbour, Sharing};
pub use request::{Entry, Mode, Request};
pub use run_policy::{
    Cooldown, Denial, LastRun, Once, Replaced, Rule, RunPolicy, RunRecord, RunState, whole_ms,
};
pub use state::{Holder, LockState, Metadata, NodeView, Obstacle, Waiter};
pub use time::{BootTime, Ttl, length};
pub use token::{Fence, StoreSession, Token, fingerprint, random};
