//! A lock's row, and what it means.

use std::time::Duration;

use sqlx::{Row as _, sqlite::SqliteRow};

use crate::lock::{Break, End, Error, Fence, HistoryEntry, Holder, Kind, Metadata, Mode, Result, Token};

/// One row of `locks`, with the time by the store's clock when it was read.
#[derive(Debug)]
pub(super) struct Row {
    pub key: String,
    pub fence: Fence,
    pub owner: Option<String>,
    pub hold: Option<String>,
    pub detached: bool,
    pub lock_file: i64,
    pub since_ms: i64,
    pub renewed_ms: i64,
    pub ttl_ms: i64,
    pub hold_expires_ms: i64,
    pub expires_ms: i64,
    pub metadata: Option<Metadata>,
    /// The break of the hold: by whom and why.
    pub mark: Option<Break>,
    pub now_ms: i64,
    /// Nested holds whose lease is running.
    pub nested: u32,
    /// Its readers, permits and waiters, as written; and the lock file that shares are locked in.
    pub document: Option<String>,
    pub document_file: Option<i64>,
}

impl Row {
    pub(super) fn read(row: &SqliteRow) -> Result<Self> {
        let read = || -> Result<Self, sqlx::Error> {
            Ok(Self {
                key: row.try_get("key")?,
                fence: fence(row)?,
                owner: row.try_get("owner")?,
                hold: row.try_get("hold")?,
                detached: row.try_get("detached")?,
                lock_file: row.try_get("lock_file")?,
                since_ms: row.try_get("since_ms")?,
                renewed_ms: row.try_get("renewed_ms")?,
                ttl_ms: row.try_get("ttl_ms")?,
                hold_expires_ms: row.try_get("hold_expires_ms")?,
                expires_ms: row.try_get("expires_ms")?,
                metadata: metadata(row)?,
                mark: mark(row)?,
                now_ms: row.try_get("now_ms")?,
                nested: row.try_get("nested")?,
                document: row.try_get("document")?,
                document_file: row.try_get("document_file")?,
            })
        };
        read().map_err(malformed)
    }

    /// Whether the lease, not the lock file, rules the hold: a detached one, or one that is locked in another lock file.
    pub(super) fn by_lease(&self, lock_file: Option<i64>) -> bool {
        self.detached || Some(self.lock_file) != lock_file
    }

    /// Whether the lock is held, given whether any process has the lock file's bytes.
    pub(super) fn is_held(&self, lock_file: Option<i64>, locked: bool) -> bool {
        self.owner.is_some() && if self.by_lease(lock_file) { self.expires_ms > self.now_ms } else { locked }
    }

    pub(super) fn is_owned_by(&self, token: &Token) -> bool {
        self.owner.as_deref() == Some(&*token.owner.to_string())
    }

    pub(super) fn is_first_hold(&self, token: &Token) -> bool {
        self.hold.as_deref() == Some(&*token.hold_text())
    }

    /// The owner's holds: the first one, unless it was given back or a detached one has run out, and the nested ones.
    pub(super) fn holds(&self) -> u32 {
        let first = self.hold.is_some() && (!self.detached || self.hold_expires_ms > self.now_ms);
        u32::from(first) + self.nested
    }

    /// The store's time in ms.
    pub(super) fn now(&self) -> u64 {
        u64::try_from(self.now_ms).unwrap_or_default()
    }

    pub(super) fn expires_in(&self) -> Duration {
        millis(self.expires_ms - self.now_ms)
    }

    pub(super) fn holder(&self) -> Holder {
        Holder {
            permit: None,
            mode: Mode::Exclusive,
            metadata: self.metadata.clone(),
            fence: Some(self.fence),
            foreign: false,
            detached: self.detached,
            held_for: Some(millis(self.now_ms - self.since_ms)),
            renewed_ago: Some(millis(self.now_ms - self.renewed_ms)),
            expires_in: Some(self.expires_in()),
            holds: self.holds().max(1),
            broken: self.mark.clone(),
        }
    }

    /// What is remembered of it once it is over, having never been given back.
    pub(super) fn vanished(self) -> HistoryEntry {
        let (end, why) = self.mark.as_ref().map_or((End::Expired, None), Into::into);
        let ms = |at| u64::try_from(at).ok();
        let ended_ms = ms(self.expires_ms.min(self.now_ms));
        HistoryEntry { fence: Some(self.fence), started_ms: ms(self.since_ms), ended_ms, end, why, metadata: self.metadata }
    }
}

/// A holder that only the lock file knows.
pub(super) fn unknown_holder() -> Holder {
    Holder {
        permit: None,
        mode: Mode::Exclusive,
        metadata: None,
        fence: None,
        foreign: false,
        detached: false,
        held_for: None,
        renewed_ago: None,
        expires_in: None,
        holds: 1,
        broken: None,
    }
}

/// Not below zero: a clock that was set back makes times lie in the future.
pub(super) fn millis(ms: i64) -> Duration {
    Duration::from_millis(u64::try_from(ms).unwrap_or_default())
}

pub(super) fn fence(row: &SqliteRow) -> Result<Fence, sqlx::Error> {
    let fence: i64 = row.try_get("fence")?;
    Ok(Fence(u64::try_from(fence).map_err(|e| sqlx::Error::Decode(e.into()))?))
}

/// What people said of themselves; what can't be read is left out, since no decision hangs on it.
pub(super) fn metadata(row: &SqliteRow) -> Result<Option<Metadata>, sqlx::Error> {
    let json: Option<String> = row.try_get("metadata")?;
    Ok(json.and_then(|json| serde_json::from_str(&json).ok()))
}

/// The break of the hold; likewise.
fn mark(row: &SqliteRow) -> Result<Option<Break>, sqlx::Error> {
    let (json, seen): (Option<String>, bool) = (row.try_get("mark")?, row.try_get("seen")?);
    Ok(json.and_then(|json| serde_json::from_str(&json).ok()).map(|mark| Break { seen, ..mark }))
}

pub(super) fn malformed(error: sqlx::Error) -> Error {
    Error::new(Kind::Data, "a row of the database is not what dlock writes").source(error)
}
