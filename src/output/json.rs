//! The output of `--json`: exactly one object on one line, on failure too. This is the schema
//! `dlock/1`.
//!
//! Every object has `schema`, `result` and `status` (the exit status). Times are RFC 3339 in UTC,
//! durations are whole milliseconds (`…_ms`), and unknown values are `null`. Fields may be added to
//! this schema; no field is removed or changes its meaning.
//!
//! | result | status | other fields |
//! |---|---|---|
//! | `ok` of acquire, hold | 0 | `key backend token fence permit ttl_ms keys`; an entry of `keys` is `key token fence`; hold prints it when it takes the lock |
//! | `ok` of verify | 0 | `key backend expires_in_ms` |
//! | `ok` of renew | 0 | `key backend fence ttl_ms`; no fence if the lease was longer already |
//! | `ok` of release | 0 | `key backend holds`: the owner's remaining holds, which keep the lock |
//! | `ok` of inspect | 0 | `backend` and a lock |
//! | `ok` of names | 0 | `key backend stored_as libraries`: `library excludes code namespace about`, where `excludes` is `both_ways`, `one_way` or `no` |
//! | `ok` of list | 0 | `backend locks`: an array of locks |
//! | `ok` of list --all | 0 | `backend keys`: `key last last_ok runs skips usually_every_ms late`, `last` a run |
//! | `ok` of history | 0 | `key backend runs cooldown once skips`; without a key `backend runs` |
//! | `ok` of explain | 0 | `key backend stored_as would reason holders refused settings`; `would` is `run`, `wait` or `skip` |
//! | `ok` of break | 0 | `key backend fence how waited_ms`; `how` is `given_back` (released, or its lease ended) or `evicted` |
//! | `ok` of forget | 0 | `key backend cooldown once`: the removed run records, `null` if there were none |
//! | `ok`, `error`, `interrupted` of break --host | 0; as `error`; 128+N | `host backend holds`: `key fence how error`; `how` may be `changed`: nothing was done |
//! | `ok` of init | 0 | `backend done`: `not_needed`, `up_to_date` or `created` |
//! | `ok` of completions, man, help, `--version` | 0 | `text`, if `--json` is on the command line |
//! | `ok` of run | the command's | `key backend fence keys permit by started waited_ms ran_ms command released holders error`; `by` is the busy or denied key |
//! | `ok`, `warn`, `unsafe` of doctor | 0, 1, 2; 69, 78 | `backend name from findings round_trip_us hand_over_us settings error` ([`super::doctor`]) |
//! | `busy` | 75 or `-E` | `key backend waited_ms expires_in_ms position holders`; of run as `ok` |
//! | `lost` of run | 76 | as `ok` of run |
//! | `broken` of run | 76 | as `ok` of run |
//! | `broken` of renew | 77 | `key backend broken` |
//! | `not_held` | 77 | `key backend` |
//! | `interrupted` | 128+N | `key signal`; of run as `ok` |
//! | `error` | 64 to 78, 126, 127 | `error`; of run, once it began, as `ok` |
//!
//! Parts of these objects:
//! - a lock: `key stored_as held refused_until refused last_fence holders waiters nodes`;
//! - `refused`, if an earlier run denies a free lock: `reason host user pid fence began state
//!   again_in_ms`;
//! - a node, if several nodes decide on a lock: `node held others fence expires_in_ms error`;
//!   `others`: another owner holds it there;
//! - a holder: `mode permit permits host user pid boot_id pid_ns command description anyway fence
//!   foreign detached since held_for_ms renewed_ago_ms expires_in_ms holds broken`; `broken`, if an
//!   operator is breaking it: `by reason seen`;
//! - a run: `key fence host user pid command description anyway started ended waited_ms ran_ms end
//!   bad reason`; `end` is `running`, `ok`, `exit N`, `signal N`, `not started`, `released`,
//!   `expired`, `lost`, `broken` or `forgotten`;
//! - the skips of a host: `host count since last reason`; a waiter: `host user pid command
//!   description waiting_for_ms in_order`;
//! - an error: `kind message hint operation key backend effect causes`; `effect` says whether the
//!   failed step changed the store: `not_applied`, `applied` or `unknown`;
//! - `command`: `status` or `signal`; `released`: `yes`, `nested` (an outer run keeps the lock),
//!   `not_held` or `unknown`.
//!
//! `run` prints its object as the last line of stderr, because stdout belongs to the command.

mod explained;
mod keys;
mod names;
mod parts;
#[cfg(test)]
mod tests;

use std::time::Duration;

use serde::Serialize;

pub use self::parts::{
    BreakReport, CooldownReport, DeniedReport, ErrorReport, HistoryEntryReport, HolderReport,
    LastRunReport, LockReport, SkipCountReport, mode,
};
pub use self::{
    explained::ExplainedReport,
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
    ($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Serialize)]
        pub struct $name<'a> {
            #[serde(flatten)]
            head: ReportHead,
            $($field: $type,)*
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
    Initialized { backend: &'a str, done: &'static str }
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
    WasBroken { key: &'a str, backend: &'a str, fence: u64, how: &'static str, waited_ms: u64 }
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
    pub fn new(done: &lock::Init, backend: &'a str) -> Self {
        let done = match done {
            lock::Init::NotNeeded => "not_needed",
            lock::Init::UpToDate => "up_to_date",
            lock::Init::Created => "created",
        };
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

/// `inspect`.
#[derive(Debug, Serialize)]
pub struct InspectReport<'a> {
    #[serde(flatten)]
    head: ReportHead,
    backend: &'a str,
    #[serde(flatten)]
    lock: LockReport<'a>,
}

impl<'a> InspectReport<'a> {
    /// Reports one lock.
    pub fn new(lock: &'a LockView, backend: &'a str, now: &Now) -> Self {
        Self {
            head: head("ok", exit::OK),
            backend,
            lock: LockReport::new(lock, now),
        }
    }
}

/// `list`.
#[derive(Debug, Serialize)]
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
