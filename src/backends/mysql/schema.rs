//! Creating the tables, upgrading ShedLock's, and removing what is long unused.

use std::time::Duration;

use super::{
    connection::Connection,
    names::{SIDE_TABLES, Tables},
    statement::{Value, literal},
};
use crate::{
    backends::sql::{Fields, Names, SqlMode, SqlOptions},
    lock::{Error, Init, Kind, Result},
};

/// What the lock table's columns are, as `information_schema` writes it, and how they are added or changed to be so.
const COLUMNS: [(&str, &str, &str); 12] = [
    ("name", "varbinary(320)", "VARBINARY(320) NOT NULL"),
    ("lock_until", "datetime(6)", "DATETIME(6) NOT NULL"),
    ("locked_at", "datetime(6)", "DATETIME(6) NOT NULL"),
    ("locked_by", "varchar(255)", "VARCHAR(255) NOT NULL"),
    ("layout", "smallint", "SMALLINT NULL"),
    ("owner", "varchar(64)", "VARCHAR(64) NULL"),
    ("mode", "varchar(16)", "VARCHAR(16) NULL"),
    ("fence", "bigint", "BIGINT NOT NULL DEFAULT 0"),
    ("renewed_at", "datetime(6)", "DATETIME(6) NULL"),
    ("revision", "bigint", "BIGINT NOT NULL DEFAULT 0"),
    ("document", "mediumtext", "MEDIUMTEXT NULL"),
    ("bell", "bigint", "BIGINT NOT NULL DEFAULT 0"),
];

/// What the table of sessions has as well.
const STARTS: [(&str, &str, &str); 16] = [
    ("paced_at", "datetime(6)", "DATETIME(6) NULL"),
    ("paced_fence", "bigint", "BIGINT NULL"),
    ("paced_place", "varbinary(320)", "VARBINARY(320) NULL"),
    ("guard_ms", "bigint", "BIGINT NULL"),
    ("at_least_ms", "bigint", "BIGINT NULL"),
    ("paced_who", "mediumtext", "MEDIUMTEXT NULL"),
    ("paced_hold", "char(16)", "CHAR(16) NULL"),
    ("start_at", "datetime(6)", "DATETIME(6) NULL"),
    ("start_fence", "bigint", "BIGINT NULL"),
    ("start_stage", "varchar(16)", "VARCHAR(16) NULL"),
    ("start_tries", "bigint", "BIGINT NULL"),
    ("start_window_ms", "bigint", "BIGINT NULL"),
    ("start_who", "mediumtext", "MEDIUMTEXT NULL"),
    ("start_hold", "char(16)", "CHAR(16) NULL"),
    ("warned_fence", "bigint", "BIGINT NULL"),
    ("warned_level", "bigint", "BIGINT NULL"),
];

/// What the tables of sessions and of readers have as well.
const SERVER: [(&str, &str, &str); 2] =
    [("server", "varchar(320)", "VARCHAR(320) CHARACTER SET utf8mb4 NULL"), ("ends", "datetime(6)", "DATETIME(6) NULL")];

/// What `dlock init` does where there are no tables yet, as SQL.
pub(super) fn text(tables: &Tables) -> String {
    tables.show(include_str!("sql/schema.sql"))
}

/// Creates what is missing, makes of ShedLock's table one that both can use, and gives locks over to this mode that are kept in another one
/// and have no holder. Asked again it changes nothing.
pub(super) async fn create(session: &mut Connection, tables: &Tables, mode: SqlMode) -> Result<Init> {
    let done = upgrade(session, tables).await?;
    let mode = if mode == SqlMode::Lease { Value::Null } else { Value::Text(mode.name()) };
    let give = "UPDATE :table AS l SET mode = :mode, revision = revision + 1 WHERE l.mode IS NOT NULL AND NOT (l.mode <=> :mode)
                   AND NOT EXISTS (SELECT 1 FROM :sessions AS s WHERE s.name = l.name AND s.session IS NOT NULL)
                   AND NOT EXISTS (SELECT 1 FROM :readers AS r WHERE r.name = l.name);";
    session.ask(&tables.fill(give, &[("mode", mode)])).await?;
    Ok(done)
}

async fn upgrade(session: &mut Connection, tables: &Tables) -> Result<Init> {
    let before = examine(session, tables).await?;
    if before.complete {
        return Ok(Init::UpToDate);
    }
    // Altering waits for the statements that use the table.
    session.ask("SET SESSION lock_wait_timeout = 30").await?;
    session.ask(&tables.fill(include_str!("sql/schema.sql"), &[])).await?;
    if let Some(changes) = before.changes {
        session.ask(&changes).await?;
    }
    // A lock that has a holder is left to the version that wrote it.
    let older = "UPDATE :table SET layout = :layout, document = NULL WHERE layout < :layout AND lock_until <= UTC_TIMESTAMP(6);";
    session.ask(&tables.fill(older, &[])).await?;
    session.ask("SET SESSION lock_wait_timeout = 1").await?;
    Ok(Init::Created)
}

/// Whether all tables and columns are there.
pub(super) async fn is_complete(session: &mut Connection, tables: &Tables) -> Result<bool> {
    Ok(examine(session, tables).await?.complete)
}

