//! What `--json` prints: exactly one object on one line, on failure too. This is the schema `dlock/1`.
//!
//! Every object has `schema`, `result` and `status` (the exit status). Times are RFC 3339 in UTC, lengths of time
//! whole milliseconds (`…_ms`), and what is unknown is `null`. New fields may come; none goes away or changes its
//! meaning under this schema's name.
//!
//! | result | status | other fields |
//! |---|---|---|
//! | `ok` of acquire, hold | 0 | `key backend token fence permit ttl_ms keys`, with each of several `keys` as `key token fence`; hold prints it when the lock is taken, not at its end |
//! | `ok` of verify | 0 | `key backend expires_in_ms` |
//! | `ok` of renew | 0 | `key backend fence ttl_ms`; no fence if the lease was longer already |
//! | `ok` of release | 0 | `key backend holds`: of the same owner, that keep the lock |
//! | `ok` of inspect | 0 | `backend` and a lock |
//! | `ok` of names | 0 | `key backend stored_as libraries`: `library excludes code namespace about`, where `excludes` is `both_ways`, `one_way` or `no` |
//! | `ok` of list | 0 | `backend locks`: an array of locks |
//! | `ok` of list --all | 0 | `backend keys`: `key last last_ok runs skips usually_every_ms late`, `last` a run |
//! | `ok` of history | 0 | `key backend runs cooldown once skips`; without a key `backend runs` |
//! | `ok` of explain | 0 | `key backend stored_as would reason holders refused settings`; `would` is `run`, `wait` or `skip` |
//! | `ok` of break | 0 | `key backend fence how waited_ms`; `how` is `given_back` (or its lease ended) or `evicted` |
//! | `ok` of forget | 0 | `key backend cooldown once`: the run records that are gone, `null` if there were none |
//! | `ok`, `error`, `interrupted` of break --host | 0; as `error`; 128+N | `host backend holds`: `key fence how error`, where `how` may be `changed`: nothing was done, or unknown after a signal |
//! | `ok` of init | 0 | `backend done`: `not_needed`, `up_to_date` or `created` |
//! | `ok` of completions, man, help, `--version` | 0 | `text`, if `--json` is on the command line |
//! | `ok` of run | the command's | `key backend fence keys permit by started waited_ms ran_ms command released holders error`: `keys` with a `fence` each, and `by` the one that kept it from running |
//! | `ok`, `warn`, `unsafe` of doctor | 0, 1, 2; 69, 78 | `backend name from findings round_trip_us hand_over_us settings error` ([`super::doctor`]) |
//! | `busy` | 75 or `-E` | `key backend waited_ms expires_in_ms position holders`; of run as `ok` |
//! | `lost` of run | 76 | as `ok` of run |
//! | `broken` of run | 76 | as `ok` of run |
//! | `broken` of renew | 77 | `key backend broken` |
//! | `not_held` | 77 | `key backend` |
//! | `interrupted` | 128+N | `key signal`; of run as `ok` |
//! | `error` | 64 to 78, 126, 127 | `error`; of run, once it began, as `ok` |
//!
//! A lock: `key stored_as held refused_until refused last_fence holders waiters nodes`; `refused_until` and `refused` (`reason host user pid fence
//! began state again_in_ms`) if it is free, and an earlier run keeps it from other runs. A node, of a store of several that decide together: `node held others
//! fence expires_in_ms error`; `others` if it is held there by another owner than the holder. A holder: `mode permit permits host user pid boot_id pid_ns command description anyway fence
//! foreign detached since held_for_ms renewed_ago_ms expires_in_ms holds broken`; `broken`, if an operator is breaking it: `by reason seen`. A run: `key fence host user pid command description anyway started ended waited_ms ran_ms end bad reason`, where `end` is `running`,
//! `ok`, `exit N`, `signal N`, `not started`, `released`, `expired`, `lost`, `broken` or `forgotten`. SkipCount of a host: `host count since last reason`. A waiter: `host user pid command description
//! waiting_for_ms in_order`. An error: `kind message hint operation key backend effect causes`, where `effect` says whether the
//! failed step happened in the store all the same: `not_applied`, `applied` or `unknown`. A `command`: `status` or `signal`. `released`:
//! `yes`, `nested` (an outer run keeps it), `not_held` or `unknown`.
//! `run` prints its object as the last line of stderr, since stdout is the command's.

mod explained;
mod keys;
mod names;
mod parts;
#[cfg(test)]
mod tests;

use std::time::Duration;

use serde::Serialize;

