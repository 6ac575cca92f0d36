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
//! | `ok` of list | 0 | `backend locks`: an array of locks |
//! | `ok` of history | 0 | `key backend runs skips` |
//! | `ok` of break | 0 | `key backend fence how waited_ms`; `how` is `given_back` (or its lease ended) or `evicted` |
//! | `ok` of init | 0 | `backend done`: `not_needed`, `up_to_date` or `created` |
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
//! A lock: `key stored_as held last_fence holders waiters nodes`. A node, of a store of several that decide together: `node held others
//! fence expires_in_ms error`; `others` if it is held there by somebody else than the holder. A holder: `mode permit permits host user pid boot_id pid_ns command description fence
//! foreign detached since held_for_ms renewed_ago_ms expires_in_ms holds broken`; `broken`, if somebody is breaking it: `by reason seen`. A run: `fence host user pid command description started ended ran_ms end bad reason`, where `end` is `running`,
//! `ok`, `exit N`, `signal N`, `not started`, `released`, `expired`, `lost` or `broken`. Skips of a host: `host count since last reason`. A waiter: `host user pid command description
//! waiting_for_ms`. An error: `kind message hint operation key backend effect causes`, where `effect` says whether the
//! failed step happened in the store all the same: `not_applied`, `applied` or `unknown`. A `command`: `status` or `signal`. `released`:
//! `yes`, `nested` (an outer run keeps it), `not_held` or `unknown`.
//!
//! `run` prints its object as the last line of stderr, since stdout is the command's.

use std::{error::Error as _, time::Duration};

use serde::Serialize;

