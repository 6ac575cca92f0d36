//! The lock history in the tables.

use super::{
    connection::PostgresSession,
    names::Tables,
    statement::{Value, fill, json},
};
use crate::{
    backends::sql::{Fields, fence_int},
    lock::{HistoryEntry, Note, Result, SKIPPING_HOSTS, SkipCount},
};

/// Returns the finished holds, the latest first, and the skipped runs.
pub(super) async fn read(
    session: &mut PostgresSession,
    tables: &Tables,
    name: &str,
) -> Result<(Vec<HistoryEntry>, Vec<SkipCount>)> {
    let runs = session
        .query(
            &tables.fill(include_str!("sql/runs.sql")),
            &[Value::Text(name)],
        )
        .await?;
    let skips = session
        .query(
            &tables.fill(include_str!("sql/skips.sql")),
            &[Value::Text(name)],
        )
        .await?;
    let runs = runs
        .iter()
        .map(|row| Fields::of(row).history_entry())
        .collect::<Result<_>>()?;
    Ok((
        runs,
        skips
            .iter()
            .map(|row| Fields::of(row).skip_count())
            .collect::<Result<_>>()?,
    ))
}

/// Adds a history entry that no grant or release writes.
pub(super) async fn note(
    session: &mut PostgresSession,
    tables: &Tables,
    name: &str,
    note: &Note,
) -> Result<()> {
    match note {
        Note::Skipped { host, reason, .. } => {
            let most = i64::try_from(SKIPPING_HOSTS).unwrap_or(i64::MAX);
            let (host, reason) = (
                session.words(host).into_owned(),
                session.words(reason).into_owned(),
            );
            let values = [
                Value::Text(name),
                Value::Text(&host),
                Value::Text(&reason),
                Value::Int(most),
            ];
            session
                .query(&tables.fill(include_str!("sql/skip.sql")), &values)
                .await?;
        }
        Note::Lost(past) => {
            let (metadata, end) = (json(past.metadata.as_ref())?, past.end.to_string());
            let outcome = json(past.outcome.as_ref())?;
            let values = [
                Value::Text(name),
                Value::Int(past.fence.map_or(0, fence_int)),
                Value::MaybeInt(bigint(past.started_ms)),
                Value::MaybeInt(bigint(past.ended_ms)),
                Value::Text(&end),
                Value::Maybe(outcome.as_deref()),
                Value::Maybe(metadata.as_deref()),
            ];
            session
                .query(&tables.fill(include_str!("sql/lost.sql")), &values)
                .await?;
        }
    }
    Ok(())
}

/// Returns ended holds as rows of `VALUES`.
pub(super) fn rows(session: &PostgresSession, past: &[HistoryEntry]) -> Result<String> {
    let mut rows = Vec::new();
    for past in past {
        let (metadata, end) = (json(past.metadata.as_ref())?, past.end.to_string());
        let (end, outcome) = (session.words(&end), json(past.outcome.as_ref())?);
        let values = [
            Value::MaybeInt(past.fence.map(fence_int)),
            Value::MaybeInt(bigint(past.started_ms)),
            Value::MaybeInt(bigint(past.ended_ms)),
            Value::Text(&end),
            Value::Maybe(outcome.as_deref()),
            Value::Maybe(metadata.as_deref()),
        ];
        rows.push(fill("($1, $2, $3, $4, $5, $6)", &values));
    }
    Ok(rows.join(", "))
}

fn bigint(ms: Option<u64>) -> Option<i64> {
    ms.and_then(|ms| i64::try_from(ms).ok())
}
