//! A probe of a waiter, by which the queue monitor learns whether the waiter lives, as it is
//! stored.

use super::{messages::KeyValue, names::EtcdNames};

/// The value that a probed waiter writes into its probe, once it has extended its lease.
pub(super) const HERE: &str = "here";

/// A probe of a waiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Probe {
    /// Not answered. The number is how long the waiter's lease had not been extended when the probe
    /// was made.
    Open(i64),
    Answered,
}

/// Returns the probes among the keys below a lock's last fence: the lease of each probed waiter,
/// and the probe's content.
pub(super) fn probes(names: &EtcdNames, keys: &[KeyValue]) -> Vec<(i64, Probe)> {
    let folder = names.probes();
    let probe = |kv: &KeyValue| {
        let lease =
            i64::from_str_radix(str::from_utf8(&kv.key).ok()?.strip_prefix(&*folder)?, 16).ok()?;
        let value = str::from_utf8(&kv.value).ok()?;
        Some((
            lease,
            if value == HERE {
                Probe::Answered
            } else {
                Probe::Open(value.parse().ok()?)
            },
        ))
    };
    keys.iter().filter_map(probe).collect()
}
