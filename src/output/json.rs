//! The output of `--json`: exactly one object on one line, on failure too. This is the schema
//! `dlock/1`.
//!
//! Every object has `schema`, `result` and `status` (the exit status). Times are RFC 3339 in UTC,
//! durations are whole milliseconds (`…_ms`), and unknown values are `null`. Fields may be added to
//! this schema; no field is removed or changes its meaning.
//!
//! `man/dlock.schema.json` has every object. It is made from the types here, with their comments.
//!
//! `run` prints its object as the last line of stderr, because stdout belongs to the command.

mod explained;
mod inspected;
mod keys;
mod names;
mod parts;
#[cfg(test)]
mod schema;
#[cfg(test)]
mod tests;
mod words;

use std::time::Duration;

use serde::Serialize;

pub use self::parts::{
    BreakReport, CooldownReport, DeniedReport, ErrorReport, HistoryEntryReport, HolderReport,
    LastRunReport, LockReport, SkipCountReport,
};
pub use self::{
    explained::ExplainedReport,
    inspected::InspectReport,
    keys::{AllRuns, HostBroken, KnownKeys},
    names::NamesReport,
};
use super::{Cause, LockView, Now, Skip, history::RunOf, time::millis};
use crate::{
    exit,
    lease::Lease,
    lock::{self, Break, Error, Fence, Key, SkipCount},
};

/// The name of the schema.
pub const SCHEMA: &str = "dlock/1";

/// Returns `report` as one line.
pub fn line(report: &impl Serialize) -> String {
    // Plain structs with text keys can't fail to serialize.
    let mut text = serde_json::to_string(report)
        .unwrap_or_else(|_| format!("{{\"schema\":\"{SCHEMA}\",\"result\":\"error\"}}"));
    text.push('\n');
    text
}

/// The fields that every object begins with.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct ReportHead {
    schema: &'static str,
    result: &'static str,
    status: u8,
}

pub(super) const fn head(result: &'static str, status: u8) -> ReportHead {
    ReportHead {
        schema: SCHEMA,
        result,
        status,
    }
}