/// What was found of the tables.
struct Found {
    complete: bool,
    /// What must be done to the lock table, if it is there.
    changes: Option<String>,
}

async fn examine(session: &mut Connection, tables: &Tables) -> Result<Found> {
    let (database, table) = match tables.table().split_once('.') {
        Some((database, table)) => (Value::Text(database), table),
        None => (Value::Sql("DATABASE()"), tables.table()),
    };
    let names: Vec<_> = [""].into_iter().chain(SIDE_TABLES.map(|(_, suffix)| suffix)).map(|suffix| format!("{table}{suffix}")).collect();
    let names: Vec<_> = names.iter().map(|name| literal(Value::Text(name))).collect();
    let question = format!(
        "SELECT table_name, column_name, column_type, character_set_name FROM information_schema.columns WHERE table_schema = {} AND table_name IN ({});",
        literal(database),
        names.join(", ")
    );
    let answers = session.ask(&question).await?;
    let (mut columns, mut others) = (Vec::new(), Vec::new());
    let [mut sessions, mut readers] = [const { Vec::new() }; 2];
    for row in answers.iter().flat_map(|answer| &answer.rows) {
        let mut fields = Fields::of(row);
        let (of, column, kind, charset) = (fields.text()?, fields.text()?, fields.text()?, fields.text_or_null()?);
        if of.eq_ignore_ascii_case(&format!("{table}_sessions")) {
            sessions.push(column.to_ascii_lowercase());
        }
        if of.eq_ignore_ascii_case(&format!("{table}_readers")) {
            readers.push(column.to_ascii_lowercase());
        }
        if of.eq_ignore_ascii_case(table) {
            columns.push((column.to_ascii_lowercase(), kind.to_ascii_lowercase(), charset));
        } else if !others.contains(&of) {
            others.push(of);
        }
    }
    if columns.is_empty() {
        return Ok(Found { complete: false, changes: None });
    }
    let mut parts = Vec::new();
    let mut first = String::new();
    for (column, kind, definition) in COLUMNS.into_iter().chain(STARTS) {
        match columns.iter().find(|(name, ..)| name == column) {
            None => parts.push(format!("ADD COLUMN {column} {definition}")),
            // MariaDB writes bigint(20), MySQL bigint.
            Some((_, found, _)) if found == kind || kind.contains("int") && found.starts_with(kind) => {}
            Some((_, found, charset)) => {
                if column == "name" && charset.as_deref().is_some_and(|charset| !charset.starts_with("utf8")) {
                    // By bytes it must be the bytes of UTF-8.
                    first = tables.fill("ALTER TABLE :table MODIFY name VARCHAR(80) CHARACTER SET utf8mb4 NOT NULL;", &[]);
                }
                if matches!(column, "name" | "lock_until" | "locked_at") || found.starts_with("varchar") && column != "locked_by" {
                    parts.push(format!("MODIFY {column} {definition}"));
                }
            }
        }
    }
    let alter = |table: &str, parts: &[String]| format!("{} {};", tables.fill(table, &[]), parts.join(", "));
    let mut changes = if parts.is_empty() { String::new() } else { first + &alter("ALTER TABLE :table", &parts) };
    let sides = [("ALTER TABLE :sessions", sessions, [&STARTS[..], &SERVER].concat()), ("ALTER TABLE :readers", readers, SERVER.to_vec())];
    for (side, has, wants) in sides {
        let lacks = wants.into_iter().filter(|(column, ..)| !has.is_empty() && !has.iter().any(|known| known == column));
        let lacks: Vec<_> = lacks.map(|(column, _, definition)| format!("ADD COLUMN {column} {definition}")).collect();
        if !lacks.is_empty() {
            changes += &alter(side, &lacks);
        }
    }
    let changes = Some(changes).filter(|changes| !changes.is_empty());
    let mut complete = changes.is_none() && others.len() == SIDE_TABLES.len();
    if complete {
        let older = session.ask(&tables.fill("SELECT 1 FROM :table WHERE layout < :layout LIMIT 1;", &[])).await?;
        complete = older.iter().all(|answer| answer.rows.is_empty());
    }
    Ok(Found { complete, changes })
}

/// See [`Database::collect`](crate::backends::sql::Database::collect).
pub(super) async fn collect(session: &mut Connection, tables: &Tables, options: &SqlOptions, unused_for: Duration) -> Result<u64> {
    options.check_collect()?;
    let shared = session
        .ask(&tables.fill("SELECT 1 FROM :table WHERE (owner IS NULL OR owner <> locked_by) AND locked_by <> :shared LIMIT 1;", &[]))
        .await?;
    if shared.first().is_some_and(|answer| !answer.rows.is_empty()) {
        return Err(Error::new(
            Kind::Unsupported,
            "other programs than dlock keep locks in this table, and some remember which rows exist",
        )
        .hint("remove the rows by hand while those programs are stopped"));
    }
    let micros = i64::try_from(unused_for.as_micros()).unwrap_or(i64::MAX);
    let names = Names::new(&options.namespace).starting_with("");
    let values = [("age", Value::Int(micros)), ("start", Value::Bytes(&names))];
    let answers = session.ask(&tables.fill(include_str!("sql/collect.sql"), &values)).await?;
    Ok(answers.first().map_or(0, |answer| answer.matched))
}
