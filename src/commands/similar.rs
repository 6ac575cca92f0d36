//! What people may have meant by a key or a host that the store knows nothing of.

use std::{collections::BTreeSet, time::Duration};

use super::Context;
use crate::{
    lease::{BootClock, Clock as _, bounded},
    lock::{Backend, Key, LockState, Progress, Which, printable},
    output::{Output, shell},
    settings::suggest,
};

/// How long the store may take: an answer to another question is already there.
const LIMIT: Duration = Duration::from_millis(300);

/// Most hosts that are named.
const NAMED: usize = 10;

/// Returns the keys that the store has data of, held or not, sorted; `None` if it doesn't answer in
/// time.
pub async fn known_keys(backend: &mut dyn Backend) -> Option<Vec<Key>> {
    let until = BootClock.now().plus(LIMIT);
    let ask = async {
        let progress = Progress::default();
        let known = backend.known("", Which::All, &progress).await?;
        let held = backend.list("", &progress).await?;
        Ok::<_, crate::lock::Error>((known, held))
    };
    let (known, held) = bounded(&BootClock, until, ask).await?.ok()?;
    let keys: BTreeSet<Key> = held
        .into_iter()
        .map(|lock| lock.key)
        .chain(known)
        .filter(|key| !key.is_probe())
        .collect();
    Some(keys.into_iter().collect())
}

/// Whether this is a lock that may never have been used: then the key may be mistyped.
pub const fn is_blank(state: &LockState) -> bool {
    state.holders.is_empty() && state.waiters.is_empty() && state.last_fence.is_none()
}

/// Reports that the store knows nothing of the key, if so, with the nearest key that it knows.
pub async fn tell_of_unknown(key: &Key, backend: &mut dyn Backend, context: &Context) {
    let out = &context.out;
    if out.is_json() {
        return;
    }
    let Some(known) = known_keys(backend).await else {
        return;
    };
    if known.contains(key) {
        return;
    }
    let names: Vec<&str> = known.iter().map(Key::as_str).collect();
    let near = suggest::nearest(key.as_str(), &names)
        .or_else(|| longer(key.as_str(), &names))
        .and_then(|near| known.iter().find(|key| key.as_str() == near));
    let hint = near.map_or_else(
        || "dlock list --all shows the keys that it knows".to_owned(),
        |near| format!("did you mean {}?", shell(near)),
    );
    let store = backend.identity().url;
    out.notice_with_hint(
        &format!(
            "{}: nothing is known of this key in {store}: no run, no holder",
            key.escaped()
        ),
        &hint,
    );
}

/// Returns the only name that goes on after the typed one.
fn longer<'a>(typed: &str, names: &[&'a str]) -> Option<&'a str> {
    let mut found = names.iter().filter(|name| name.starts_with(typed));
    found.next().copied().filter(|_| found.next().is_none())
}

/// Returns the text about a host without a hold, and a hint at the hosts that have some.
pub fn no_hold_of(host: &str, states: &[LockState]) -> (String, String) {
    let hosts: BTreeSet<&str> = states
        .iter()
        .flat_map(|state| &state.holders)
        .filter_map(|holder| holder.metadata.as_ref()?.host.as_deref())
        .collect();
    let hint = if hosts.is_empty() {
        "no host holds a lock".to_owned()
    } else {
        format!("hosts with locks: {}", named(hosts.iter().copied()))
    };
    let host = printable(host);
    (format!("{host} holds no lock"), hint)
}

/// Reports that no run of the host is remembered, if so, with the hosts of those that are. Its name
/// may be mistyped.
pub fn tell_of_unknown_host(host: &str, hosts: &BTreeSet<String>, out: &Output) {
    if out.is_json() || hosts.contains(host) || hosts.is_empty() {
        return;
    }
    out.notice_with_hint(
        &format!("{}: no run of this host is remembered", printable(host)),
        &format!(
            "hosts with runs: {}",
            named(hosts.iter().map(String::as_str))
        ),
    );
}

/// Returns the first of these names in a line.
fn named<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let mut names = names.peekable();
    let mut named: Vec<&str> = names.by_ref().take(NAMED).collect();
    if names.peek().is_some() {
        named.push("…");
    }
    named.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_goes_on_is_meant_if_it_is_the_only_one() {
        let names = ["nightly-report", "sms", "sms-job"];
        assert_eq!(longer("nightly", &names), Some("nightly-report"));
        assert_eq!(longer("sms", &names), None);
        assert_eq!(longer("x", &names), None);
    }
}
