//! A lock's row for [`kept`](crate::backends::cas): read, and written back if no other client
//! changed the row meanwhile.

use std::time::Duration;

use super::{
    SqlMode,
    names::Names,
    record::{LockRow, Plain},
};
use crate::{
    backends::cas::{Base, Change, ReadFor, Snapshot},
    lock::{
        Fence, HistoryEntry, Key, Mode, ReleaseInfo, Request, Result, Token, Ttl,
        document::Document, random,
    },
};

/// A row as it was read; `None` if there is none.
pub struct RowVersion {
    pub(in crate::backends) row: Option<LockRow>,
    /// The plain waiters that this read moved into the document.
    absorbed: Vec<String>,
    /// The owner of the hold to release.
    releases: Option<Token>,
}

/// A change of a row from `was` to `is`. The row must still have the `revision`, `locked_by` and
/// `lock_until` of `was`; ShedLock changes only the last two.
pub struct Write {
    /// The row as it was read.
    pub was: LockRow,
    /// The row to write.
    pub is: LockRow,
    /// The server time after which the change must not be written: the end of the first hold that
    /// the decision relies on.
    pub by_us: Option<i64>,
    /// Ended holds, for the history.
    pub past: Vec<HistoryEntry>,
    /// The holds that are no longer plain waiters: they are in the document, or have the lock.
    pub absorbed: Vec<String>,
    /// Whether to wake one of the plain waiters.
    pub wake_plain: bool,
    /// A plain waiter in the document to wake; any other plain waiter can replace it.
    pub plain: Option<String>,
    /// The other holds to wake.
    pub wake: Vec<String>,
    /// Whether the row was not read before the write: its ended holds end at the time of the write.
    pub unread: bool,
    /// The request that is granted a fresh hold.
    pub granted: Option<Request>,
    /// The owner of the released hold, if one is released.
    pub releases: Option<Token>,
}

impl Write {
    /// Whether the lock becomes free.
    pub fn frees(&self) -> bool {
        self.was.is_held() && !self.is.is_held()
    }

    /// Returns the row as it is after the write.
    pub fn written(&self) -> LockRow {
        LockRow {
            revision: self.was.revision + 1,
            ..self.is.clone()
        }
    }
}

/// The holds whose lock needed the queue's rules at the last read: a one-step change without these
/// rules would fail.
#[derive(Default)]
pub struct Documented(Vec<u64>);

impl Documented {
    /// Whether the lock needed the rules at this hold's last read.
    pub fn has(&self, token: &Token) -> bool {
        self.0.contains(&token.hold)
    }

    /// Notes whether the lock needs the rules, from a read for a hold.
    pub fn note(&mut self, token: &Token, has: bool) {
        self.forget(token);
        if has {
            self.0.push(token.hold);
        }
    }

    /// Notes that a hold is over.
    pub fn forget(&mut self, token: &Token) {
        self.0.retain(|hold| *hold != token.hold);
    }
}

/// Returns whether plain waiters must be read together with this row: each that a rule may concern
/// now.
pub fn needs_waiters(row: &LockRow, purpose: ReadFor<'_>) -> bool {
    match purpose {
        // A request that neither waits nor can be granted overtakes no waiter.
        ReadFor::Acquire { request, .. } => {
            row.waited
                && row.has_rules_for(request)
                && (request.waiting || !row.is_held() || row.is_shared())
        }
        ReadFor::Look => true,
        ReadFor::Release(..) | ReadFor::Change | ReadFor::Warn => false,
    }
}

/// Returns a row as the rules see it, with its plain waiters.
///
/// # Errors
/// As [`LockRow::document`].
pub fn snapshot(
    row: Option<LockRow>,
    waiters: &[Plain],
    purpose: ReadFor<'_>,
) -> Result<Snapshot<RowVersion>> {
    let mut document = row
        .as_ref()
        .map_or_else(|| Ok(Document::default()), LockRow::document)?;
    let mut absorbed = Vec::new();
    for waiter in waiters {
        // A holder whose grant had no answer may still be in the list of waiters.
        if !document.has_hold(&waiter.hold) {
            waiter.join(&mut document);
            absorbed.push(waiter.hold.clone());
        }
    }
    let apart = match purpose {
        ReadFor::Acquire { request, .. } => {
            row.as_ref().is_none_or(|row| !row.has_rules_for(request))
        }
        _ => false,
    };
    let releases = if let ReadFor::Release(token, _) = purpose {
        Some(*token)
    } else {
        None
    };
    Ok(Snapshot {
        document,
        now_us: row.as_ref().map_or_else(
            || {
                waiters
                    .iter()
                    .map(|waiter| waiter.seen_ms * 1000)
                    .max()
                    .unwrap_or_default()
            },
            |row| u64::try_from(row.now_us).unwrap_or_default(),
        ),
        fence: row.as_ref().map(LockRow::fence).filter(|fence| fence.0 > 0),
        outside: row.as_ref().and_then(LockRow::outside),
        base: if row.is_some() {
            Base::Document
        } else {
            Base::Nothing
        },
        apart,
        version: RowVersion {
            row,
            absorbed,
            releases,
        },
    })
}

