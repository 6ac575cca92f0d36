//! The lock history in the tables.

use super::{
    connection::{Answer, Connection, Row},
    failure,
    names::Tables,
    reading::Fields,
    statement::Value,
    table::json,
};
use crate::lock::{End, Fence, HistoryEntry, Note, Result, SKIPPING_HOSTS, SkipCount};

/// Remembers holds that are over by what was just written, as SQL.
pub(super) fn ended(tables: &Tables, name: &str, past: &[HistoryEntry]) -> Result<String> {
    let mut sql = String::new();
    for past in past {
        sql += &tables.fill(include_str!("sql/ended.sql"), &Written::of(past)?.values(name));
    }
    let due = past.iter().any(|past| past.fence.is_none_or(|fence| fence.0.is_multiple_of(4)));
    Ok(if due { sql + &trim(tables, name, "@dlock_written > 0") } else { sql })
}

/// A hold that is over, as columns have it.
struct Written {
    fence: i64,
    since: Option<i64>,
    ended: Option<i64>,
    how: String,
    why: Option<String>,
    metadata: Option<String>,
}

impl Written {
    fn of(past: &HistoryEntry) -> Result<Self> {
        let ms = |at: Option<u64>| at.and_then(|at| i64::try_from(at).ok());
        Ok(Self {
            fence: past.fence.map_or(0, |fence| i64::try_from(fence.0).unwrap_or(i64::MAX)),
            since: ms(past.started_ms),
            ended: ms(past.ended_ms),
            how: past.end.to_string(),
            why: past.why.clone(),
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
            ("why", Value::text_or_null(self.why.as_deref())),
            ("metadata", Value::text_or_null(self.metadata.as_deref())),
        ]
    }
}

/// Forgets what is beyond the bounds, if it is `due`, as SQL.
pub(super) fn trim(tables: &Tables, name: &str, due: &str) -> String {
    tables.fill(include_str!("sql/trim.sql"), &[("name", Value::Bytes(name)), ("due", Value::Sql(due))])
}

/// Returns the history of a lock, the latest entry first, and its skipped runs by host.
pub(super) async fn read(session: &mut Connection, tables: &Tables, name: &str) -> Result<(Vec<HistoryEntry>, Vec<SkipCount>)> {
    let answers = session.ask(&tables.fill(include_str!("sql/runs.sql"), &[("name", Value::Bytes(name))])).await?;
    let [runs, skips, ..] = &*answers else { return Err(failure::unreadable()) };
    Ok((runs.rows.iter().map(|row| past(Fields::of(row))).collect::<Result<_>>()?, skips.rows.iter().map(skip).collect::<Result<_>>()?))
}

/// Remembers what comes with no grant and no release.
pub(super) async fn note(session: &mut Connection, tables: &Tables, name: &str, note: &Note) -> Result<()> {
    let batch = match note {
        Note::Skipped { host, reason, .. } => {
            let values = [
                ("name", Value::Bytes(name)),
                ("host", Value::Text(host)),
                ("reason", Value::Text(reason)),
                ("most", Value::Int(i64::try_from(SKIPPING_HOSTS).unwrap_or(i64::MAX))),
            ];
            tables.fill(include_str!("sql/skip.sql"), &values)
        }
        Note::Lost(past) => tables.fill(include_str!("sql/lost.sql"), &Written::of(past)?.values(name)),
    };
    session.ask(&batch).await.map(|_| ())
}

/// Claims a warning, as SQL.
pub(super) fn claim(tables: &Tables, name: &str, fence: Fence, level: u32) -> String {
    let values = [
        ("name", Value::Bytes(name)),
        ("fence", Value::Int(i64::try_from(fence.0).unwrap_or(i64::MAX))),
        ("level", Value::Int(level.into())),
    ];
    tables.fill(include_str!("sql/warn.sql"), &values)
}

/// Whether it was.
pub(super) fn is_claimed(answers: &[Answer]) -> bool {
    answers.first().is_some_and(|answer| answer.matched > 0)
}

/// A hold that is over, as its columns say it from here on.
pub(super) fn past(mut fields: Fields<'_>) -> Result<HistoryEntry> {
    let fence = fields.int()?;
    let ms = |at: Option<i64>| at.and_then(|at| u64::try_from(at).ok());
    Ok(HistoryEntry {
        fence: Some(Fence(u64::try_from(fence).unwrap_or_default())),
        started_ms: ms(fields.int_or_null()?),
        ended_ms: ms(fields.int_or_null()?),
        end: End::from(&*fields.text()?),
        why: fields.text_or_null()?,
        metadata: fields.text_or_null()?.and_then(|json| serde_json::from_str(&json).ok()),
    })
}

fn skip(row: &Row) -> Result<SkipCount> {
    let mut fields = Fields::of(row);
    let ms = |at: i64| u64::try_from(at).ok();
    Ok(SkipCount {
        host: fields.text()?,
        count: u64::try_from(fields.int()?).unwrap_or_default(),
        since_ms: ms(fields.int()?),
        last_ms: ms(fields.int()?),
        reason: fields.text()?,
    })
}
