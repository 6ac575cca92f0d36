//! Settings of a server that endanger locks, which `dlock init` and `dlock doctor` report.

use super::{
    connection::{IDLE_SESSION_TIMEOUT, PostgresSession},
    names::Tables,
    options::PostgresOptions,
    statement::Value,
};
use crate::{
    backends::sql::{Fields, Row, SqlMode, rights},
    lock::{Error, Finding, Kind, Notice, Result},
};

/// Whether a pooler between dlock and the server reassigns sessions per transaction, as PgBouncer
/// does.
///
/// At the login a server names the process that serves the session, and a pooler a number of its
/// own; and a server sees this client's port on its side of the connection. If neither matches, a
/// second session decides: a pooler lends it the process that the first session has just used,
/// while a server never has two sessions in one process. `other` is that session, if there is one
/// already.
pub(super) async fn is_pooled(
    session: &mut PostgresSession,
    other: Option<&mut PostgresSession>,
    options: &PostgresOptions,
) -> Result<bool> {
    let (pid, direct) = process(session).await?;
    if direct {
        return Ok(false);
    }
    let mut opened;
    let other = if let Some(other) = other {
        other
    } else {
        opened = PostgresSession::open(&options.sql).await?;
        &mut opened
    };
    let row = other.query_one("SELECT pg_backend_pid()", &[]).await?;
    let again = session.query_one("SELECT pg_backend_pid()", &[]).await?;
    Ok(Fields::of(&row).int()? == pid || Fields::of(&again).int()? != pid)
}

/// Whether no pooler is known to be between dlock and the server.
pub(super) async fn is_direct(session: &mut PostgresSession) -> Result<bool> {
    Ok(process(session).await?.1)
}

/// Returns the server's process, and whether the login or the connection proves that it serves this
/// session alone.
async fn process(session: &mut PostgresSession) -> Result<(i64, bool)> {
    let row = session
        .query_one(
            "SELECT pg_backend_pid(), coalesce(inet_client_port(), 0), version()",
            &[],
        )
        .await?;
    let mut fields = Fields::of(&row);
    let (pid, port) = (fields.int()?, fields.int()?);
    is_postgres(&fields.text()?)?;
    Ok((
        pid,
        pid == i64::from(session.pid())
            || session
                .local_port()
                .is_some_and(|ours| i64::from(ours) == port),
    ))
}

/// Refuses servers that only speak PostgreSQL's protocol: CockroachDB's `pg_try_advisory_lock` says
/// yes to every client (<https://github.com/cockroachdb/cockroach/issues/13546>).
///
/// # Errors
/// The name of that server.
pub(super) fn is_postgres(version: &str) -> Result<()> {
    if version.starts_with("PostgreSQL ") {
        return Ok(());
    }
    let name: String = version
        .split_whitespace()
        .next()
        .unwrap_or("unknown")
        .chars()
        .take(40)
        .collect();
    Err(Error::new(
        Kind::Config,
        format!("the server is not PostgreSQL but {name}, whose locks dlock can't rely on"),
    )
    .hint("name a PostgreSQL server in the URL"))
}

/// Returns a warning about a database whose encoding lacks characters.
pub(super) fn encoding(session: &PostgresSession) -> Option<Finding> {
    let risk = "a key with other characters is refused, and the notes of a hold lose them";
    session.is_narrow().then(|| {
        Finding::warn(
            "encoding",
            "the database's encoding does not have all characters",
            risk,
        )
        .fix("CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0, and name it in the URL")
    })
}

/// Returns the lock table's full name, and a warning if another search_path would find another
/// table of that name.
pub(super) async fn place(
    session: &mut PostgresSession,
    tables: &Tables,
) -> Result<(String, Option<Finding>)> {
    let (bare, qualified) = tables.bare();
    let sql = "SELECT current_database()::text, n.nspname::text, k.oid IS NOT DISTINCT FROM to_regclass($1)::oid
                 FROM pg_class AS k JOIN pg_namespace AS n ON n.oid = k.relnamespace
                WHERE k.relname = $2 AND k.relkind IN ('r', 'p')
                  AND EXISTS (SELECT FROM pg_attribute AS a WHERE a.attrelid = k.oid AND a.attname = 'lock_until') ORDER BY 2";
    let rows = session
        .query(sql, &[Value::Text(&tables.quoted("")), Value::Text(bare)])
        .await?;
    let name = |row: &Row| format!("{}.{}.{bare}", row.at(0), row.at(1));
    let (ours, others): (Vec<_>, Vec<_>) = rows.iter().partition(|row| row.at(2) == "t");
    let ours = ours
        .first()
        .map_or_else(|| tables.quoted(""), |row| name(row));
    if qualified || others.is_empty() {
        return Ok((ours, None));
    }
    let others: Vec<_> = others.into_iter().map(name).collect();
    let risk =
        "users with another search_path take their locks there, and do not exclude this user";
    let found = Finding::warn(
        "schema",
        format!(
            "the table is {ours}, and there is {} as well",
            others.join(", ")
        ),
        risk,
    );
    Ok((
        ours,
        Some(found.fix("name the schema in all URLs: ?table=SCHEMA.TABLE")),
    ))
}

