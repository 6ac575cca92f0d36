//! The lock history in the tables.

use super::{connection::Connection, failure, names::Tables, statement::Value};
use crate::{
    backends::sql::{Fields, fence_int, json},
    lock::{HistoryEntry, Note, Result, SKIPPING_HOSTS, SkipCount},
};

/// Returns the statements that add history entries for the holds that the previous statement ended.
pub(super) fn ended(tables: &Tables, name: &str, past: &[HistoryEntry]) -> Result<Vec<String>> {
    let entry = |past| {
        Ok(tables.fill(
            include_str!("sql/ended.sql"),
            &Written::of(past)?.values(name),
        ))
    };
    let mut statements = past.iter().map(entry).collect::<Result<Vec<_>>>()?;
    let due = past
        .iter()
        .any(|past| past.fence.is_none_or(|fence| fence.0.is_multiple_of(4)));
    statements.extend(due.then(|| trim(tables, name, "@dlock_written > 0")));
    Ok(statements)
}

/// An ended hold as the columns have it.
struct Written {
    fence: i64,
    since: Option<i64>,
    ended: Option<i64>,
    how: String,
    outcome: Option<String>,
    metadata: Option<String>,
}

impl Written {
    fn of(past: &HistoryEntry) -> Result<Self> {
        let ms = |at: Option<u64>| at.and_then(|at| i64::try_from(at).ok());
        Ok(Self {
            fence: past.fence.map_or(0, fence_int),
            since: ms(past.started_ms),
            ended: ms(past.ended_ms),
            how: past.end.to_string(),
            outcome: json(past.outcome.as_ref())?,
            metadata: json(past.metadata.as_ref())?,
        })
    }

    fn values<'a>(&'a self, name: &'a str) -> [(&'a str, Value<'a>); 7] {
        [
            ("name", Value::Bytes(name)),
            ("fence", Value::Int(self.fence)),
            ("since", self.since.map_or(Value::Null, Value::Int)),
            ("ended", self.ended.map_or(Value::Null, Value::Int)),
            ("how", Value::Text(&self.how)),
            ("outcome", Value::text_or_null(self.outcome.as_deref())),
            ("metadata", Value::text_or_null(self.metadata.as_deref())),
        ]
    }
}

/// Returns the SQL that trims the history if `due`.
pub(super) fn trim(tables: &Tables, name: &str, due: &str) -> String {
    tables.fill(
        include_str!("sql/trim.sql"),
        &[("name", Value::Bytes(name)), ("due", Value::Sql(due))],
    )
}

/// Returns the history of a lock, the latest entry first, and its skipped runs by host.
pub(super) async fn read(
    session: &mut Connection,
    tables: &Tables,
    name: &str,
) -> Result<(Vec<HistoryEntry>, Vec<SkipCount>)> {
    let answers = session
        .ask(&tables.fill(
            include_str!("sql/runs.sql"),
            &[("name", Value::Bytes(name))],
        ))
        .await?;
    let [runs, skips, ..] = &*answers else {
        return Err(failure::unreadable());
    };
    let past = runs
        .rows
        .iter()
        .map(|row| Fields::of(row).history_entry())
        .collect::<Result<_>>()?;
    Ok((
        past,
        skips
            .rows
            .iter()
            .map(|row| Fields::of(row).skip_count())
            .collect::<Result<_>>()?,
    ))
}

/// Adds a history entry that no grant or release writes.
pub(super) async fn note(
    session: &mut Connection,
    tables: &Tables,
    name: &str,
    note: &Note,
) -> Result<()> {
    match note {
        Note::Skipped { host, reason, .. } => {
            let values = [
                ("name", Value::Bytes(name)),
                (
                    "most",
                    Value::Int(i64::try_from(SKIPPING_HOSTS).unwrap_or(i64::MAX)),
                ),
                ("host", Value::Text(host)),
                ("reason", Value::Text(reason)),
            ];
            let answers = session
                .ask(&tables.fill(include_str!("sql/skip.sql"), &values))
                .await?;
            // Apart, since it locks the rows of all hosts.
            if answers.last().is_some_and(|beyond| !beyond.rows.is_empty()) {
                session
                    .ask(&tables.fill(include_str!("sql/forget_hosts.sql"), &values[..2]))
                    .await?;
            }
        }
        Note::Lost(past) => {
            session
                .ask(&tables.fill(
                    include_str!("sql/lost.sql"),
                    &Written::of(past)?.values(name),
                ))
                .await?;
        }
    }
    Ok(())
}
