//! A row of a lock table, and its meaning.

use std::time::Duration;

use super::{
    SqlMode,
    names::{OWNER, locked_by},
};
use crate::{
    backends::cas::Outside,
    lock::{
        self, Error, Fence, Holder, Kind, Metadata, Mode, Request, Result, Token, Ttl, Waiter,
        document::{Document, Times},
    },
};

/// The layout that this version writes: its major number times a hundred, plus its minor one.
pub const LAYOUT: i16 = 400;
/// From this number on a layout has a newer major version and must not be changed.
pub const LAYOUT_REFUSED: i16 = 500;

/// From this number on a fence can't be raised: programs that read JSON have no exact numbers
/// beyond.
pub const LAST_FENCE: i64 = (1 << 53) - 2;
/// The value of `locked_by` while several holders may share the lock.
pub const SHARED_BY: &str = "dlock:shared";
/// The end of a released lock, in µs since 1970: the year 2000, before any clock's present.
pub const ENDED_US: i64 = 946_684_800_000_000;

/// One row, with the time by the server's clock when it was read. Times are microseconds since
/// 1970.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockRow {
    /// The lock's name in the table.
    pub name: String,
    /// The time of the read.
    pub now_us: i64,
    /// ShedLock's column: the end of the hold.
    pub lock_until_us: i64,
    /// ShedLock's column: the time of the grant.
    pub locked_at_us: i64,
    /// ShedLock's column: the owner.
    pub locked_by: String,
    /// The layout of dlock's columns; `None` if no dlock ever had the lock.
    pub layout: Option<i16>,
    /// The value that dlock wrote into `locked_by`. While both are equal, no other program has
    /// taken the lock since.
    pub owner: Option<String>,
    /// The last fence given out; 0 for none.
    pub fence: i64,
    /// The time of the last renewal.
    pub renewed_us: i64,
    /// The holders and the queue, as [`Document`] writes them; `None` if there are none. The times
    /// and the fence of an exclusive hold are in columns, since the statement that grants or
    /// extends the hold sets them.
    pub document: Option<String>,
    /// Whether there are plain waiters, which are not in the document.
    pub waited: bool,
    /// The mode that keeps the lock, unless it is `mode=lease`.
    pub mode: Option<String>,
    /// The mode in which this client reads and writes the row.
    pub client_mode: SqlMode,
    /// The number of changes: a write succeeds only if the row is still at the revision that was
    /// read.
    pub revision: i64,
    /// The run records that later runs depend on.
    pub starts: lock::RunRecord,
}

/// An unfair exclusive waiter, which is stored separately while the row has no document. Times are
/// ms since 1970.
#[derive(Clone, Debug)]
pub struct Plain {
    /// The lock's name in the table.
    pub name: String,
    /// The hold, as [`Token::hold_text`] has it.
    pub hold: String,
    /// The start of the wait.
    pub since_ms: u64,
    /// The time of the waiter's last request.
    pub seen_ms: u64,
    /// The waiting time.
    pub waited: Duration,
    /// The waiter's metadata, as JSON.
    pub metadata: Option<String>,
}

impl Plain {
    fn metadata(&self) -> Option<Metadata> {
        self.metadata
            .as_deref()
            .and_then(|json| serde_json::from_str(json).ok())
    }

    /// Puts the waiter into a document, at its position.
    pub fn join(&self, document: &mut Document) {
        document.absorb(
            self.hold.clone(),
            self.metadata(),
            self.since_ms,
            self.seen_ms,
        );
    }

    /// Returns the waiter for `inspect`.
    pub fn waiter(&self) -> Waiter {
        Waiter {
            metadata: self.metadata(),
            mode: Some(Mode::Exclusive),
            waiting_for: Some(self.waited),
            in_order: false,
        }
    }
}

impl LockRow {
    /// Returns the time of the read, in ms.
    pub fn now_ms(&self) -> u64 {
        floor_ms(self.now_us)
    }