const SETTINGS: &str = "SELECT name, setting FROM pg_settings WHERE name = ANY($1)";

/// Returns the notices about the server's settings.
pub(super) async fn examine(
    session: &mut PostgresSession,
    tables: &Tables,
    mode: SqlMode,
) -> Result<Vec<Notice>> {
    let (_, others) = place(session, tables).await?;
    let bad = settings(session)
        .await?
        .into_iter()
        .chain(encoding(session))
        .chain(others)
        .filter(rights::is_bad);
    let notice = |found: Finding| Notice {
        warning: true,
        text: found.risk.map_or_else(
            || found.text.clone(),
            |risk| format!("{}: {risk}", found.text),
        ),
        hint: found.fix,
    };
    let mut notices: Vec<_> = bad.map(notice).collect();
    if mode == SqlMode::Advisory && session.version < IDLE_SESSION_TIMEOUT {
        notices.push(Notice {
            warning: true,
            text: "before version 14 the server ends the session of a frozen holder never, and of a vanished one late".into(),
            hint: Some("?mode=lease ends with its TTL on any version".into()),
        });
    }
    Ok(notices)
}

/// Returns the findings about durability, isolation and role, of [`super::examine::CHECKS`].
pub(super) async fn settings(session: &mut PostgresSession) -> Result<Vec<Finding>> {
    let asked = [
        "fsync",
        "full_page_writes",
        "synchronous_commit",
        "default_transaction_read_only",
        "default_transaction_isolation",
    ];
    let asked: Vec<String> = asked.map(str::to_owned).into();
    let rows = session.query(SETTINGS, &[Value::Texts(&asked)]).await?;
    let of = |name: &str| {
        rows.iter()
            .find(|row| row.at(0) == name)
            .map_or("", |row| row.at(1))
    };
    let mut found = Vec::new();
    found.push(if of("fsync") == "off" || of("full_page_writes") == "off" {
        let risk = "a crash of the server's machine can lose locks that are held";
        Finding::warn("durability", "fsync or full_page_writes is off", risk).fix("set both to on")
    } else if of("synchronous_commit") == "off" {
        let risk = "a crash of the server can lose locks that were granted last";
        Finding::warn("durability", "synchronous_commit is off", risk)
            .fix("ALTER ROLE CURRENT_USER SET synchronous_commit = on")
    } else {
        Finding::ok(
            "durability",
            format!(
                "fsync {}, synchronous_commit {}",
                of("fsync"),
                of("synchronous_commit")
            ),
        )
    });
    let isolation = of("default_transaction_isolation");
    found.push(if matches!(isolation, "serializable" | "repeatable read") {
        let risk = "contended locks are asked for again and again";
        Finding::warn(
            "isolation",
            "default_transaction_isolation is not read committed",
            risk,
        )
        .fix("ALTER ROLE CURRENT_USER SET default_transaction_isolation = 'read committed'")
    } else {
        Finding::ok(
            "isolation",
            format!("default_transaction_isolation {isolation}"),
        )
    });
    let standby = session.query_one("SELECT pg_is_in_recovery()", &[]).await?;
    found.push(if standby.at(0) == "t" {
        Finding::not_safe("role", "the server is a standby", "locks can't be taken")
            .fix("name the primary in the URL")
    } else if of("default_transaction_read_only") == "on" {
        Finding::not_safe(
            "role",
            "default_transaction_read_only is on",
            "locks can't be taken",
        )
        .fix("ALTER ROLE CURRENT_USER SET default_transaction_read_only = off")
    } else {
        Finding::ok("role", "the server is a primary, and takes changes")
    });
    Ok(found)
}