/// Returns several rows, with the waiters of all of them.
///
/// # Errors
/// As [`LockRow::document`].
pub fn snapshots(
    names: &Names,
    rows: Vec<LockRow>,
    waiters: &[Plain],
) -> Result<Vec<(Key, Snapshot<RowVersion>)>> {
    let mut found = Vec::new();
    for row in rows {
        // No dlock wrote a row with such a name.
        let Some(key) = names.key(&row.name) else {
            continue;
        };
        let waiters: Vec<_> = waiters
            .iter()
            .filter(|waiter| waiter.name == row.name)
            .cloned()
            .collect();
        found.push((key, snapshot(Some(row), &waiters, ReadFor::Look)?));
    }
    Ok(found)
}

/// The row as this client last wrote it for an exclusive hold of its own, which is extended and
/// released without a read.
#[derive(Default)]
pub struct Own(Option<LockRow>);

impl Own {
    /// Notes a row that was written.
    pub fn note(&mut self, row: LockRow) {
        self.0 = Some(row);
    }

    /// Notes that the row may have changed.
    pub fn forget(&mut self) {
        self.0 = None;
    }

    /// Returns the row of this lock if the hold has the lock exclusively, and the TTL of the hold's
    /// grant.
    pub fn of(&self, name: &str, token: &Token) -> Option<(LockRow, Ttl)> {
        let row = self
            .0
            .as_ref()
            .filter(|row| row.name == name && row.is_held_by(token))?;
        let document = row.document().ok()?;
        let hold = document
            .only_exclusive_holder()
            .filter(|holder| holder.mark.is_none())?
            .holds
            .get(&token.hold_text())?;
        Some((row.clone(), Ttl::new(Duration::from_millis(hold.ttl)).ok()?))
    }
}

/// Returns how to release a hold that has the lock alone, as far as is known, without reading the
/// row.
///
/// # Errors
/// As [`LockRow::document`].
pub fn release(was: LockRow, token: &Token, info: &ReleaseInfo) -> Result<Write> {
    let mut document = was.document()?;
    document.release(token, info, was.now_ms());
    let past = document
        .take_ended()
        .into_iter()
        .map(|past| HistoryEntry {
            ended_ms: None,
            ..past
        })
        .collect();
    Ok(Write {
        by_us: (was.client_mode == SqlMode::Lease).then_some(was.lock_until_us),
        past,
        absorbed: Vec::new(),
        wake_plain: true,
        plain: None,
        wake: Vec::new(),
        unread: true,
        granted: None,
        releases: Some(*token),
        is: was.with(&document, None),
        was,
    })
}

/// Returns the document of a fresh exclusive hold that has the lock alone, by this session if one
/// has it.
pub fn granted(request: &Request, session: Option<&str>) -> Option<String> {
    let mut document = Document::default();
    document.grant(request, Fence(0), 0);
    if let Some(session) = session {
        document.attach(&request.token, session);
    }
    document.take_times();
    document.write()
}

/// Returns how to write a change; `None` if there is no row.
pub fn write(was: Snapshot<RowVersion>, change: Change<'_>) -> Option<Write> {
    let Snapshot {
        document, version, ..
    } = was;
    let RowVersion {
        row,
        mut absorbed,
        releases,
    } = version;
    let was = row?;
    let is = was.with(change.document, change.granted);
    let granted = change.granted.and(change.request).cloned();
    absorbed.extend(
        granted
            .iter()
            .filter(|request| request.waiting)
            .map(|request| request.token.hold_text()),
    );
    let now = was.now_ms();
    // The decision does not rely on holds that were over when the row was read.
    let by = document.holds_end_after(now);
    Some(Write {
        by_us: by.map(|by| i64::try_from(by.saturating_mul(1000)).unwrap_or(i64::MAX)),
        past: change.ended,
        absorbed,
        wake_plain: !is.is_held() || change.wake.iter().any(|woken| woken.plain),
        plain: change
            .wake
            .iter()
            .find(|woken| woken.plain)
            .map(|woken| woken.hold.clone()),
        wake: change
            .wake
            .into_iter()
            .filter(|woken| !woken.plain)
            .map(|woken| woken.hold)
            .collect(),
        unread: false,
        granted,
        releases,
        was,
        is,
    })
}

/// Returns the server's pause before the next read after so many failed writes. Of many
/// simultaneous clients, all but one fail: if they repeated at once, the work would grow with the
/// square of their number.
pub fn pause(failed: u32) -> Duration {
    match failed {
        0 => Duration::ZERO,
        failed => Duration::from_micros(random() % (2_000 << failed.min(9))),
    }
}

/// Whether a request is exclusive and unfair, so that any other such waiter can replace it.
pub fn is_plain(request: &Request) -> bool {
    request.mode == Mode::Exclusive && !request.fair
}
