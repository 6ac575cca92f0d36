//! The object of `dlock inspect`.

use serde::Serialize;

use super::{
    super::{
        LockView, Now,
        time::{Time, millis, rfc3339_ms},
        usual::EarlierRuns,
    },
    HistoryEntryReport, LockReport, ReportHead, head,
};
use crate::exit;

/// `inspect`.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct InspectReport<'a> {
    #[serde(flatten)]
    head: ReportHead,
    backend: &'a str,
    #[serde(flatten)]
    lock: LockReport<'a>,
    /// The last run that ended.
    last_run: Option<HistoryEntryReport<'a>>,
    /// The start of the last successful run.
    last_ok: Option<Time>,
    usual: Option<UsualReport>,
}

/// How long runs usually take: nine of ten successful runs are between both lengths.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct UsualReport {
    least_ms: u64,
    most_ms: u64,
}

impl<'a> InspectReport<'a> {
    /// Reports one lock.
    pub fn new(lock: &'a LockView, earlier: &'a EarlierRuns, backend: &'a str, now: &Now) -> Self {
        let last = earlier.last.as_ref();
        Self {
            head: head("ok", exit::OK),
            backend,
            lock: LockReport::new(lock, now),
            last_run: last.map(|run| HistoryEntryReport::new(&lock.state.key, run)),
            last_ok: earlier.ok_ms.and_then(rfc3339_ms),
            usual: earlier.usual.map(|usual| UsualReport {
                least_ms: millis(usual.least),
                most_ms: millis(usual.most),
            }),
        }
    }
}