use super::{
    Cause, Now, Skip,
    history::RunOf,
    time::{millis, rfc3339_ms},
};
use crate::{
    exit,
    lease::Lease,
    lock::{self, Break, Effect, End, Error, Fence, Holder, Key, Kind, LockState, Mode, NodeView, Refusal, Rule, Skips, Waiter},
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
    /// What `init` would do.
    Schema { backend: &'a str, text: Option<String> }
);
report!(
    /// What nobody used is gone.
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
    /// What the store remembers of a lock.
    Remembered {
        key: &'a str,
        backend: &'a str,
        runs: Vec<PastReport<'a>>,
        paced: Option<PacedReport<'a>>,
        once: Option<StartReport<'a>>,
        skips: Vec<SkipsReport<'a>>,
    }
);
report!(
    /// A signal ended the wait.
    Interrupted { key: &'a str, signal: i32 }
);
report!(
    /// Somebody else has the lock.
    Busy {
        key: &'a str,
        backend: &'a str,
        waited_ms: u64,
        expires_in_ms: Option<u64>,
        position: Option<u32>,
        holders: Vec<HolderReport<'a>>,
        refused: Option<RefusedReport<'a>>,
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

impl<'a> Remembered<'a> {
    /// These runs, starts and skips.
    pub fn new(key: &'a Key, backend: &'a str, runs: &'a [RunOf], record: &'a lock::Record, skips: &'a [Skips]) -> Self {
        let runs = runs.iter().map(PastReport::new).collect();
        let skips = skips.iter().map(SkipsReport::new).collect();
        let (paced, once) = (record.paced.as_ref().map(PacedReport::new), record.start.as_ref().map(StartReport::new));
        Self { head: head("ok", exit::OK), key: key.as_str(), backend, runs, paced, once, skips }
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
            Cause::Refused(refusal, option) => (None, Some(RefusedReport::new(refusal, option, now))),
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

/// One lock.
#[derive(Debug, Serialize)]
pub struct LockReport<'a> {
    key: &'a str,
    stored_as: &'a str,
    held: bool,
    last_fence: Option<u64>,
    holders: Vec<HolderReport<'a>>,
    waiters: Vec<WaiterReport<'a>>,
    nodes: Vec<NodeReport<'a>>,
}

impl<'a> LockReport<'a> {
    fn new(state: &'a LockState, now: &Now) -> Self {
        Self {
            key: state.key.as_str(),
            stored_as: &state.stored_as,
            held: !state.holders.is_empty(),
            last_fence: state.last_fence.map(|fence| fence.0),
            holders: state.holders.iter().map(|holder| HolderReport::new(holder, now)).collect(),
            waiters: state.waiters.iter().map(WaiterReport::new).collect(),
            nodes: state.nodes.iter().map(NodeReport::new).collect(),
        }
    }
}

#[derive(Debug, Serialize)]
struct NodeReport<'a> {
    node: &'a str,
    held: Option<bool>,
    others: bool,
    fence: Option<u64>,
    expires_in_ms: Option<u64>,
    error: Option<&'a str>,
}

impl<'a> NodeReport<'a> {
    fn new(node: &'a NodeView) -> Self {
        Self {
            node: &node.node,
            held: node.held,
            others: node.others,
            fence: node.fence.map(|fence| fence.0),
            expires_in_ms: node.expires_in.map(millis),
            error: node.error.as_deref(),
        }
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
    pub fn new(state: &'a LockState, backend: &'a str, now: &Now) -> Self {
        Self { head: head("ok", exit::OK), backend, lock: LockReport::new(state, now) }
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
    pub fn new(states: &'a [LockState], backend: &'a str, now: &Now) -> Self {
        Self { head: head("ok", exit::OK), backend, locks: states.iter().map(|state| LockReport::new(state, now)).collect() }
    }
}

/// One hold.
#[derive(Debug, Serialize)]
pub struct HolderReport<'a> {
    mode: &'static str,
    permit: Option<u32>,
    permits: Option<u32>,
    host: Option<&'a str>,
    user: Option<&'a str>,
    pid: Option<u32>,
    boot_id: Option<&'a str>,
    pid_ns: Option<u64>,
    command: Option<&'a str>,
    description: Option<&'a str>,
    fence: Option<u64>,
    foreign: bool,
    detached: bool,
    since: Option<String>,
    held_for_ms: Option<u64>,
    renewed_ago_ms: Option<u64>,
    expires_in_ms: Option<u64>,
    holds: u32,
    broken: Option<BreakReport<'a>>,
}

/// A run that keeps a free lock from others.
#[derive(Debug, Serialize)]
pub struct RefusedReport<'a> {
    reason: &'a str,
    host: Option<&'a str>,
    user: Option<&'a str>,
    pid: Option<u32>,
    fence: Option<u64>,
    began: Option<String>,
    state: Option<&'static str>,
    again_in_ms: Option<u64>,
}

impl<'a> RefusedReport<'a> {
    /// By what was asked with this option; `now` dates it.
    pub fn new(refusal: &'a Refusal, option: &'a str, now: &Now) -> Self {
        let metadata = refusal.metadata.as_ref();
        Self {
            reason: option,
            host: metadata.and_then(|m| m.host.as_deref()),
            user: metadata.and_then(|m| m.user.as_deref()),
            pid: metadata.and_then(|m| m.pid),
            fence: refusal.fence.map(|fence| fence.0),
            began: refusal.began.and_then(|ago| now.utc_before(ago)),
            state: match refusal.rule {
                Rule::Once(stage) => Some(stage.as_str()),
                Rule::SkewGuard(_) | Rule::AtLeast(_) => None,
            },
            again_in_ms: refusal.again_in.map(millis),
        }
    }
}

/// A start that is kept from others for a while.
#[derive(Debug, Serialize)]
pub struct PacedReport<'a> {
    fence: u64,
    host: Option<&'a str>,
    user: Option<&'a str>,
    began: Option<String>,
    skew_guard_ms: u64,
    at_least_ms: u64,
}

impl<'a> PacedReport<'a> {
    fn new(paced: &'a lock::Paced) -> Self {
        let metadata = paced.metadata.as_ref();
        Self {
            fence: paced.fence.0,
            host: metadata.and_then(|m| m.host.as_deref()),
            user: metadata.and_then(|m| m.user.as_deref()),
            began: rfc3339_ms(paced.at_ms),
            skew_guard_ms: paced.guard_ms,
            at_least_ms: paced.at_least_ms,
        }
    }
}

/// The last start of a run that was to be the only one for some time.
#[derive(Debug, Serialize)]
pub struct StartReport<'a> {
    fence: u64,
    host: Option<&'a str>,
    user: Option<&'a str>,
    began: Option<String>,
    state: &'static str,
    tries: u32,
    window_ms: u64,
}

impl<'a> StartReport<'a> {
    fn new(start: &'a lock::Start) -> Self {
        let metadata = start.metadata.as_ref();
        Self {
            fence: start.fence.0,
            host: metadata.and_then(|m| m.host.as_deref()),
            user: metadata.and_then(|m| m.user.as_deref()),
            began: rfc3339_ms(start.at_ms),
            state: start.stage.as_str(),
            tries: start.tries,
            window_ms: start.window_ms,
        }
    }
}

/// Who is breaking a hold.
#[derive(Debug, Serialize)]
pub struct BreakReport<'a> {
    by: &'a str,
    reason: Option<&'a str>,
    seen: bool,
}

impl<'a> BreakReport<'a> {
    /// Of this mark.
    pub fn new(mark: &'a Break) -> Self {
        Self { by: &mark.by, reason: mark.why.as_deref(), seen: mark.seen }
    }
}

impl<'a> HolderReport<'a> {
    /// Of this hold; `now` dates it.
    pub fn new(holder: &'a Holder, now: &Now) -> Self {
        let metadata = holder.metadata.as_ref();
        Self {
            mode: mode(holder.mode),
            permit: holder.permit,
            permits: if let Mode::Permits(most) = holder.mode { Some(most) } else { None },
            host: metadata.and_then(|m| m.host.as_deref()),
            user: metadata.and_then(|m| m.user.as_deref()),
            pid: metadata.and_then(|m| m.pid),
            boot_id: metadata.and_then(|m| m.boot_id.as_deref()),
            pid_ns: metadata.and_then(|m| m.pid_ns),
            command: metadata.and_then(|m| m.command.as_deref()),
            description: metadata.and_then(|m| m.description.as_deref()),
            fence: holder.fence.map(|fence| fence.0),
            foreign: holder.foreign,
            detached: holder.detached,
            since: holder.held_for.and_then(|ago| now.utc_before(ago)),
            held_for_ms: holder.held_for.map(millis),
            renewed_ago_ms: holder.renewed_ago.map(millis),
            expires_in_ms: holder.expires_in.map(millis),
            holds: holder.holds,
            broken: holder.broken.as_ref().map(BreakReport::new),
        }
    }
}

/// One run.
#[derive(Debug, Serialize)]
pub struct PastReport<'a> {
    fence: Option<u64>,
    host: Option<&'a str>,
    user: Option<&'a str>,
    pid: Option<u32>,
    command: Option<&'a str>,
    description: Option<&'a str>,
    started: Option<String>,
    ended: Option<String>,
    ran_ms: Option<u64>,
    end: String,
    bad: bool,
    reason: Option<&'a str>,
}

