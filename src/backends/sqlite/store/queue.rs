//! The queue, as the database has it.

use std::collections::HashMap;

use sqlx::{AssertSqlSafe, Row as _, sqlite::SqliteRow};

use super::{
    super::row::{self, millis},
    Store, Whose, bind_name, bind_whose, changes, json,
};
use crate::lock::{Key, Metadata, Namespace, Result, Waiter};

/// Which keys' waiters.
#[derive(Clone, Copy)]
pub(in crate::backends::sqlite) enum Names<'a> {
    One(&'a Key),
    /// All that start with this, by bytes.
    Starting(&'a str),
}

/// The waiters of each key with their holds, longest first; some may be gone.
pub(in crate::backends::sqlite) type Queues = HashMap<String, Vec<(String, Waiter)>>;

impl Store {
    /// Puts a waiter into the list of waiters, once.
    pub(in crate::backends::sqlite) async fn join_queue(&mut self, whose: Whose<'_>, metadata: Option<&Metadata>) -> Result<()> {
        self.check().await?;
        self.set_durable(false).await?;
        let sql = "INSERT INTO waiters (namespace, key, owner, hold, since_ms, metadata) \
                   VALUES (?1, ?2, ?3, ?4, CAST(round(unixepoch('subsec') * 1000) AS INTEGER), ?5) ON CONFLICT DO NOTHING";
        let query = bind_whose(sql, whose).bind(json(metadata));
        self.rows(query).await.map(|_| ())
    }

    /// Takes a waiter out again; whether it was there.
    pub(in crate::backends::sqlite) async fn leave_queue(&mut self, namespace: &Namespace, key: &Key, hold: &str) -> Result<bool> {
        let sql = "DELETE FROM waiters WHERE namespace = ?1 AND key = ?2 AND hold = ?3";
        changes(self.connection()?, bind_name(sql, namespace, key).bind(hold.to_owned())).await
    }

    /// Whether it is in the list of waiters.
    pub(in crate::backends::sqlite) async fn is_queued(&mut self, whose: Whose<'_>) -> Result<bool> {
        let sql = "SELECT 1 FROM waiters WHERE namespace = ?1 AND key = ?2 AND owner = ?3 AND hold = ?4";
        Ok(!self.rows(bind_whose(sql, whose)).await?.is_empty())
    }

    /// The holds of a few waiters, longest first; some may be gone.
    pub(in crate::backends::sqlite) async fn first_queued(&mut self, namespace: &Namespace, key: &Key) -> Result<Vec<String>> {
        let sql = "SELECT hold FROM waiters WHERE namespace = ?1 AND key = ?2 ORDER BY place LIMIT 4";
        let rows = self.rows(bind_name(sql, namespace, key)).await?;
        rows.iter().map(|row| row.try_get("hold").map_err(row::malformed)).collect()
    }

    /// The waiters of these keys.
    pub(in crate::backends::sqlite) async fn queues(&mut self, namespace: &Namespace, names: Names<'_>) -> Result<Queues> {
        self.check().await?;
        let (these, name) = match names {
            Names::One(key) => ("key = ?2", key.as_str()),
            Names::Starting(start) => ("key >= ?2 AND substr(CAST(key AS BLOB), 1, length(CAST(?2 AS BLOB))) = CAST(?2 AS BLOB)", start),
        };
        let sql = format!(
            "SELECT key, hold, metadata, CAST(round(unixepoch('subsec') * 1000) AS INTEGER) - since_ms AS waited_ms \
             FROM waiters WHERE namespace = ?1 AND {these} ORDER BY place"
        );
        let query = sqlx::query(AssertSqlSafe(sql)).bind(namespace.as_str().to_owned()).bind(name.to_owned());
        let read = |row: &SqliteRow| {
            let waiting_for = Some(millis(row.try_get("waited_ms")?));
            let waiter = Waiter { metadata: row::metadata(row)?, waiting_for, in_order: false };
            Ok((row.try_get::<String, _>("key")?, row.try_get("hold")?, waiter))
        };
        let mut queues = Queues::new();
        for row in self.rows(query).await? {
            let (key, hold, waiter) = read(&row).map_err(row::malformed)?;
            queues.entry(key).or_default().push((hold, waiter));
        }
        Ok(queues)
    }
}