/// Declares a report: the head, then the fields in the order they are printed.
macro_rules! report {
    ($(#[$doc:meta])* $name:ident { $($(#[$about:meta])* $field:ident: $type:ty),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Serialize)]
        #[cfg_attr(test, derive(schemars::JsonSchema))]
        pub struct $name<'a> {
            #[serde(flatten)]
            head: ReportHead,
            $($(#[$about])* $field: $type,)*
        }
    };
}

report!(
    /// `acquire` or `hold` took all locks. The fields before `keys` are those of the first lock.
    Acquired {
        key: &'a str,
        backend: String,
        token: String,
        fence: u64,
        permit: Option<u32>,
        ttl_ms: u64,
        /// All locks that were taken, in the order in which they were named.
        keys: Vec<AcquiredKey<'a>>,
    }
);
report!(
    /// `renew` extended the lease.
    Renewed { key: &'a str, backend: &'a str, fence: Option<u64>, ttl_ms: u64 }
);
report!(
    /// `verify` found that the token holds the lock.
    Verified { key: &'a str, backend: &'a str, expires_in_ms: Option<u64> }
);
report!(
    /// `release` released the hold.
    Released { key: &'a str, backend: &'a str, holds: u32 }
);
report!(
    /// `init` found or created the tables.
    Initialized { backend: &'a str, done: lock::Init }
);
report!(
    /// A text that needs no store: a man page, completions, help, the version.
    Printed { text: &'a str }
);
report!(
    /// `init --print`: what `init` would do.
    Schema { backend: &'a str, text: Option<String> }
);
report!(
    /// `gc` removed unused keys.
    Collected { backend: &'a str, removed: u64 }
);
report!(
    /// The token does not hold the lock.
    NotHeld { key: &'a str, backend: &'a str }
);
report!(
    /// The hold is marked to be broken.
    ToBeBroken { key: &'a str, backend: &'a str, broken: BreakReport<'a> }
);
report!(
    /// `break` ended a hold.
    WasBroken {
        key: &'a str,
        backend: &'a str,
        fence: u64,
        /// `given_back` (released, or its lease ended) or `evicted`.
        how: &'static str,
        waited_ms: u64,
    }
);
report!(
    /// `forget` removed these run records of a lock.
    Forgotten { key: &'a str, backend: &'a str, cooldown: Option<CooldownReport<'a>>, once: Option<LastRunReport<'a>> }
);
report!(
    /// `history KEY`: a lock's runs, run records and skip counts.
    Remembered {
        key: &'a str,
        backend: &'a str,
        runs: Vec<HistoryEntryReport<'a>>,
        cooldown: Option<CooldownReport<'a>>,
        once: Option<LastRunReport<'a>>,
        skips: Vec<SkipCountReport<'a>>,
    }
);
report!(
    /// A signal ended the wait.
    Interrupted { key: &'a str, signal: i32 }
);
report!(
    /// The lock was not taken: another process has it, or a run policy denies it.
    Busy {
        key: &'a str,
        backend: &'a str,
        waited_ms: u64,
        expires_in_ms: Option<u64>,
        position: Option<u32>,
        holders: Vec<HolderReport<'a>>,
        refused: Option<DeniedReport<'a>>,
    }
);
report!(
    /// The command failed.
    Failed { error: ErrorReport<'a> }
);

/// One of several locks that were taken.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct AcquiredKey<'a> {
    key: &'a str,
    token: String,
    fence: u64,
}

impl<'a> Acquired<'a> {
    /// Reports new leases, at least one.
    pub fn new(leases: &[&'a Lease], backend: String) -> Self {
        let first = leases[0];
        let key = |lease: &&'a Lease| AcquiredKey {
            key: lease.key.as_str(),
            token: lease.token.reveal(),
            fence: lease.fence.0,
        };
        Self {
            head: head("ok", exit::OK),
            key: first.key.as_str(),
            backend,
            token: first.token.reveal(),
            fence: first.fence.0,
            permit: first.permit,
            ttl_ms: first.ttl.as_millis(),
            keys: leases.iter().map(key).collect(),
        }
    }
}

impl<'a> Renewed<'a> {
    /// Reports an extended lease that ends in `left`.
    pub fn new(key: &'a Key, backend: &'a str, left: Duration, fence: Option<Fence>) -> Self {
        Self {
            head: head("ok", exit::OK),
            key: key.as_str(),
            backend,
            fence: fence.map(|fence| fence.0),
            ttl_ms: millis(left),
        }
    }
}

impl<'a> Verified<'a> {
    /// Reports a hold whose lease ends in `left`.
    pub fn new(key: &'a Key, backend: &'a str, left: Option<Duration>) -> Self {
        Self {
            head: head("ok", exit::OK),
            key: key.as_str(),
            backend,
            expires_in_ms: left.map(millis),
        }
    }
}

impl<'a> Released<'a> {
    /// Reports a release; `holds` is the number of holds that remain.
    pub fn new(key: &'a Key, backend: &'a str, holds: u32) -> Self {
        Self {
            head: head("ok", exit::OK),
            key: key.as_str(),
            backend,
            holds,
        }
    }
}

impl<'a> Initialized<'a> {
    /// Reports the result of `init`.
    pub fn new(done: lock::Init, backend: &'a str) -> Self {
        Self {
            head: head("ok", exit::OK),
            backend,
            done,
        }
    }
}

impl<'a> Printed<'a> {
    /// Reports a text, unchanged.
    pub const fn new(text: &'a str) -> Self {
        Self {
            head: head("ok", exit::OK),
            text,
        }
    }
}

impl<'a> Schema<'a> {
    /// Reports a schema in the store's own language.
    pub fn new(schema: Option<String>, backend: &'a str) -> Self {
        Self {
            head: head("ok", exit::OK),
            backend,
            text: schema,
        }
    }
}

impl<'a> Collected<'a> {
    /// Reports the number of removed locks.
    pub fn new(removed: u64, backend: &'a str) -> Self {
        Self {
            head: head("ok", exit::OK),
            backend,
            removed,
        }
    }
}

impl<'a> NotHeld<'a> {
    /// Reports a lock that the token does not hold.
    pub fn new(key: &'a Key, backend: &'a str) -> Self {
        Self {
            head: head("not_held", exit::NOT_HELD),
            key: key.as_str(),
            backend,
        }
    }
}

impl<'a> ToBeBroken<'a> {
    /// Reports the mark of the break.
    pub fn new(key: &'a Key, backend: &'a str, mark: &'a Break) -> Self {
        Self {
            head: head("broken", exit::NOT_HELD),
            key: key.as_str(),
            backend,
            broken: BreakReport::new(mark),
        }
    }
}

impl<'a> WasBroken<'a> {
    /// Reports the hold that was broken, and how.
    pub fn new(
        key: &'a Key,
        backend: &'a str,
        fence: Fence,
        how: &'static str,
        waited: Duration,
    ) -> Self {
        Self {
            head: head("ok", exit::OK),
            key: key.as_str(),
            backend,
            fence: fence.0,
            how,
            waited_ms: millis(waited),
        }
    }
}

impl<'a> Forgotten<'a> {
    /// Reports the removed run records.
    pub fn new(key: &'a Key, backend: &'a str, record: &'a lock::RunRecord) -> Self {
        let (cooldown, once) = (
            record.cooldown.as_ref().map(CooldownReport::new),
            record.start.as_ref().map(LastRunReport::new),
        );
        Self {
            head: head("ok", exit::OK),
            key: key.as_str(),
            backend,
            cooldown,
            once,
        }
    }
}

impl<'a> Remembered<'a> {
    /// Reports runs, run records and skip counts.
    pub fn new(
        key: &'a Key,
        backend: &'a str,
        runs: &'a [RunOf],
        record: &'a lock::RunRecord,
        skips: &'a [SkipCount],
    ) -> Self {
        let runs = runs
            .iter()
            .map(|run| HistoryEntryReport::new(key, run))
            .collect();
        let skips = skips.iter().map(SkipCountReport::new).collect();
        let (cooldown, once) = (
            record.cooldown.as_ref().map(CooldownReport::new),
            record.start.as_ref().map(LastRunReport::new),
        );
        Self {
            head: head("ok", exit::OK),
            key: key.as_str(),
            backend,
            runs,
            cooldown,
            once,
            skips,
        }
    }
}

impl<'a> Interrupted<'a> {
    /// Reports the signal.
    pub fn new(key: &'a Key, signal: i32, status: u8) -> Self {
        Self {
            head: head("interrupted", status),
            key: key.as_str(),
            signal,
        }
    }
}

impl<'a> Busy<'a> {
    /// Reports a lock that was not taken.
    pub fn new(skip: &Skip<'a>, backend: &'a str, now: &Now, status: u8) -> Self {
        let (busy, refused) = match skip.cause {
            Cause::Busy(busy) => (Some(busy), None),
            Cause::Denied(denial, option) => (None, Some(DeniedReport::new(denial, option, now))),
        };
        Self {
            head: head("busy", status),
            key: skip.key.as_str(),
            backend,
            waited_ms: millis(skip.waited),
            expires_in_ms: busy.and_then(|busy| busy.expires_in).map(millis),
            position: busy.and_then(|busy| busy.position),
            holders: busy
                .map(|busy| {
                    busy.holders
                        .iter()
                        .map(|holder| HolderReport::new(holder, now))
                        .collect()
                })
                .unwrap_or_default(),
            refused,
        }
    }
}

impl<'a> Failed<'a> {
    /// Reports an error.
    pub fn new(error: &'a Error, status: u8) -> Self {
        Self {
            head: head("error", status),
            error: ErrorReport::new(error),
        }
    }
}

/// `list`.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ListReport<'a> {
    #[serde(flatten)]
    head: ReportHead,
    backend: &'a str,
    locks: Vec<LockReport<'a>>,
}

impl<'a> ListReport<'a> {
    /// Reports several locks.
    pub fn new(locks: &'a [LockView], backend: &'a str, now: &Now) -> Self {
        Self {
            head: head("ok", exit::OK),
            backend,
            locks: locks
                .iter()
                .map(|lock| LockReport::new(lock, now))
                .collect(),
        }
    }
}