impl<'a> PastReport<'a> {
    fn new(run: &'a RunOf) -> Self {
        let metadata = run.metadata.as_ref();
        Self {
            fence: run.fence.map(|fence| fence.0),
            host: metadata.and_then(|m| m.host.as_deref()),
            user: metadata.and_then(|m| m.user.as_deref()),
            pid: metadata.and_then(|m| m.pid),
            command: metadata.and_then(|m| m.command.as_deref()),
            description: metadata.and_then(|m| m.description.as_deref()),
            started: run.started_ms.and_then(rfc3339_ms),
            ended: run.ended_ms.and_then(rfc3339_ms),
            ran_ms: run.end.as_ref().and_then(|_| run.ran_ms(0)),
            end: run.end.as_ref().map_or_else(|| "running".into(), ToString::to_string),
            bad: run.end.as_ref().is_some_and(End::is_bad),
            reason: run.why.as_deref(),
        }
    }
}

#[derive(Debug, Serialize)]
struct SkipsReport<'a> {
    host: &'a str,
    count: u64,
    since: Option<String>,
    last: Option<String>,
    reason: &'a str,
}

impl<'a> SkipsReport<'a> {
    fn new(skips: &'a Skips) -> Self {
        let (since, last) = (skips.since_ms.and_then(rfc3339_ms), skips.last_ms.and_then(rfc3339_ms));
        Self { host: &skips.host, count: skips.count, since, last, reason: &skips.reason }
    }
}

