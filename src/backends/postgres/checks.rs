//! What in a server's setup endangers locks, for people who look: `dlock init` tells it.

use sqlx::Row as _;

use super::{connection::Session, options::Options, statement::Value};
use crate::{
    backends::sql::rights,
    lock::{Finding, Notice, Result},
};

/// Whether something between us and the server hands its sessions out by the transaction, as pgbouncer does.
///
/// A server names at the login the process that serves the session, a pooler a number of its own; and a server sees our own
/// port on its side of the connection. If neither is so, a second session tells: a pool lends it the process that ours has
/// just let go of, while a server never has two sessions in one process.
pub(super) async fn is_pooled(session: &mut Session, options: &Options) -> Result<bool> {
    let row = session.query_one("SELECT pg_backend_pid(), coalesce(inet_client_port(), 0)", &[]).await?;
    let (pid, port): (i32, i32) = (row.get(0), row.get(1));
    if pid == session.pid() || session.local_port().is_some_and(|ours| i32::from(ours) == port) {
        return Ok(false);
    }
    let mut other = Session::open(&options.sql).await?;
    let row = other.query_one("SELECT pg_backend_pid()", &[]).await?;
    let again = session.query_one("SELECT pg_backend_pid()", &[]).await?;
    Ok(row.get::<i32, _>(0) == pid || again.get::<i32, _>(0) != pid)
}

const SETTINGS: &str = "SELECT name, setting FROM pg_settings WHERE name = ANY($1)";

/// What is worth telling of the server's settings.
pub(super) async fn examine(session: &mut Session) -> Result<Vec<Notice>> {
    let bad = settings(session).await?.into_iter().filter(rights::is_bad);
    let notice = |found: Finding| Notice {
        warning: true,
        text: found.risk.map_or_else(|| found.text.clone(), |risk| format!("{}: {risk}", found.text)),
        hint: found.mend,
    };
    Ok(bad.map(notice).collect())
}

/// What the server's settings make of locks: of [`super::examine::CHECKS`] those about durability, isolation and role.
pub(super) async fn settings(session: &mut Session) -> Result<Vec<Finding>> {
    let asked = ["fsync", "full_page_writes", "synchronous_commit", "default_transaction_read_only", "default_transaction_isolation"];
    let asked: Vec<String> = asked.map(str::to_owned).into();
    let rows = session.query(SETTINGS, &[Value::Texts(&asked)]).await?;
    let of = |name: &str| rows.iter().find(|row| row.get::<&str, _>(0) == name).map_or("", |row| row.get(1));
    let mut found = Vec::new();
    found.push(if of("fsync") == "off" || of("full_page_writes") == "off" {
        let risk = "a crash of the server's machine can lose locks that are held";
        Finding::warn("durability", "fsync or full_page_writes is off", risk).mend("set both to on")
    } else if of("synchronous_commit") == "off" {
        let risk = "a crash of the server can lose locks that were granted last";
        Finding::warn("durability", "synchronous_commit is off", risk).mend("ALTER ROLE … SET synchronous_commit = on")
    } else {
        Finding::ok("durability", format!("fsync {}, synchronous_commit {}", of("fsync"), of("synchronous_commit")))
    });
    let isolation = of("default_transaction_isolation");
    found.push(if matches!(isolation, "serializable" | "repeatable read") {
        let risk = "contended locks are asked for again and again";
        Finding::warn("isolation", "default_transaction_isolation is not read committed", risk)
            .mend("ALTER ROLE … SET default_transaction_isolation = 'read committed'")
    } else {
        Finding::ok("isolation", format!("default_transaction_isolation {isolation}"))
    });
    let standby = session.query_one("SELECT pg_is_in_recovery()", &[]).await?;
    found.push(if standby.get(0) {
        Finding::not_safe("role", "the server is a standby", "locks can't be taken").mend("name the primary in the URL")
    } else if of("default_transaction_read_only") == "on" {
        Finding::not_safe("role", "default_transaction_read_only is on", "locks can't be taken")
            .mend("ALTER ROLE … SET default_transaction_read_only = off")
    } else {
        Finding::ok("role", "the server is a primary, and takes changes")
    });
    Ok(found)
}
