//! The queue, as the database has it.

use sqlx::{Row as _, sqlite::SqliteRow};

use super::{
    super::row::{self, millis},
    Store, Whose, bind_name, bind_whose, changes, json,
};
use crate::lock::{Key, Metadata, Namespace, Result, Waiter};

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

    /// The waiters' entries, longest first, by hold; some may be gone.
    pub(in crate::backends::sqlite) async fn queue(&mut self, namespace: &Namespace, key: &Key) -> Result<Vec<(String, Waiter)>> {
        self.check().await?;
        let sql = "SELECT hold, metadata, CAST(round(unixepoch('subsec') * 1000) AS INTEGER) - since_ms AS waited_ms \
                   FROM waiters WHERE namespace = ?1 AND key = ?2 AND hold IS NOT NULL ORDER BY place";
        let rows = self.rows(bind_name(sql, namespace, key)).await?;
        let read = |row: &SqliteRow| {
            let waiting_for = Some(millis(row.try_get("waited_ms")?));
            let waiter = Waiter { metadata: row::metadata(row)?, waiting_for, in_order: false };
            Ok((row.try_get("hold")?, waiter))
        };
        rows.iter().map(|row| read(row).map_err(row::malformed)).collect()
    }
}