/// A mode in a word.
pub const fn mode(mode: Mode) -> &'static str {
    match mode {
        Mode::Exclusive => "exclusive",
        Mode::Shared => "shared",
        Mode::Permits(_) => "permits",
    }
}

#[derive(Debug, Serialize)]
struct WaiterReport<'a> {
    host: Option<&'a str>,
    user: Option<&'a str>,
    pid: Option<u32>,
    command: Option<&'a str>,
    description: Option<&'a str>,
    waiting_for_ms: Option<u64>,
}

impl<'a> WaiterReport<'a> {
    fn new(waiter: &'a Waiter) -> Self {
        let metadata = waiter.metadata.as_ref();
        Self {
            host: metadata.and_then(|m| m.host.as_deref()),
            user: metadata.and_then(|m| m.user.as_deref()),
            pid: metadata.and_then(|m| m.pid),
            command: metadata.and_then(|m| m.command.as_deref()),
            description: metadata.and_then(|m| m.description.as_deref()),
            waiting_for_ms: waiter.waiting_for.map(millis),
        }
    }
}

/// One error.
#[derive(Debug, Serialize)]
pub struct ErrorReport<'a> {
    kind: &'static str,
    message: &'a str,
    hint: Option<&'a str>,
    operation: Option<&'static str>,
    key: Option<&'a str>,
    backend: Option<&'a str>,
    effect: &'static str,
    causes: Vec<String>,
}

impl<'a> ErrorReport<'a> {
    /// Of this error.
    pub fn new(error: &'a Error) -> Self {
        let mut causes = Vec::new();
        let mut cause = error.source();
        while let Some(error) = cause {
            causes.push(error.to_string());
            cause = error.source();
        }
        Self {
            kind: kind(error.kind),
            message: &error.message,
            hint: error.hint.as_deref(),
            operation: error.operation,
            key: error.key.as_ref().map(Key::as_str),
            backend: error.backend.as_deref(),
            effect: match error.effect {
                Effect::NotApplied => "not_applied",
                Effect::Applied => "applied",
                Effect::Unknown => "unknown",
            },
            causes,
        }
    }
}

const fn kind(kind: Kind) -> &'static str {
    match kind {
        Kind::Unavailable => "unavailable",
        Kind::Timeout => "timeout",
        Kind::Denied => "denied",
        Kind::Config => "config",
        Kind::Layout => "layout",
        Kind::Usage => "usage",
        Kind::Unsupported => "unsupported",
        Kind::Data => "data",
        Kind::Internal => "internal",
    }
}

#[cfg(test)]
mod tests {
    use jiff::tz::TimeZone;

    use super::*;
    use crate::lock::Metadata;

    #[test]
    fn whatever_others_wrote_it_is_one_line_of_json() {
        let metadata = Metadata { host: Some("a\n\u{1b}\"\u{202e}".into()), description: Some("x".repeat(1 << 20)), ..Metadata::default() };
        let holder = Holder {
            permit: None,
            mode: Mode::Exclusive,
            metadata: Some(metadata),
            fence: None,
            foreign: false,
            detached: true,
            held_for: Some(Duration::from_secs(60)),
            renewed_ago: None,
            expires_in: None,
            holds: 1,
            broken: None,
        };
        let state = LockState {
            key: Key::new("k").unwrap(),
            stored_as: "dlock:k".into(),
            holders: vec![holder],
            waiters: vec![],
            last_fence: None,
            nodes: vec![],
        };
        let now = Now::at("2026-11-20T02:00:00Z".parse().unwrap(), TimeZone::UTC);
        let text = line(&Inspected::new(&state, "local", &now));
        assert_eq!(text.matches('\n').count(), 1);
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!((&json["schema"], &json["result"], &json["held"]), (&"dlock/1".into(), &"ok".into(), &true.into()));
        let holder = &json["holders"][0];
        assert_eq!(holder["since"], "2026-11-20T01:59:00.000Z");
        assert_eq!(holder["host"], "a\n\u{1b}\"\u{202e}");
        assert!(holder["fence"].is_null() && holder["expires_in_ms"].is_null());
    }
}