pub use self::parts::{
    BreakReport, DeniedReport, ErrorReport, HolderReport, LockReport, PacedReport, PastReport, SkipsReport, StartReport, mode,
};
pub use self::{
    explained::ExplainedReport,
    keys::{AllRuns, HostBroken, KnownKeys},
    names::Named,
};
use super::{Cause, Lock, Now, Skip, history::RunOf, time::millis};
use crate::{
    exit,
    lease::Lease,
    lock::{self, Break, Error, Fence, Key, SkipCount},
};

/// The name of the schema.
pub const SCHEMA: &str = "dlock/1";

/// `report` as a line.
pub fn line(report: &impl Serialize) -> String {
    // Plain data with text for keys: this can't fail.
    let mut text = serde_json::to_string(report).unwrap_or_else(|_| format!("{{\"schema\":\"{SCHEMA}\",\"result\":\"error\"}}"));
    text.push('\n');
    text
}

/// What every object begins with.
#[derive(Debug, Serialize)]
pub(super) struct Head {
    schema: &'static str,
    result: &'static str,
    status: u8,
}

pub(super) const fn head(result: &'static str, status: u8) -> Head {
    Head { schema: SCHEMA, result, status }
}

/// Declares reports: the head, and fields in the order they are printed.
macro_rules! report {
    ($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Serialize)]
        pub struct $name<'a> {
            #[serde(flatten)]
            head: Head,
            $($field: $type,)*
        }
    };
}

