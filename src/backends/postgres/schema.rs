//! Creates the tables, upgrades ShedLock's, and removes rows that are long unused.

use std::time::Duration;

use super::{connection::PostgresSession, names::Tables, statement::Value};
use crate::{
    backends::sql::{LAYOUT, Names, SHARED_BY, SqlOptions},
    lock::{Error, Init, Kind, Result},
};

/// The statement for a table's columns.
const COLUMNS: &str = "SELECT c.column_name::text, c.data_type::text, c.collation_name::text FROM information_schema.columns AS c
  JOIN pg_class AS k ON k.oid = to_regclass($1) JOIN pg_namespace AS n ON n.oid = k.relnamespace
 WHERE c.table_schema = n.nspname AND c.table_name = k.relname";

/// Returns the SQL of `dlock init`.
pub(super) fn text(tables: &Tables) -> String {
    tables.fill(include_str!("sql/schema.sql"))
}

/// Creates missing tables and columns, and moves locks without a holder from other modes to this
/// mode. A repeated call changes nothing, and takes no lock on the tables.
pub(super) async fn create(session: &mut PostgresSession, tables: &Tables) -> Result<Init> {
    let done = upgrade(session, tables).await?;
    // One statement is one transaction.
    let sql = "UPDATE {table} AS l SET mode = {mode}, revision = l.revision + 1
                WHERE l.mode IS NOT NULL AND l.mode IS DISTINCT FROM {mode} AND {unheld}";
    session.query(&tables.fill(sql), &[]).await?;
    Ok(done)
}

async fn upgrade(session: &mut PostgresSession, tables: &Tables) -> Result<Init> {
    if is_complete(session, tables).await? {
        return Ok(Init::UpToDate);
    }
    // One transaction at a time: two would conflict while the tables don't exist.
    let number = tables.advisory_lock("init");
    session
        .run(&format!(
            "BEGIN; SET LOCAL lock_timeout = '3s'; SET LOCAL client_min_messages = warning; SELECT pg_advisory_xact_lock({number}); {} COMMIT",
            text(tables)
        ))
        .await
        .inspect_err(|_| session.spoil())?;
    Ok(Init::Created)
}

/// Whether all tables and columns exist.
///
/// # Errors
/// A column has a type that dlock can't use.
pub(super) async fn is_complete(session: &mut PostgresSession, tables: &Tables) -> Result<bool> {
    let found = session
        .query(COLUMNS, &[Value::Text(&tables.quoted(""))])
        .await?;
    let column = |name: &str| found.iter().find(|row| row.at(0) == name);
    for name in ["lock_until", "locked_at"] {
        // ShedLock writes UTC without a zone; a column with a zone would convert it from the
        // session's zone.
        if column(name).is_some_and(|row| row.at(1) != "timestamp without time zone") {
            return Err(Error::new(
                Kind::Config,
                format!("the column {name} of the table {} is no timestamp without time zone", tables.quoted("")),
            )
            .hint("ALTER TABLE … ALTER COLUMN … TYPE timestamp USING … AT TIME ZONE 'UTC', while no lock is held; or ?table=NAME"));
        }
    }
    let older = format!("SELECT 1 FROM {{table}} WHERE layout < {LAYOUT} LIMIT 1");
    let is_older =
        column("layout").is_some() && !session.query(&tables.fill(&older), &[]).await?.is_empty();
    let wide = |name: &str| column(name).is_some_and(|row| row.at(1) == "text");
    let by_bytes = column("name").is_some_and(|row| row.at(2) == "C");
    let complete = !is_older
        && by_bytes
        && wide("name")
        && wide("locked_by")
        && column("mode").is_some()
        && column("revision").is_some()
        && column("document").is_some()
        && column("paced_hold").is_some()
        && column("start_hold").is_some()
        && column("start_replaced").is_some();
    let sides: Vec<String> = ["_waiters", "_rows", "_runs", "_skips"]
        .map(|suffix| tables.quoted(suffix))
        .into();
    let sides = session
        .query_one(
            "SELECT count(to_regclass(name)) FROM unnest($1) AS name",
            &[Value::Texts(&sides)],
        )
        .await?;
    let runs = session
        .query(COLUMNS, &[Value::Text(&tables.quoted("_runs"))])
        .await?;
    let complete = complete && runs.iter().any(|row| row.at(0) == "outcome");
    Ok(complete && sides.at(0) == "4")
}

/// See [`Database::collect`](crate::backends::sql::Database::collect).
pub(super) async fn collect(
    session: &mut PostgresSession,
    tables: &Tables,
    options: &SqlOptions,
    unused_for: Duration,
) -> Result<u64> {
    options.check_collect()?;
    let shared = tables.fill(
        "SELECT 1 FROM {table} WHERE owner IS DISTINCT FROM locked_by AND locked_by <> $1 LIMIT 1",
    );
    if !session
        .query(&shared, &[Value::Text(SHARED_BY)])
        .await?
        .is_empty()
    {
        return Err(SqlOptions::shares_table());
    }
    let seconds = unused_for.as_secs_f64();
    let names = Names::new(&options.namespace).starting_with("");
    let rows = session
        .query(
            &tables.fill(include_str!("sql/collect.sql")),
            &[Value::Real(seconds), Value::Text(&names)],
        )
        .await?;
    Ok(rows.len() as u64)
}
