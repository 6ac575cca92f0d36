//! Shared holds and the queue in order: one transaction that reads the row, decides and writes it.
//!
//! [`Document`] decides; the kernel's word on which process lives comes before its times. A share or a waiter whose byte
//! is unlocked was left by a crash, and the next transaction drops it. The exclusive hold lies outside, in the row's own columns.
//!
//! Worst cases: the transaction's answer is lost (it is undone, or asked again and counts once: tokens identify every step); the disk fails
//! in the midst of it (as for any statement here).

use sqlx::{Connection, Row as _, Sqlite, Transaction};

use super::{
    failure,
    lock_file::{Bytes, LockFile},
    row,
    row::Row,
    schema::{LAYOUT, other_layout},
    slot::Slot,
    store::{Store, bind_name, fence_of, json, look, run},
};
use crate::lock::{Fence, HistoryEntry, Key, Namespace, REMEMBERED, Result, document::Document};

const SHARE: &str = include_str!("sql/share.sql");
const PAST: &str = include_str!("sql/past.sql");

/// A lock's row, in a transaction that keeps other writers out.
pub(super) struct Gathering<'a> {
    pub transaction: Transaction<'a, Sqlite>,
    namespace: &'a Namespace,
    key: &'a Key,
    pub row: Option<Row>,
    pub document: Document,
    /// The store's time in ms.
    pub now: u64,
    file: i64,
    past: Vec<HistoryEntry>,
}

/// The kernel's word on which processes live. What it can't say counts as alive.
#[derive(Clone, Copy)]
pub(super) enum Witness<'a> {
    /// For a process that may have bytes of its own, whose lock file is the one that others take.
    Slot(&'a Slot),
    /// For others; without a file no byte is locked.
    File(Option<&'a LockFile>, Bytes),
}

impl Witness<'_> {
    pub(super) fn stands(self, hold: &str) -> bool {
        match self {
            Self::Slot(slot) => slot.stands(hold).unwrap_or(true),
            Self::File(file, bytes) => file.is_some_and(|file| file.others_write(bytes.of_hold(hold).first()).unwrap_or(true)),
        }
    }

    pub(super) fn awaits(self, hold: &str) -> bool {
        match self {
            Self::Slot(slot) => slot.awaits(hold).unwrap_or(true),
            Self::File(file, bytes) => file.is_some_and(|file| file.others_write(bytes.of_hold(hold).alive()).unwrap_or(true)),
        }
    }

    /// Which lock file it speaks of; zero, which no file has, if there is none.
    fn file(self) -> i64 {
        match self {
            Self::Slot(slot) => slot.file.id(),
            Self::File(file, _) => file.map_or(0, LockFile::id),
        }
    }
}

impl Row {
    /// The document as it is now, and the history entries of the holds that have left it.
    pub(super) fn settled(&self, now: u64, witness: Witness<'_>) -> Result<(Document, Vec<HistoryEntry>)> {
        let mut document = Document::read(self.document.as_deref())?;
        if self.document_file != Some(witness.file()) {
            document.detach();
        }
        document.witness(now, |hold| witness.stands(hold), |hold| witness.awaits(hold));
        document.expire(now);
        let past = document.take_ended();
        Ok((document, past))
    }
}

impl Store {
    /// Reads a lock's row to change it. Waiters for the whole lock join a document that there is.
    pub(super) async fn gather<'a>(
        &'a mut self,
        namespace: &'a Namespace,
        key: &'a Key,
        durable: bool,
        witness: Witness<'_>,
    ) -> Result<Gathering<'a>> {
        self.check().await?;
        self.set_durable(durable).await?;
        let mut transaction = self.connection()?.begin_with("BEGIN IMMEDIATE").await.map_err(failure::statement)?;
        let sql =
            "SELECT CAST(round(unixepoch('subsec') * 1000) AS INTEGER) AS now_ms, (SELECT user_version FROM pragma_user_version) AS layout";
        let found = run(&mut transaction, sqlx::query(sql)).await?;
        let found = found.first().ok_or_else(|| failure::statement(sqlx::Error::RowNotFound))?;
        let number = |name: &str| found.try_get::<i64, _>(name).map_err(row::malformed);
        let (now, layout) = (u64::try_from(number("now_ms")?).unwrap_or_default(), number("layout")?);
        if layout != LAYOUT {
            return Err(other_layout(layout));
        }
        let row = look(&mut transaction, namespace, key).await?;
        let (document, past) = match &row {
            Some(row) => row.settled(now, witness)?,
            None => (Document::default(), Vec::new()),
        };
        let mut gathering = Gathering { transaction, namespace, key, row, document, now, file: witness.file(), past };
        if !gathering.document.is_empty() {
            gathering.absorb(witness).await?;
        }
        Ok(gathering)
    }
}