report!(
    /// `acquire` took the lock, or all of them; the first that was named stands before them.
    Acquired {
        key: &'a str,
        backend: String,
        token: String,
        fence: u64,
        permit: Option<u32>,
        ttl_ms: u64,
        keys: Vec<AcquiredKey<'a>>,
    }
);
report!(
    /// `renew` extended the lease.
    Renewed { key: &'a str, backend: &'a str, fence: Option<u64>, ttl_ms: u64 }
);
report!(
    /// `verify` found it held.
    Verified { key: &'a str, backend: &'a str, expires_in_ms: Option<u64> }
);
report!(
    /// `release` gave it back.
    Released { key: &'a str, backend: &'a str, holds: u32 }
);
report!(
    /// The store is as it has to be.
    Initialized { backend: &'a str, done: &'static str }
);
report!(
    /// A text that dlock knows by itself: a man page, completions, help, its version.
    Printed { text: &'a str }
);
report!(
    /// What `init` would do.
    Schema { backend: &'a str, text: Option<String> }
);
report!(
    /// What was not used is gone.
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
    /// The lock was taken away from its holder.
    WasBroken { key: &'a str, backend: &'a str, fence: u64, how: &'static str, waited_ms: u64 }
);
report!(
    /// The run records of a lock are gone, as they were.
    Forgotten { key: &'a str, backend: &'a str, cooldown: Option<PacedReport<'a>>, once: Option<StartReport<'a>> }
);
report!(
    /// What the store remembers of a lock.
    Remembered {
        key: &'a str,
        backend: &'a str,
        runs: Vec<PastReport<'a>>,
        cooldown: Option<PacedReport<'a>>,
        once: Option<StartReport<'a>>,
        skips: Vec<SkipsReport<'a>>,
    }
);
report!(
    /// A signal ended the wait.
    Interrupted { key: &'a str, signal: i32 }
);
report!(
    /// Another process has the lock.
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
    /// Something went wrong.
    Failed { error: ErrorReport<'a> }
);

/// One of the locks that were taken.
#[derive(Debug, Serialize)]
struct AcquiredKey<'a> {
    key: &'a str,
    token: String,
    fence: u64,
}

impl<'a> Acquired<'a> {
    /// Of new leases, one at least.
    pub fn new(leases: &[&'a Lease], backend: String) -> Self {
        let first = leases[0];
        let key = |lease: &&'a Lease| AcquiredKey { key: lease.key.as_str(), token: lease.token.reveal(), fence: lease.fence.0 };
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
    /// Of a lease from now on.
    pub fn new(key: &'a Key, backend: &'a str, left: Duration, fence: Option<Fence>) -> Self {
        Self { head: head("ok", exit::OK), key: key.as_str(), backend, fence: fence.map(|fence| fence.0), ttl_ms: millis(left) }
    }
}

impl<'a> Verified<'a> {
    /// With so much of its lease left.
    pub fn new(key: &'a Key, backend: &'a str, left: Option<Duration>) -> Self {
        Self { head: head("ok", exit::OK), key: key.as_str(), backend, expires_in_ms: left.map(millis) }
    }
}

impl<'a> Released<'a> {
    /// With so many holds left.
    pub fn new(key: &'a Key, backend: &'a str, holds: u32) -> Self {
        Self { head: head("ok", exit::OK), key: key.as_str(), backend, holds }
    }
}

impl<'a> Initialized<'a> {
    /// Of what was done.
    pub fn new(done: &lock::Init, backend: &'a str) -> Self {
        let done = match done {
            lock::Init::NotNeeded => "not_needed",
            lock::Init::UpToDate => "up_to_date",
            lock::Init::Created => "created",
        };
        Self { head: head("ok", exit::OK), backend, done }
    }
}

impl<'a> Printed<'a> {
    /// Word for word.
    pub const fn new(text: &'a str) -> Self {
        Self { head: head("ok", exit::OK), text }
    }
}

impl<'a> Schema<'a> {
    /// In the store's own language.
    pub fn new(schema: Option<String>, backend: &'a str) -> Self {
        Self { head: head("ok", exit::OK), backend, text: schema }
    }
}

impl<'a> Collected<'a> {
    /// So many locks.
    pub fn new(removed: u64, backend: &'a str) -> Self {
        Self { head: head("ok", exit::OK), backend, removed }
    }
}

impl<'a> NotHeld<'a> {
    /// Of this lock.
    pub fn new(key: &'a Key, backend: &'a str) -> Self {
        Self { head: head("not_held", exit::NOT_HELD), key: key.as_str(), backend }
    }
}

impl<'a> ToBeBroken<'a> {
    /// By this mark.
    pub fn new(key: &'a Key, backend: &'a str, mark: &'a Break) -> Self {
        Self { head: head("broken", exit::NOT_HELD), key: key.as_str(), backend, broken: BreakReport::new(mark) }
    }
}

impl<'a> WasBroken<'a> {
    /// This hold, in this way.
    pub fn new(key: &'a Key, backend: &'a str, fence: Fence, how: &'static str, waited: Duration) -> Self {
        Self { head: head("ok", exit::OK), key: key.as_str(), backend, fence: fence.0, how, waited_ms: millis(waited) }
    }
}

impl<'a> Forgotten<'a> {
    /// This record.
    pub fn new(key: &'a Key, backend: &'a str, record: &'a lock::RunRecord) -> Self {
        let (cooldown, once) = (record.cooldown.as_ref().map(PacedReport::new), record.start.as_ref().map(StartReport::new));
        Self { head: head("ok", exit::OK), key: key.as_str(), backend, cooldown, once }
    }
}

impl<'a> Remembered<'a> {
    /// These runs, starts and skips.
    pub fn new(key: &'a Key, backend: &'a str, runs: &'a [RunOf], record: &'a lock::RunRecord, skips: &'a [SkipCount]) -> Self {
        let runs = runs.iter().map(|run| PastReport::new(key, run)).collect();
        let skips = skips.iter().map(SkipsReport::new).collect();
        let (cooldown, once) = (record.cooldown.as_ref().map(PacedReport::new), record.start.as_ref().map(StartReport::new));
        Self { head: head("ok", exit::OK), key: key.as_str(), backend, runs, cooldown, once, skips }
    }
}

impl<'a> Interrupted<'a> {
    /// By this signal.
    pub fn new(key: &'a Key, signal: i32, status: u8) -> Self {
        Self { head: head("interrupted", status), key: key.as_str(), signal }
    }
}

impl<'a> Busy<'a> {
    /// Of a lock that was not taken.
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
            holders: busy.map(|busy| busy.holders.iter().map(|holder| HolderReport::new(holder, now)).collect()).unwrap_or_default(),
            refused,
        }
    }
}

impl<'a> Failed<'a> {
    /// For this reason.
    pub fn new(error: &'a Error, status: u8) -> Self {
        Self { head: head("error", status), error: ErrorReport::new(error) }
    }
}

/// `inspect`.
#[derive(Debug, Serialize)]
pub struct Inspected<'a> {
    #[serde(flatten)]
    head: Head,
    backend: &'a str,
    #[serde(flatten)]
    lock: LockReport<'a>,
}

impl<'a> Inspected<'a> {
    /// Of this lock.
    pub fn new(lock: &'a Lock, backend: &'a str, now: &Now) -> Self {
        Self { head: head("ok", exit::OK), backend, lock: LockReport::new(lock, now) }
    }
}

/// `list`.
#[derive(Debug, Serialize)]
pub struct Listed<'a> {
    #[serde(flatten)]
    head: Head,
    backend: &'a str,
    locks: Vec<LockReport<'a>>,
}

impl<'a> Listed<'a> {
    /// Of these locks.
    pub fn new(locks: &'a [Lock], backend: &'a str, now: &Now) -> Self {
        Self { head: head("ok", exit::OK), backend, locks: locks.iter().map(|lock| LockReport::new(lock, now)).collect() }
    }
}