    /// Returns the stored document, or an empty one if it is unreadable, which
    /// [`LockRow::document`] reports.
    fn stored(&self) -> Document {
        Document::read(self.document.as_deref()).unwrap_or_default()
    }

    /// Whether the lock has a holder. The row of a released lock may keep other programs out for a
    /// while.
    pub fn is_held(&self) -> bool {
        self.lock_until_us > self.now_us && (!self.is_ours() || self.stored().has_holders())
    }

    /// Whether dlock was the last program to take the lock.
    pub fn is_ours(&self) -> bool {
        self.owner.as_deref() == Some(&*self.locked_by)
    }

    /// Whether several holders may share the lock.
    pub fn is_shared(&self) -> bool {
        self.locked_by == SHARED_BY
    }

    /// Whether this token's owner has the lock exclusively.
    pub fn is_held_by(&self, token: &Token) -> bool {
        self.is_ours() && self.locked_by == locked_by(token) && self.is_held()
    }

    /// Whether the queue's rules apply to a request.
    pub fn has_rules_for(&self, request: &Request) -> bool {
        let stored = self.stored();
        !stored.queue().is_empty()
            || (stored.has_holders() && stored.exclusive_owner().is_none())
            || request.mode != Mode::Exclusive
            || (request.fair && request.waiting && self.is_held())
    }

    /// Returns the last fence given out.
    pub fn fence(&self) -> Fence {
        Fence(u64::try_from(self.fence).unwrap_or_default())
    }

    /// Returns another program's hold.
    pub fn outside(&self) -> Option<Outside> {
        if self.is_ours() || !self.is_held() {
            return None;
        }
        let holder = Holder {
            permit: None,
            mode: Mode::Exclusive,
            // By default ShedLock writes its host's name.
            metadata: Some(Metadata {
                host: Some(self.locked_by.clone()),
                ..Metadata::default()
            }),
            fence: None,
            foreign: true,
            detached: false,
            held_for: Some(micros(self.now_us.saturating_sub(self.locked_at_us))),
            renewed_ago: None,
            expires_in: Some(micros(self.lock_until_us.saturating_sub(self.now_us))),
            removal: None,
            holds: 1,
            broken: None,
        };
        Some(Outside {
            holder,
            left: Some(ceil_ms(self.lock_until_us).saturating_sub(self.now_ms())),
            transient: false,
        })
    }

    /// Returns the row's document, with holds that may be over.
    ///
    /// # Errors
    /// [`Kind::Config`] if another mode keeps the lock, [`Kind::Layout`] if another version of
    /// dlock wrote the row, [`Kind::Data`] if no dlock did.
    pub fn document(&self) -> Result<Document> {
        // Sessions may take over a lease that is free, with its run record.
        let lease = SqlMode::Lease.name();
        let (kept_in, own) = (
            self.mode.as_deref().unwrap_or(lease),
            self.client_mode.name(),
        );
        if kept_in != own && (kept_in != lease || self.is_held()) {
            return Err(other_mode(kept_in));
        }
        check_layout(self.layout)?;
        let mut document = Document::read(self.document.as_deref())?;
        document.set_run_record(self.starts.clone());
        // If another program took the lock, the columns say nothing about dlock's last hold: that
        // hold began when its fence was counted, and ended before the lock was taken.
        let (since, ends) = if self.is_ours() {
            (floor_ms(self.locked_at_us), ceil_ms(self.lock_until_us))
        } else {
            (self.fence().0 / 1000, floor_ms(self.locked_at_us))
        };
        document.put_times(&Times {
            fence: self.fence().0,
            since,
            renewed: floor_ms(self.renewed_us),
            ends,
        });
        if !self.is_ours() {
            document.lose(self.now_ms());
        }
        Ok(document)
    }

