//! What is said of SQL servers in the same words, whatever the dialect.

use super::{Options, Server, TlsMode};
use crate::{
    backends::net::transport,
    lock::{Finding, Severity},
};

/// The way to the server.
pub fn tls(options: &Options, mend: &str) -> Finding {
    let host = match &options.server {
        Server::Unix { .. } => None,
        Server::Tcp { host, .. } => Some(host.as_str()),
    };
    match (options.tls, host.filter(|_| !options.server.is_local())) {
        (TlsMode::VerifyFull, _) => transport::verified(),
        (_, None) | (TlsMode::Disable, Some(_)) => transport::in_clear(host, options.password.is_some(), mend),
        (TlsMode::VerifyCa, Some(host)) => Finding::warn(
            transport::CHECK.id,
            format!("TLS to {host}, by a certificate of a known authority for any host"),
            "whoever has one can answer in the server's place",
        )
        .mend(mend),
        (TlsMode::Require | TlsMode::Prefer, Some(host)) => {
            let how = if options.tls == TlsMode::Prefer { "TLS if the server can" } else { "TLS" };
            let risk = "whoever gets in between has the password, and every lock's token";
            Finding::warn(transport::CHECK.id, format!("{how} to {host}, and whoever answers is believed"), risk).mend(mend)
        }
    }
}

/// How many sessions are used of those that there can be.
pub fn sessions(check: &'static str, used: i64, most: i64) -> Finding {
    let text = format!("{used} of {most} sessions are used; each waiter takes one");
    if used > most / 10 * 8 {
        return Finding::warn(check, text, "who comes then is refused, and so is a holder that must connect anew")
            .mend("raise max_connections");
    }
    Finding::ok(check, text)
}

/// Whether what is not fine is to be told at `init`, too.
pub fn is_bad(finding: &Finding) -> bool {
    finding.severity != Severity::Ok
}
