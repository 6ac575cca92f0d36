//! What in a server's setup endangers locks, for people who look: `dlock init` tells it.

use sqlx::Row as _;

use super::{connection::Session, options::Options, statement::Value};
use crate::lock::{Notice, Result};

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
    let asked = ["fsync", "full_page_writes", "synchronous_commit", "default_transaction_read_only", "default_transaction_isolation"];
    let asked: Vec<String> = asked.map(str::to_owned).into();
    let rows = session.query(SETTINGS, &[Value::Texts(&asked)]).await?;
    let of = |name: &str| rows.iter().find(|row| row.get::<&str, _>(0) == name).map_or("", |row| row.get(1));
    let mut notices = Vec::new();
    let mut warn = |text: &str, hint: &str| notices.push(Notice { warning: true, text: text.into(), hint: Some(hint.into()) });
    if of("fsync") == "off" || of("full_page_writes") == "off" {
        warn("fsync or full_page_writes is off: a crash of the server's machine can lose locks that are held", "set both to on");
    }
    if of("synchronous_commit") == "off" {
        warn(
            "synchronous_commit is off: a crash of the server can lose locks that were granted last",
            "ALTER ROLE … SET synchronous_commit = on",
        );
    }
    if of("default_transaction_read_only") == "on" {
        warn("default_transaction_read_only is on: locks can't be taken", "ALTER ROLE … SET default_transaction_read_only = off");
    }
    if matches!(of("default_transaction_isolation"), "serializable" | "repeatable read") {
        warn(
            "default_transaction_isolation is not read committed: contended locks are asked for again and again",
            "ALTER ROLE … SET default_transaction_isolation = 'read committed'",
        );
    }
    let standby = session.query_one("SELECT pg_is_in_recovery()", &[]).await?;
    if standby.get(0) {
        warn("the server is a standby: locks can't be taken", "name the primary in the URL");
    }
    Ok(notices)
}
