//! What is said of SQL servers in the same words, whatever the dialect.

use super::{Options, Server, TlsMode};
use crate::{
    backends::net::transport,
    lock::{Finding, Severity},
};

/// The way to the server.
pub fn tls(options: &Options, fix: &str) -> Finding {
    let host = match &options.server {
        Server::Unix { .. } => None,
        Server::Tcp { host, .. } => Some(host.as_str()),
    };
    match (options.tls, host.filter(|_| !options.server.is_local())) {
        (TlsMode::VerifyFull, _) => transport::verified(),
        (_, None) | (TlsMode::Disable, Some(_)) => transport::in_clear(host, options.password.is_some(), fix),
        (TlsMode::VerifyCa, Some(host)) => Finding::warn(
            transport::CHECK.id,
            format!("TLS to {host}, by a certificate of a known authority for any host"),
            "anyone with such a certificate can answer in the server's place",
        )
        .fix(fix),
        (TlsMode::Require | TlsMode::Prefer, Some(host)) => {
            let how = if options.tls == TlsMode::Prefer { "TLS if the server can" } else { "TLS" };
            let risk = "an attacker in between gets the password and every lock's token";
            Finding::warn(transport::CHECK.id, format!("{how} to {host}, and any server that answers is believed"), risk).fix(fix)
        }
    }
}

/// How many sessions are used of those that there can be.
pub fn sessions(check: &'static str, used: i64, most: i64) -> Finding {
    let text = format!("{used} of {most} sessions are used; each waiter takes one");
    if used > most / 10 * 8 {
        return Finding::warn(check, text, "new connections are then refused, also those of a holder that must reconnect")
            .fix("raise max_connections");
    }
    Finding::ok(check, text)
}

/// Whether `init` reports findings, too.
pub fn is_bad(finding: &Finding) -> bool {
    finding.severity != Severity::Ok
}
