//! Creates the tables, upgrades ShedLock's, and removes rows that are long unused.

use std::time::Duration;

use super::{
    connection::Connection,
    names::{SIDE_TABLES, Tables},
    statement::{Value, literal},
};
use crate::{
    backends::sql::{Fields, Names, SqlOptions},
    lock::{Init, Result},
};

/// The columns of older layouts that must go, with their tables.
const DROPPED: [(&str, &str); 1] = [("runs", "why")];

/// Returns the changes that drop those columns of a table that must go.
fn drops<'a>(table: &str, columns: impl Iterator<Item = &'a str>) -> Vec<String> {
    columns
        .filter(|column| DROPPED.contains(&(table, *column)))
        .map(|column| format!("DROP COLUMN {column}"))
        .collect()
}

/// Returns the names and definitions of a table's columns.
fn columns(table: &str) -> impl Iterator<Item = (&'static str, &'static str)> {
    let create = format!("CREATE TABLE IF NOT EXISTS :{table} (");
    let lines = include_str!("sql/schema.sql")
        .lines()
        .skip_while(move |line| *line != create)
        .skip(1)
        .map(str::trim);
    let columns = lines
        .take_while(|line| !line.starts_with("PRIMARY KEY"))
        .filter_map(|line| line.split_once(' '));
    columns.map(|(name, definition)| (name, definition.trim().trim_end_matches(',')))
}

/// Returns what `dlock init` does where there are no tables yet, as SQL.
pub(super) fn text(tables: &Tables) -> String {
    tables.show(include_str!("sql/schema.sql"))
}

/// Creates missing tables, upgrades ShedLock's table so that both programs can use it, and moves
/// locks without a holder from other modes to this mode. A repeated call changes nothing.
pub(super) async fn create(session: &mut Connection, tables: &Tables) -> Result<Init> {
    let done = upgrade(session, tables).await?;
    let give = "UPDATE :table SET mode = :mode, revision = revision + 1
                 WHERE mode IS NOT NULL AND NOT (mode <=> :mode) AND COALESCE(document NOT LIKE '%\"s\":[%', 1);";
    session.ask(&tables.fill(give, &[])).await?;
    Ok(done)
}

async fn upgrade(session: &mut Connection, tables: &Tables) -> Result<Init> {
    let before = examine(session, tables).await?;
    if before.usable && before.changes.is_none() {
        return Ok(Init::UpToDate);
    }
    // ALTER TABLE waits for the statements that use the table.
    session.ask("SET SESSION lock_wait_timeout = 30").await?;
    session
        .ask(&tables.fill(include_str!("sql/schema.sql"), &[]))
        .await?;
    if let Some(changes) = before.changes {
        session.ask(&changes).await?;
    }
    // Only the version that wrote a held lock may change it.
    let older = "UPDATE :table SET layout = :layout, document = NULL WHERE layout < :layout AND lock_until <= UTC_TIMESTAMP(6);";
    session.ask(&tables.fill(older, &[])).await?;
    session.ask("SET SESSION lock_wait_timeout = 1").await?;
    Ok(Init::Created)
}

/// Whether all tables and columns exist. No statement depends on the collations of an older table.
pub(super) async fn is_complete(session: &mut Connection, tables: &Tables) -> Result<bool> {
    Ok(examine(session, tables).await?.usable)
}

/// The state of the tables.
struct TableState {
    usable: bool,
    /// The statements that upgrade existing tables.
    changes: Option<String>,
}

