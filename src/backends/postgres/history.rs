//! What the tables remember of holds that are over, and marks on those that are not.

use sqlx::{Row as _, postgres::PgRow};

use super::{
    connection::Session,
    failure,
    names::Tables,
    statement::{Value, fill},
    table,
};
use crate::lock::{End, Fence, HistoryEntry, Note, Result, SKIPPING_HOSTS, SkipCount};

/// Returns the finished holds, the latest first, and the skipped runs.
pub(super) async fn read(session: &mut Session, tables: &Tables, name: &str) -> Result<(Vec<HistoryEntry>, Vec<SkipCount>)> {
    let runs = session.query(&tables.fill(include_str!("sql/runs.sql")), &[Value::Text(name)]).await?;
    let skips = session.query(&tables.fill(include_str!("sql/skips.sql")), &[Value::Text(name)]).await?;
    let runs = runs.iter().map(past).collect::<Result<_, _>>().map_err(failure::malformed)?;
    Ok((runs, skips.iter().map(skip).collect::<Result<_, _>>().map_err(failure::malformed)?))
}

/// Forgets what is beyond the bounds, after a hold was written down that had vanished: one in four times. That it fails leaves it to
/// the next.
pub(super) async fn trim_at_times(session: &mut Session, tables: &Tables, name: &str, fence: Fence) {
    if fence.0.is_multiple_of(4) {
        let _ = session.query(&tables.fill(include_str!("sql/trim.sql")), &[Value::Text(name)]).await;
    }
}

/// What the holders of a lock that sessions keep would be remembered by if they had vanished.
pub(super) async fn maybe_vanished(session: &mut Session, tables: &Tables, name: &str) -> Result<Vec<HistoryEntry>> {
    let rows = session.query(&tables.fill(include_str!("sql/vanished.sql")), &[Value::Text(name)]).await?;
    rows.iter().map(past).collect::<Result<_, _>>().map_err(failure::malformed)
}

/// Remembers what comes with no grant and no release.
pub(super) async fn note(session: &mut Session, tables: &Tables, name: &str, note: &Note) -> Result<()> {
    match note {
        Note::Skipped { host, reason, .. } => {
            let most = i64::try_from(SKIPPING_HOSTS).unwrap_or(i64::MAX);
            let (host, reason) = (session.words(host).into_owned(), session.words(reason).into_owned());
            let values = [Value::Text(name), Value::Text(&host), Value::Text(&reason), Value::Int(most)];
            session.query(&tables.fill(include_str!("sql/skip.sql")), &values).await?;
        }
        Note::Lost(past) => {
            let (metadata, end) = (table::json(past.metadata.as_ref())?, past.end.to_string());
            let why = past.why.as_deref().map(|why| session.words(why).into_owned());
            let values = [
                Value::Text(name),
                Value::Int(past.fence.map_or(0, |fence| i64::try_from(fence.0).unwrap_or(i64::MAX))),
                Value::MaybeInt(bigint(past.started_ms)),
                Value::MaybeInt(bigint(past.ended_ms)),
                Value::Text(&end),
                Value::Maybe(why.as_deref()),
                Value::Maybe(metadata.as_deref()),
            ];
            session.query(&tables.fill(include_str!("sql/lost.sql")), &values).await?;
        }
    }
    Ok(())
}

/// Holds that are over, as rows of `VALUES`.
pub(super) fn rows(session: &Session, past: &[HistoryEntry]) -> Result<String> {
    let mut rows = Vec::new();
    for past in past {
        let (metadata, end) = (table::json(past.metadata.as_ref())?, past.end.to_string());
        let (end, why) = (session.words(&end), past.why.as_deref().map(|why| session.words(why)));
        let values = [
            Value::MaybeInt(past.fence.map(|fence| i64::try_from(fence.0).unwrap_or(i64::MAX))),
            Value::MaybeInt(bigint(past.started_ms)),
            Value::MaybeInt(bigint(past.ended_ms)),
            Value::Text(&end),
            Value::Maybe(why.as_deref()),
            Value::Maybe(metadata.as_deref()),
        ];
        rows.push(fill("($1, $2, $3, $4, $5, $6)", &values));
    }
    Ok(rows.join(", "))
}

fn bigint(ms: Option<u64>) -> Option<i64> {
    ms.and_then(|ms| i64::try_from(ms).ok())
}

fn ms(row: &PgRow, column: &str) -> Result<Option<u64>, sqlx::Error> {
    Ok(row.try_get::<Option<i64>, _>(column)?.and_then(|at| u64::try_from(at).ok()))
}

fn past(row: &PgRow) -> Result<HistoryEntry, sqlx::Error> {
    let metadata: Option<String> = row.try_get("metadata")?;
    Ok(HistoryEntry {
        fence: Some(Fence(u64::try_from(row.try_get::<i64, _>("fence")?).unwrap_or_default())),
        started_ms: ms(row, "since_ms")?,
        ended_ms: ms(row, "ended_ms")?,
        end: End::from(row.try_get::<&str, _>("how")?),
        why: row.try_get("why")?,
        metadata: metadata.and_then(|json| serde_json::from_str(&json).ok()),
    })
}

fn skip(row: &PgRow) -> Result<SkipCount, sqlx::Error> {
    Ok(SkipCount {
        host: row.try_get("host")?,
        count: u64::try_from(row.try_get::<i64, _>("count")?).unwrap_or_default(),
        since_ms: ms(row, "since_ms")?,
        last_ms: ms(row, "last_ms")?,
        reason: row.try_get("reason")?,
    })
}
