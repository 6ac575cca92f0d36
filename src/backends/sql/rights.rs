//! The findings of `dlock doctor` that all SQL servers share.

use super::{SqlMode, SqlOptions, SqlServer, TlsMode};
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
        (TlsMode::VerifyFull | TlsMode::Disable, _) | (_, None) => {
            let verified = options.tls == TlsMode::VerifyFull;
            transport::finding(verified, host, options.password.is_some(), fix)
        }
        (TlsMode::VerifyCa, Some(host)) => Finding::warn(
            transport::CHECK.id,
            format!("TLS to {host}, by a certificate of a known authority for any host"),
            "anyone with such a certificate can answer in the server's place",
        )
        .fix(fix),
        (TlsMode::Require | TlsMode::Prefer, Some(host)) => {
            let how = if options.tls == TlsMode::Prefer {
                "TLS if the server can"
            } else {
                "TLS"
            };
            let risk = "an attacker in between gets the password and every lock's token";
            Finding::warn(
                transport::CHECK.id,
                format!("{how} to {host}, and any server that answers is believed"),
                risk,
            )
            .fix(fix)
        }
    }
}

/// Returns the finding about the number of used sessions, of all that the server takes; and how
/// many this user may have.
pub fn sessions(
    check: &'static str,
    (used, most): (i64, i64),
    of_user: Option<i64>,
    mode: SqlMode,
) -> Finding {
    if let (SqlMode::Row, Some(limit)) = (mode, of_user) {
        let text = format!(
            "this user may have {limit} sessions, enough for {} runs at once: with mode=row each run takes two",
            limit / 2
        );
        return Finding::warn(
            check,
            text,
            "further runs are refused until one of these ends, even if they only wait",
        )
        .fix("raise the user's limit to two for each run that holds or waits, or use ?mode=lease");
    }
    let each = if mode == SqlMode::Row {
        "each run that holds or waits takes two"
    } else {
        "each run that holds or waits takes one for each key"
    };
    let text = format!("{used} of {most} sessions are used; {each}");
    if used > most / 10 * 8 {
        return Finding::warn(
            check,
            text,
            "new connections are then refused, also those of a holder that must reconnect",
        )
        .fix("raise max_connections");
    }
    Finding::ok(check, text)
}

/// Returns the finding for tables that have this version's layout.
pub fn usable_tables(table: &str) -> Finding {
    Finding::ok(
        "schema",
        format!("the table {table} and its companions have this version's layout"),
    )
}

/// Returns the finding for tables that dlock can't use; `None` if they are complete.
pub fn unusable_tables(complete: Result<bool>, table: &str) -> Option<Finding> {
    let risk = "no lock can be taken";
    match complete {
        Ok(true) => None,
        Ok(false) => {
            let text = format!(
                "the table {table} or one of its companions is missing, or has an older layout"
            );
            Some(Finding::not_safe("schema", text, risk).fix("dlock init"))
        }
        Err(Error { message, hint, .. }) => Some(Finding {
            fix: hint,
            ..Finding::not_safe("schema", message, risk)
        }),
    }
}

/// Whether `dlock init` reports the finding, too.
pub fn is_bad(finding: &Finding) -> bool {
    finding.severity != Severity::Ok
}
