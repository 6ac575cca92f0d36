//! What the database has for the history.

use sqlx::{Row as _, sqlite::SqliteRow};

use super::{super::row, Store, bind_name, json};
use crate::lock::{End, Key, Namespace, Past, Result, SKIPPING_HOSTS, Skips};

const RUNS: &str = include_str!("../sql/runs.sql");
const SKIP: &str = include_str!("../sql/skip.sql");

impl Store {
    /// What is remembered of holds that are over, the latest first.
    pub(in crate::backends::sqlite) async fn runs(&mut self, namespace: &Namespace, key: &Key) -> Result<Vec<Past>> {
        let rows = self.rows(bind_name(RUNS, namespace, key)).await?;
        let ms = |at: Option<i64>| at.and_then(|at| u64::try_from(at).ok());
        let read = |row: &SqliteRow| {
            Ok(Past {
                fence: Some(row::fence(row)?),
                started_ms: ms(row.try_get("since_ms")?),
                ended_ms: ms(row.try_get("ended_ms")?),
                end: End::from(row.try_get::<&str, _>("ended")?),
                why: row.try_get("why")?,
                metadata: row::metadata(row)?,
            })
        };
        rows.iter().map(|row| read(row).map_err(row::malformed)).collect()
    }

    /// Which hosts did without.
    pub(in crate::backends::sqlite) async fn skips(&mut self, namespace: &Namespace, key: &Key) -> Result<Vec<Skips>> {
        let sql = "SELECT host, count, since_ms, last_ms, reason FROM skips WHERE namespace = ?1 AND key = ?2";
        let rows = self.rows(bind_name(sql, namespace, key)).await?;
        let ms = |at: i64| u64::try_from(at).ok();
        let read = |row: &SqliteRow| {
            Ok(Skips {
                host: row.try_get("host")?,
                count: u64::try_from(row.try_get::<i64, _>("count")?).unwrap_or_default(),
                since_ms: ms(row.try_get("since_ms")?),
                last_ms: ms(row.try_get("last_ms")?),
                reason: row.try_get("reason")?,
            })
        };
        rows.iter().map(|row| read(row).map_err(row::malformed)).collect()
    }

    /// Counts a host that did without.
    pub(in crate::backends::sqlite) async fn skip(&mut self, namespace: &Namespace, key: &Key, host: &str, reason: &str) -> Result<()> {
        self.check().await?;
        self.set_durable(false).await?;
        let most = i64::try_from(SKIPPING_HOSTS).unwrap_or(i64::MAX);
        self.rows(bind_name(SKIP, namespace, key).bind(host.to_owned()).bind(reason.to_owned()).bind(most)).await.map(|_| ())
    }

    /// Remembers a hold in its holder's own words, whatever others thought of it.
    pub(in crate::backends::sqlite) async fn lost(&mut self, namespace: &Namespace, key: &Key, past: &Past) -> Result<()> {
        self.check().await?;
        self.set_durable(false).await?;
        let ms = |at: Option<u64>| at.and_then(|at| i64::try_from(at).ok());
        let sql = "INSERT OR REPLACE INTO runs (namespace, key, fence, since_ms, ended_ms, ended, why, metadata) \
                   VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";
        let fence = past.fence.map_or(0, |fence| i64::try_from(fence.0).unwrap_or(i64::MAX));
        let query = bind_name(sql, namespace, key).bind(fence).bind(ms(past.started_ms)).bind(ms(past.ended_ms));
        self.rows(query.bind(past.end.to_string()).bind(past.why.clone()).bind(json(past.metadata.as_ref()))).await.map(|_| ())
    }
}
