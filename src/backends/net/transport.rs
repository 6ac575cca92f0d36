//! Whether others can read the traffic to a store, for `doctor`.

use std::net::IpAddr;

use crate::lock::{Check, Finding, check};

/// The check that all network stores share.
pub(in crate::backends) const CHECK: Check = check(
    "tls",
    "whether the connection is encrypted, and which servers are trusted",
);

/// Whether `host` is this host, where only root could read the traffic.
pub(in crate::backends) fn is_here(host: &str) -> bool {
    host.eq_ignore_ascii_case("localhost")
        || host
            .parse::<IpAddr>()
            .is_ok_and(|address| address.is_loopback())
}

/// Returns the finding for traffic to these hosts. `fix` says how the store's URL asks for TLS.
pub(in crate::backends) fn finding<'a>(
    encrypted: bool,
    hosts: impl IntoIterator<Item = &'a str>,
    has_password: bool,
    fix: &str,
) -> Finding {
    if encrypted {
        return Finding::ok(CHECK.id, "TLS; the server's certificate was verified");
    }
    let Some(far) = hosts.into_iter().find(|host| !is_here(host)) else {
        return Finding::ok(
            CHECK.id,
            "no TLS, and no network: the store is on this host",
        );
    };
    let risk = if has_password {
        "a listener on the network gets the password and every lock's token"
    } else {
        "a listener on the network gets every lock's token, and every host that reaches the store can take and break any lock"
    };
    let what = if has_password {
        "and the password crosses"
    } else {
        "without a password: all crosses"
    };
    Finding::warn(
        CHECK.id,
        format!("no TLS to {far}, {what} the network in clear"),
        risk,
    )
    .fix(fix)
}
