//! What the database has for the history.

use sqlx::{Connection as _, Row as _, sqlite::SqliteRow};

use super::{
    super::{failure, row},
    Store, bind_name, json, run,
};
use crate::lock::{End, HistoryEntry, Key, Namespace, Result, SKIPPING_HOSTS, SkipCount};

const RUNS: &str = include_str!("../sql/runs.sql");
const SKIP: &str = include_str!("../sql/skip.sql");

const COLLECT: &str = include_str!("../sql/collect.sql");
/// What remains of the locks that are gone, and what is remembered from before. ?1 namespace, ?2 for how many ms
const SWEEP: [&str; 4] = [
    "DELETE FROM runs WHERE namespace = ?1 AND coalesce(ended_ms, since_ms, fence / 1000) < (unixepoch('subsec') * 1000) - ?2",
    "DELETE FROM skips WHERE namespace = ?1 AND last_ms < (unixepoch('subsec') * 1000) - ?2",
    "DELETE FROM starts WHERE namespace = ?1 AND ?2 >= 0 \
       AND NOT EXISTS (SELECT 1 FROM locks AS l WHERE l.namespace = starts.namespace AND l.key = starts.key)",
    "DELETE FROM holds WHERE namespace = ?1 AND expires_ms < (unixepoch('subsec') * 1000) - ?2 \
       AND NOT EXISTS (SELECT 1 FROM locks AS l WHERE l.namespace = holds.namespace AND l.key = holds.key)",
];

impl Store {
    /// What is remembered of holds that are over, the latest first.
    pub(in crate::backends::sqlite) async fn runs(&mut self, namespace: &Namespace, key: &Key) -> Result<Vec<HistoryEntry>> {
        let rows = self.rows(bind_name(RUNS, namespace, key)).await?;
        let ms = |at: Option<i64>| at.and_then(|at| u64::try_from(at).ok());
        let read = |row: &SqliteRow| {
            Ok(HistoryEntry {
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
    pub(in crate::backends::sqlite) async fn skips(&mut self, namespace: &Namespace, key: &Key) -> Result<Vec<SkipCount>> {
        let sql = "SELECT host, count, since_ms, last_ms, reason FROM skips WHERE namespace = ?1 AND key = ?2";
        let rows = self.rows(bind_name(sql, namespace, key)).await?;
        let ms = |at: i64| u64::try_from(at).ok();
        let read = |row: &SqliteRow| {
            Ok(SkipCount {
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

    /// Removes what no lock has used for so many ms; returns of how many locks.
    pub(in crate::backends::sqlite) async fn collect(&mut self, namespace: &Namespace, unused_ms: i64) -> Result<u64> {
        self.check().await?;
        self.set_durable(false).await?;
        let mut transaction = self.connection()?.begin_with("BEGIN IMMEDIATE").await.map_err(failure::statement)?;
        let bind = |sql: &'static str| sqlx::query(sql).bind(namespace.as_str().to_owned()).bind(unused_ms);
        let gone = run(&mut transaction, bind(COLLECT)).await?.len();
        for sql in SWEEP {
            run(&mut transaction, bind(sql)).await?;
        }
        transaction.commit().await.map_err(failure::statement)?;
        Ok(u64::try_from(gone).unwrap_or(u64::MAX))
    }

    /// Remembers a hold in its holder's own words, whatever others thought of it.
    pub(in crate::backends::sqlite) async fn lost(&mut self, namespace: &Namespace, key: &Key, past: &HistoryEntry) -> Result<()> {
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