impl Gathering<'_> {
    /// Has the waiters for the whole lock join the document.
    pub(super) async fn absorb(&mut self, witness: Witness<'_>) -> Result<()> {
        let sql = "DELETE FROM waiters WHERE namespace = ?1 AND key = ?2 RETURNING place, hold, since_ms, metadata";
        let mut rows = run(&mut self.transaction, bind_name(sql, self.namespace, self.key)).await?;
        rows.sort_by_key(|row| row.try_get::<i64, _>("place").unwrap_or_default());
        for row in &rows {
            let read = || Ok::<_, sqlx::Error>((row.try_get::<String, _>("hold")?, row.try_get::<i64, _>("since_ms")?));
            let (hold, since) = read().map_err(row::malformed)?;
            if witness.awaits(&hold) {
                let since = u64::try_from(since).unwrap_or_default().min(self.now);
                self.document.absorb(hold, row::metadata(row).map_err(row::malformed)?, since, self.now);
            }
        }
        Ok(())
    }

    /// The fence of a share that is granted now. Every exclusive hold is over.
    pub(super) async fn count_fence(&mut self) -> Result<Fence> {
        let now = i64::try_from(self.now).unwrap_or(i64::MAX);
        let query = bind_name(SHARE, self.namespace, self.key).bind(now).bind(self.file);
        let fence = fence_of(&run(&mut self.transaction, query).await?)?;
        fence.ok_or_else(|| failure::statement(sqlx::Error::RowNotFound))
    }

    /// Writes what changed.
    pub(super) async fn save(mut self) -> Result<()> {
        self.past.extend(self.document.take_ended());
        let document = self.document.write();
        let before = self.row.as_ref().map(|row| (row.document.clone(), row.document_file));
        let after = (document.clone(), document.is_some().then_some(self.file));
        if before.as_ref() != Some(&after) && (before.is_some() || document.is_some()) {
            // A waiter for a lock that was never taken comes before its first fence.
            let sql = "INSERT INTO locks (namespace, key, fence, detached, lock_file, since_ms, renewed_ms, ttl_ms, hold_expires_ms, \
                       expires_ms, document, document_file) VALUES (?1, ?2, 0, 0, ?5, 0, 0, 0, 0, 0, ?3, ?4) \
                       ON CONFLICT (namespace, key) DO UPDATE SET document = excluded.document, document_file = excluded.document_file";
            run(&mut self.transaction, bind_name(sql, self.namespace, self.key).bind(after.0).bind(after.1).bind(self.file)).await?;
        }
        for past in std::mem::take(&mut self.past) {
            self.write_past(past).await?;
        }
        self.transaction.commit().await.map_err(failure::statement)
    }

    async fn write_past(&mut self, past: HistoryEntry) -> Result<()> {
        let ms = |at: Option<u64>| at.and_then(|at| i64::try_from(at).ok());
        let fence = past.fence.map_or(0, |fence| i64::try_from(fence.0).unwrap_or(i64::MAX));
        let query = bind_name(PAST, self.namespace, self.key).bind(fence).bind(ms(past.started_ms)).bind(ms(past.ended_ms));
        let query = query.bind(past.end.to_string()).bind(past.why).bind(json(past.metadata.as_ref()));
        run(&mut self.transaction, query).await?;
        if past.started_ms.is_some_and(|at| at % 4 == 0) {
            let most = i64::try_from(REMEMBERED).unwrap_or(i64::MAX) - 1;
            run(&mut self.transaction, bind_name(include_str!("sql/forget.sql"), self.namespace, self.key).bind(most)).await?;
        }
        Ok(())
    }
}