async fn examine(session: &mut Connection, tables: &Tables) -> Result<TableState> {
    let (database, table) = match tables.table().split_once('.') {
        Some((database, table)) => (Value::Words(database), table),
        None => (Value::Sql("DATABASE()"), tables.table()),
    };
    let names: Vec<_> = [""]
        .into_iter()
        .chain(SIDE_TABLES.map(|(_, suffix)| suffix))
        .map(|suffix| format!("{table}{suffix}"))
        .collect();
    let names: Vec<_> = names
        .iter()
        .map(|name| literal(Value::Words(name)))
        .collect();
    let question = format!(
        "SELECT table_name, column_name, column_type, character_set_name, collation_name FROM information_schema.columns WHERE table_schema = {} AND table_name IN ({});",
        literal(database),
        names.join(", ")
    );
    let answers = session.ask(&question).await?;
    let mut found = Vec::new();
    for row in answers.iter().flat_map(|answer| &answer.rows) {
        let mut fields = Fields::of(row);
        let (of, column, kind) = (fields.text()?, fields.text()?, fields.text()?);
        let (charset, collation) = (fields.text_or_null()?, fields.text_or_null()?);
        let suffix = of
            .get(table.len()..)
            .unwrap_or_default()
            .to_ascii_lowercase();
        found.push((
            suffix,
            column.to_ascii_lowercase(),
            kind.to_ascii_lowercase(),
            charset,
            collation,
        ));
    }
    let exists = |suffix: &str| found.iter().any(|(of, ..)| of == suffix);
    if !exists("") {
        return Ok(TableState {
            usable: false,
            changes: None,
        });
    }
    let (mut changes, mut usable) = (String::new(), true);
    for (name, suffix) in [("table", "")].into_iter().chain(SIDE_TABLES) {
        let there: Vec<_> = found.iter().filter(|(of, ..)| of == suffix).collect();
        let mut parts = drops(name, there.iter().map(|column| &*column.1));
        let mut collations = Vec::new();
        for (column, definition) in columns(name).filter(|_| exists(suffix)) {
            let kind = definition
                .split(' ')
                .next()
                .unwrap_or_default()
                .to_ascii_lowercase();
            match there.iter().find(|(_, name, ..)| name == column) {
                None => parts.push(format!("ADD COLUMN {column} {definition}")),
                // A server's default decided, of an older table or of ShedLock's. ShedLock's own
                // column keeps its collation.
                Some((.., Some(collation)))
                    if column != "locked_by"
                        && definition.contains(" COLLATE ")
                        && !definition.contains(collation) =>
                {
                    collations.push(format!("MODIFY {column} {definition}"));
                }
                // MariaDB writes bigint(20), MySQL bigint.
                Some((_, _, found, ..))
                    if *found == kind || kind.contains("int") && found.starts_with(&kind) => {}
                Some((_, _, found, charset, _)) if name == "table" => {
                    if column == "name"
                        && charset
                            .as_deref()
                            .is_some_and(|charset| !charset.starts_with("utf8"))
                    {
                        // The bytes of the name must be those of UTF-8.
                        changes += &tables.fill("ALTER TABLE :table MODIFY name VARCHAR(80) CHARACTER SET utf8mb4 NOT NULL;", &[]);
                    }
                    if matches!(column, "name" | "lock_until" | "locked_at")
                        || found.starts_with("varchar") && column != "locked_by"
                    {
                        parts.push(format!("MODIFY {column} {definition}"));
                    }
                }
                Some(_) => {}
            }
        }
        usable &= parts.is_empty();
        parts.append(&mut collations);
        if !parts.is_empty() {
            changes.extend([
                tables.fill(&format!("ALTER TABLE :{name}"), &[]),
                parts.join(", "),
                ";".into(),
            ]);
        }
    }
    let changes = Some(changes).filter(|changes| !changes.is_empty());
    usable &= SIDE_TABLES.iter().all(|(_, suffix)| exists(suffix));
    if usable {
        let older = session
            .ask(&tables.fill("SELECT 1 FROM :table WHERE layout < :layout LIMIT 1;", &[]))
            .await?;
        usable = older.iter().all(|answer| answer.rows.is_empty());
    }
    Ok(TableState { usable, changes })
}

/// See [`Database::collect`](crate::backends::sql::Database::collect).
pub(super) async fn collect(
    session: &mut Connection,
    tables: &Tables,
    options: &SqlOptions,
    unused_for: Duration,
) -> Result<u64> {
    options.check_collect()?;
    let shared = session
        .ask(&tables.fill(
            "SELECT 1 FROM :table WHERE NOT :of_dlock AND locked_by <> :shared LIMIT 1;",
            &[],
        ))
        .await?;
    if shared.first().is_some_and(|answer| !answer.rows.is_empty()) {
        return Err(SqlOptions::shares_table());
    }
    let micros = i64::try_from(unused_for.as_micros()).unwrap_or(i64::MAX);
    let names = Names::new(&options.namespace).starting_with("");
    let values = [("age", Value::Int(micros)), ("start", Value::Bytes(&names))];
    let answers = session
        .ask(&tables.fill(include_str!("sql/collect.sql"), &values))
        .await?;
    Ok(answers.first().map_or(0, |answer| answer.matched))
}
