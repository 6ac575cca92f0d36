//! The findings of `dlock doctor` that all SQL servers share.

use super::{SqlOptions, SqlServer, TlsMode};
use crate::{
    backends::net::transport,
    lock::{Error, Finding, Result, Severity},
};

/// Returns the finding about the connection's encryption.
pub fn tls(options: &SqlOptions, fix: &str) -> Finding {
    let host = match &options.server {
        SqlServer::Unix { .. } => None,
        SqlServer::Tcp { host, .. } => Some(host.as_str()),
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

/// Returns the finding about the number of used sessions.
pub fn sessions(check: &'static str, used: i64, most: i64) -> Finding {
    let text = format!("{used} of {most} sessions are used; each waiter takes one");
    if used > most / 10 * 8 {
        return Finding::warn(check, text, "new connections are then refused, also those of a holder that must reconnect")
            .fix("raise max_connections");
    }
    Finding::ok(check, text)
}

/// Returns the finding for tables that have this version's layout.
pub fn usable_tables(table: &str) -> Finding {
    Finding::ok("schema", format!("the table {table} and its companions have this version's layout"))
}

/// Returns the finding for tables that dlock can't use; `None` if they are complete.
pub fn unusable_tables(complete: Result<bool>, table: &str) -> Option<Finding> {
    let risk = "no lock can be taken";
    match complete {
        Ok(true) => None,
        Ok(false) => {
            let text = format!("the table {table} or one of its companions is missing, or has an older layout");
            Some(Finding::not_safe("schema", text, risk).fix("dlock init"))
        }
        Err(Error { message, hint, .. }) => Some(Finding { fix: hint, ..Finding::not_safe("schema", message, risk) }),
    }
}

/// Whether `dlock init` reports the finding, too.
pub fn is_bad(finding: &Finding) -> bool {
    finding.severity != Severity::Ok
}
