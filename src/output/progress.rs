//! What a `dlock run` says of itself until it is over: in its status file, and in syslog.

use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;

use super::{Now, holders, json, time};
use crate::lock::{Busy, Fence, Key, printable};

/// A run that is not over.
#[derive(Debug)]
pub struct Progress {
    key: Key,
    /// The store, without secrets.
    backend: String,
    began: Timestamp,
}

impl Progress {
    /// Creates the progress of a run that begins now.
    pub fn new(key: &Key, backend: &str) -> Self {
        Self {
            key: key.clone(),
            backend: backend.to_owned(),
            began: Timestamp::now(),
        }
    }

    /// Returns the JSON object for the status file before the run has its locks, as a line. `busy`
    /// is the lock that it waits for, as the store last described it.
    pub fn waiting(&self, busy: Option<(&Key, &Busy)>) -> String {
        let now = Now::read();
        let holders = busy.map(|(_, busy)| &*busy.holders).unwrap_or_default();
        json::line(&WaitingReport {
            schema: json::SCHEMA,
            result: "waiting",
            status: (),
            key: self.key.as_str(),
            backend: &self.backend,
            pid: std::process::id(),
            began: time::rfc3339(self.began),
            by: busy.map(|(key, _)| key.as_str()),
            holders: holders
                .iter()
                .map(|holder| json::HolderReport::new(holder, &now))
                .collect(),
        })
    }

    /// Returns the JSON object for the status file while the command runs, as a line.
    pub fn running(&self, fence: Option<Fence>, started: Timestamp) -> String {
        json::line(&Running {
            schema: json::SCHEMA,
            result: "running",
            status: (),
            key: self.key.as_str(),
            backend: &self.backend,
            pid: std::process::id(),
            began: time::rfc3339(self.began),
            fence: fence.map(|fence| fence.0),
            started: time::rfc3339(started),
        })
    }

    /// Returns the line for syslog once a run that waited has the lock:
    /// `importer acquired fence=812 waited=3.200s`.
    pub fn acquired(&self, fence: Option<Fence>, waited: Duration) -> String {
        let fence = fence.map_or_else(String::new, |fence| format!(" fence={fence}"));
        let waited = waited.as_secs_f64();
        let key = super::verdict::word(self.key.as_str());
        format!("{key} acquired{fence} waited={waited:.3}s")
    }
}

/// Returns a phrase for a wait: `waiting for importer: app@web3`.
pub fn waiting_for(key: &Key, busy: &Busy) -> String {
    let holder = busy
        .holders
        .first()
        .map_or_else(|| "another process".into(), holders::holder);
    printable(&format!("waiting for {}: {holder}", key.escaped())).into_owned()
}

/// `run`: what its status file says until it has its locks.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct WaitingReport<'a> {
    schema: &'static str,
    result: &'static str,
    status: (),
    key: &'a str,
    backend: &'a str,
    pid: u32,
    began: time::Time,
    /// The key that it waits for; unknown until the store has answered.
    by: Option<&'a str>,
    holders: Vec<json::HolderReport<'a>>,
}

/// `run`: what its status file says while the command runs.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct Running<'a> {
    schema: &'static str,
    result: &'static str,
    status: (),
    key: &'a str,
    backend: &'a str,
    pid: u32,
    /// When dlock began to ask for the lock.
    began: time::Time,
    fence: Option<u64>,
    /// When it had the lock.
    started: time::Time,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grant_after_a_wait_is_one_line() {
        let progress = Progress::new(&Key::new("the importer").unwrap(), "redis://r1:6379");
        assert_eq!(
            progress.acquired(Some(Fence(812)), Duration::from_millis(3200)),
            "\"the importer\" acquired fence=812 waited=3.200s"
        );
    }
}
