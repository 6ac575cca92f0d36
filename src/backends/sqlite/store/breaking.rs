//! Breaking a hold, as the database has it.

use sqlx::Connection as _;

use super::{
    super::{failure, row::Row},
    FREE, Locked, Store, bind_name, look, run,
};
use crate::lock::{Break, Fence, Key, Namespace, Result};

impl Store {
    /// Marks the hold with this fence, or frees its lock at once if only its row keeps it. Says whose row was found held.
    pub(in crate::backends::sqlite) async fn break_hold(
        &mut self,
        (namespace, key): (&Namespace, &Key),
        fence: Fence,
        mark: &Break,
        lock: Locked,
        at_once: bool,
    ) -> Result<Option<Row>> {
        self.check().await?;
        self.set_durable(true).await?;
        let mut transaction = self.connection()?.begin_with("BEGIN IMMEDIATE").await.map_err(failure::statement)?;
        let found = look(&mut transaction, namespace, key).await?;
        let Some(row) = found.filter(|row| row.fence == fence && row.is_held(Some(lock.file), lock.locked)) else { return Ok(None) };
        let (end, why) = mark.into();
        let query = if !at_once {
            let sql = "UPDATE locks SET mark = ?3, broken = ?4 WHERE namespace = ?1 AND key = ?2";
            bind_name(sql, namespace, key).bind(serde_json::to_string(mark).ok()).bind(why)
        } else if row.by_lease(Some(lock.file)) {
            bind_name(FREE, namespace, key).bind(end.to_string()).bind(why)
        } else {
            return Ok(Some(row));
        };
        run(&mut transaction, query).await?;
        transaction.commit().await.map_err(failure::statement)?;
        Ok(Some(row))
    }
}