    /// Returns the row to write for this document.
    #[must_use]
    pub fn with(&self, document: &Document, granted: Option<Fence>) -> Self {
        let (mut rest, mut is) = (document.clone(), self.clone());
        is.starts = rest.run_record().clone();
        rest.set_run_record(lock::RunRecord::default());
        if let Some(fence) = granted {
            is.fence = i64::try_from(fence.0).unwrap_or(i64::MAX);
        }
        if let Some(ends) = rest.ends() {
            is.locked_by = rest
                .exclusive_owner()
                .map_or_else(|| SHARED_BY.to_owned(), |owner| format!("{OWNER}{owner}"));
            is.owner = Some(is.locked_by.clone());
            if !(self.is_held() && self.is_ours() && self.locked_by == is.locked_by) {
                is.locked_at_us = self.now_us;
            }
            (is.renewed_us, is.lock_until_us) = (self.now_us, micros_of(ends));
            if let Some(times) = rest.take_times() {
                // Unchanged times keep their microseconds.
                let same = |us: i64, ms: u64, now: u64| if ms == now { us } else { micros_of(now) };
                is.locked_at_us = same(self.locked_at_us, floor_ms(self.locked_at_us), times.since);
                is.renewed_us = same(self.renewed_us, floor_ms(self.renewed_us), times.renewed);
                is.lock_until_us =
                    same(self.lock_until_us, ceil_ms(self.lock_until_us), times.ends);
            }
        } else if self.is_ours() {
            // The run's at-least time keeps ShedLock out, too.
            let cooldown = is
                .starts
                .cooldown
                .as_ref()
                .filter(|cooldown| cooldown.fence == self.fence());
            let kept = cooldown.map_or(0, |cooldown| {
                cooldown.at_ms.saturating_add(cooldown.at_least_ms)
            });
            is.lock_until_us = ENDED_US.max(micros_of(kept));
        }
        is.document = rest.write();
        is.mode = self.client_mode.column().map(str::to_owned);
        is
    }
}

/// Refuses rows that another version of dlock wrote.
///
/// # Errors
/// [`Kind::Layout`].
fn check_layout(layout: Option<i16>) -> Result<()> {
    let Some(layout) = layout.filter(|layout| !(LAYOUT..LAYOUT_REFUSED).contains(layout)) else {
        return Ok(());
    };
    let of = |which: &str| {
        Error::new(
            Kind::Layout,
            format!(
                "the lock was taken by {which} dlock, in layout {}.{}",
                layout / 100,
                layout % 100
            ),
        )
    };
    Err(if layout < LAYOUT {
        of("an older").hint("dlock init, once the lock has no holder")
    } else {
        of("a newer").hint("update dlock on this machine")
    })
}

/// Returns the error that another mode keeps the lock: holds of the two modes would not exclude
/// each other.
pub fn other_mode(mode: &str) -> Error {
    Error::new(Kind::Config, format!("the lock is kept in mode={mode}, which does not exclude holds of other modes"))
        .hint(format!("?mode={mode} in the URL; or, once no holder is left, dlock init with the mode that all are to use"))
}

/// Returns a TTL in ms, as columns have it.
pub fn ms(ttl: Ttl) -> i64 {
    i64::try_from(ttl.as_millis()).unwrap_or(i64::MAX)
}

/// Returns a duration from µs; zero for a negative number, which comes from a clock that was set
/// back.
pub fn micros(us: i64) -> Duration {
    Duration::from_micros(u64::try_from(us).unwrap_or_default())
}

fn floor_ms(us: i64) -> u64 {
    u64::try_from(us / 1000).unwrap_or_default()
}

/// Rounds up, so that no hold ends early.
fn ceil_ms(us: i64) -> u64 {
    u64::try_from(us).unwrap_or_default().div_ceil(1000)
}

/// Converts a document's time to a column's.
fn micros_of(ms: u64) -> i64 {
    i64::try_from(ms.saturating_mul(1000)).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod damaged;
#[cfg(test)]
mod tests;
