//! Taking, extending and giving back a row, made of a dialect's atomic statements.
//!
//! The usual case of each is one statement: take a free row, extend or free a hold that has no other beside it. What
//! is left (nested holds, a request asked again, shared locks, and all refusals) reads the row, works out how it should be, and
//! writes it back if nobody changed it meanwhile and what that goes by still lasts; otherwise it is read again.

use std::time::Duration;

use async_trait::async_trait;

use super::{
    Record, micros,
    shares::{self, Plain, Step},
};
use crate::lock::{
    Break, Busy, Effect, Entry, Error, Fence, Grant, Intent, Kind, Mode, Parting, Past, Refusal, Release, Renewal, Request, Result, Stage,
    Token, Ttl, random,
};

/// What a dialect answers, each question in one atomic statement that is judged by the server's clock.
///
/// "Held with this token" is: `locked_by` and `owner` are [`super::locked_by`] of it, `root` is its hold, `lock_until` lies
/// ahead, and the layout is below [`super::LAYOUT_REFUSED`]. Every statement that changes a row counts `revision` up.
#[async_trait(?Send)]
pub trait Table {
    /// Takes the row, creating it if need be, for [`super::locked_by`] of the request's token, unless it is held or of a newer layout. The
    /// fence is one more than the last one, and never below the server's time in µs; from [`LAST_FENCE`] on there is none.
    ///
    /// Nor is it taken if one of the starts in its columns may be in the way, unless it was `judged` as it is: its revision is that of
    /// this record. The start is written down by the same statement. Nor, unless `judged`, while there is a document in its row; that
    /// becomes what this record has.
    async fn grant(&mut self, name: &str, request: &Request, judged: Option<&Record>) -> Result<Option<Fence>>;

    /// Extends the hold that the lock was taken with, if the lock is held with this token and no other hold is beside
    /// it (`holds` is null), unless that would shorten it, or it is marked to be broken and not to be stopped; that it is to be
    /// is noted with the mark. `None` if there is no such row.
    async fn extend(&mut self, name: &str, token: &Token, intent: Intent) -> Result<Option<(Ttl, Fence)>>;

    /// Frees the row, if the lock is held with this token, no other hold is beside it (`holds` is null), and no document. Wakes who waits, and
    /// remembers how it ended, and what became of its start.
    async fn free(&mut self, name: &str, token: &Token, parting: &Parting) -> Result<bool>;

    /// The row as it is, after a `pause` of the server's.
    async fn read(&mut self, name: &str, pause: Duration) -> Result<Option<Record>>;

    /// Makes a row for a lock that was never taken, which is free; nothing if there is one.
    async fn create(&mut self, name: &str) -> Result<()>;

    /// Those who wait for the whole lock and are not in its row, longest first.
    async fn plain_waiters(&mut self, name: &str) -> Result<Vec<Plain>>;

    /// Writes a row back as [`Change`] says. False, and nothing was done, if it is not as it was read, or too late.
    async fn write(&mut self, change: &Change<'_>) -> Result<bool>;

    /// Marks the hold with this fence, if it has the lock.
    async fn mark(&mut self, name: &str, fence: Fence, mark: &Break) -> Result<bool>;

    /// Notes that the holder knows of the mark.
    async fn see(&mut self, name: &str, fence: Fence) -> Result<()>;
}

/// What is to become of a row. `lock_until`, `locked_at`, `locked_by`, `layout` (which is kept if there is one), `root`, `ttl_ms`, `holds`,
/// `fence`, `renewed_at` and `document` are written.
#[derive(Debug)]
pub struct Change<'a> {
    /// As it was read: it must have that `revision`, `locked_by` and `lock_until` still. ShedLock changes the last two only.
    pub was: &'a Record,
    /// As it is to be.
    pub is: &'a Record,
    /// When what it goes by is over, by the server's clock: it is not to be written any more then.
    pub by_us: Option<i64>,
    /// Holds that are over, to be remembered.
    pub past: &'a [Past],
    /// What became of the start of the hold that had the lock.
    pub became: Option<Stage>,
    /// The waiters that are in the row's document now, and so no plain ones any more.
    pub absorbed: &'a [String],
    /// Whether to wake one of those who wait for the whole lock in no order.
    pub wake_plain: bool,
    /// Which waiters in the row's document that may be; any other is as good.
    pub plain: Option<String>,
    /// The holds of others who are to be woken.
    pub wake: Vec<String>,
}

/// The last fence that may be given out: above it, not every program can count.
pub const LAST_FENCE: i64 = (1 << 53) - 2;

/// What came of an attempt to take a row.
#[derive(Debug)]
pub enum Taken {
    /// It is ours.
    Granted(Grant),
    /// Another owner has it, and the row has no document: waiters are all alike.
    Held(Box<Record>),
    /// Others have it, or go first, by the document in its row, which has this waiter as well.
    Queued {
        /// Who has it, and what to wait for.
        busy: Busy,
        /// Who has it is no dlock.
        foreign: bool,
        /// [`Document::notified`](crate::lock::document::Document::notified): a wake-up since is one that may have been missed.
        told: u64,
    },
    /// Nobody has it, but a run before keeps it from this one.
    Refused(Box<Refusal>),
    /// It was free again when it was looked at.
    Passing,
    /// The owner to be joined does not have it.
    NotHeld,
}

/// How often a row is read anew that others changed before it was written back. Each time one of them got on.
const ROUNDS: u32 = 100;

/// How long the server is to let the next round wait. Of many who come at once, all but one have read in vain: if they came again at
/// once, the work would grow with the square of their number.
fn pause(round: u32) -> Duration {
    let most = if round == 0 { 1 } else { 2_000 << round.min(9) };
    Duration::from_micros(random() % most)
}

/// Takes the row or a share of it, or enters it for its owner. Where there is a document, as far as is known, there is no need to try without.
///
/// # Errors
/// The dialect's, and those of a row that can't be understood.
pub async fn take(table: &mut (impl Table + ?Sized), name: &str, request: &Request, documented: bool) -> Result<Taken> {
    let nested = request.entry == Entry::Reenter;
    if !nested
        && !documented
        && request.mode == Mode::Exclusive
        && let Some(fence) = table.grant(name, request, None).await?
    {
        return Ok(granted(request, fence, 1));
    }
    for round in 0..ROUNDS {
        let Some(record) = table.read(name, pause(round)).await? else {
            if nested {
                return Ok(Taken::NotHeld);
            }
            if request.mode == Mode::Exclusive {
                return Ok(Taken::Passing);
            }
            table.create(name).await?;
            continue;
        };
        record.check_layout()?;
        record.check_mode()?;
        let taken = if record.is_held_by(&request.token) {
            if !Mode::Exclusive.covers(request.mode) {
                return Err(Mode::Exclusive.not_enough());
            }
            let mut step = held(record)?;
            let holds = step.is.enter(&request.token, request.ttl)?;
            let fence = step.is.fence();
            step.write(table).await?.then(|| granted(request, fence, holds))
        } else if shares::rule(&record, request) {
            shares::take(table, record, request).await?
        } else {
            Some(take_plain(table, record, request).await?)
        };
        if let Some(taken) = taken {
            return Ok(taken);
        }
    }
    Err(contended())
}

/// Takes a row that nobody shares.
async fn take_plain(table: &mut (impl Table + ?Sized), record: Record, request: &Request) -> Result<Taken> {
    if !record.is_held() && record.fence >= LAST_FENCE {
        return Err(beyond());
    }
    if request.entry == Entry::Reenter {
        return Ok(Taken::NotHeld);
    }
    if record.is_held() {
        return Ok(Taken::Held(Box::new(record)));
    }
    if let Some(refusal) = record.starts.judge(request.terms.as_ref(), &request.token, record.now_ms()) {
        return Ok(Taken::Refused(Box::new(refusal)));
    }
    // Given back since, or what was in the way is not in the way of this one.
    let fence = table.grant(&record.name, request, Some(&record)).await?;
    Ok(fence.map_or(Taken::Passing, |fence| granted(request, fence, 1)))
}

/// Extends a hold: of one that is `shared`, as far as is known, there is no need to ask for another.
///
/// # Errors
/// As [`take`].
pub async fn renew(table: &mut (impl Table + ?Sized), name: &str, token: &Token, intent: Intent, shared: bool) -> Result<Renewal> {
    if !shared && let Some((ttl, fence)) = table.extend(name, token, intent).await? {
        return Ok(Renewal::Renewed { ttl, fence });
    }
    in_rounds(table, name, Renewal::NotHeld, async |table, record| {
        if record.is_held_by(token) {
            renew_held(table, record, token, intent).await
        } else {
            shares::renew(table, record, token, intent).await
        }
    })
    .await
}

async fn renew_held(table: &mut (impl Table + ?Sized), record: Record, token: &Token, intent: Intent) -> Result<Option<Renewal>> {
    if !record.live_holds()?.contains_key(&token.hold_text()) {
        return Ok(Some(Renewal::NotHeld));
    }
    match record.broken() {
        Some(mark) if matches!(intent, Intent::Extend(_)) => return Ok(Some(Renewal::Broken(mark))),
        Some(mark) if !mark.seen => table.see(&record.name, record.fence()).await?,
        _ => {}
    }
    let mut step = held(record)?;
    let answer = step.is.renew(token, intent.ttl())?;
    if !matches!(answer, Renewal::Renewed { .. }) {
        return Ok(Some(answer));
    }
    Ok(step.write(table).await?.then_some(answer))
}

/// Whether the token holds the lock.
///
/// # Errors
/// As [`take`].
pub async fn verify(table: &mut (impl Table + ?Sized), name: &str, token: &Token) -> Result<Renewal> {
    let Some(record) = table.read(name, Duration::ZERO).await? else { return Ok(Renewal::NotHeld) };
    record.check_layout()?;
    if !record.is_held_by(token) {
        return Ok(record.document()?.0.verify(token, record.now_ms()));
    }
    Ok(match record.live_holds()?.get(&token.hold_text()) {
        Some(hold) => Renewal::Kept { expires_in: Some(micros(hold.ends - record.now_us)) },
        None => Renewal::NotHeld,
    })
}

/// Gives a hold back; `documented`: through the document, as far as is known.
///
/// # Errors
/// As [`take`].
pub async fn release(table: &mut (impl Table + ?Sized), name: &str, token: &Token, parting: &Parting, documented: bool) -> Result<Release> {
    if !documented && table.free(name, token, parting).await? {
        return Ok(Release::Released);
    }
    in_rounds(table, name, Release::NotHeld, async |table, record| {
        if record.is_held_by(token) {
            release_held(table, record, token, parting).await
        } else {
            shares::release(table, record, token, parting).await
        }
    })
    .await
}

async fn release_held(table: &mut (impl Table + ?Sized), record: Record, token: &Token, parting: &Parting) -> Result<Option<Release>> {
    let mut step = held(record)?;
    let answer = step.is.release(token, parting.scope, parting.became)?;
    match (&answer, &parting.end) {
        (Release::NotHeld, _) => return Ok(Some(answer)),
        (Release::Released, Some(end)) => step.past.push(step.is.past(step.is.now_us, end.clone(), parting.why.clone())),
        _ => {}
    }
    if answer == Release::Released {
        step.document.freed();
    }
    step.became = parting.became;
    Ok(step.write(table).await?.then_some(answer))
}

/// Marks the hold with this fence as to be broken.
///
/// # Errors
/// As [`take`].
pub async fn mark(table: &mut (impl Table + ?Sized), name: &str, fence: Fence, mark: &Break) -> Result<bool> {
    if table.mark(name, fence, mark).await? {
        return Ok(true);
    }
    in_rounds(table, name, false, async |table, record| {
        let mut step = Step::from(record)?;
        if !step.document.mark(fence, mark) {
            return Ok(Some(false));
        }
        Ok(step.write(table).await?.then_some(true))
    })
    .await
}

/// Takes the lock away from the hold with this fence.
///
/// # Errors
/// As [`take`].
pub async fn evict(table: &mut (impl Table + ?Sized), name: &str, fence: Fence, mark: &Break) -> Result<bool> {
    in_rounds(table, name, false, async |table, record| {
        let is_ours = record.is_held() && record.is_ours() && record.fence() == fence;
        let mut step = if is_ours { held(record)? } else { Step::from(record)? };
        if is_ours {
            let (end, why) = mark.into();
            step.past.push(step.is.past(step.is.now_us, end, why));
            step.is.evict();
            step.document.freed();
        } else {
            let now = step.is.now_ms();
            if !step.document.evict(fence, mark, now) {
                return Ok(Some(false));
            }
        }
        Ok(step.write(table).await?.then_some(true))
    })
    .await
}

/// Takes a waiter out of the row's queue, if it is there, and lets others go whom it held up.
///
/// # Errors
/// As [`take`].
pub async fn leave(table: &mut (impl Table + ?Sized), name: &str, token: &Token) -> Result<()> {
    in_rounds(table, name, (), async |table, record| {
        if record.document.is_none() {
            return Ok(Some(()));
        }
        let mut step = Step::from(record)?;
        // Somebody may have come in between who is not in there yet.
        step.wake_plain = !step.is.is_held();
        Ok((!step.document.leave(token) || step.write(table).await?).then_some(()))
    })
    .await
}

/// Reads the row and takes a step on it, until nobody changed it in between; `absent` if there is none.
async fn in_rounds<B: Table + ?Sized, T>(
    table: &mut B,
    name: &str,
    absent: T,
    mut step: impl AsyncFnMut(&mut B, Record) -> Result<Option<T>>,
) -> Result<T> {
    for round in 0..ROUNDS {
        let Some(record) = table.read(name, pause(round)).await? else { return Ok(absent) };
        record.check_layout()?;
        if let Some(done) = step(table, record).await? {
            return Ok(done);
        }
    }
    Err(contended())
}

/// A step about the hold that has the row, which may not be taken once that is over.
fn held(record: Record) -> Result<Step> {
    let mut step = Step::from(record)?;
    step.by_us = Some(step.is.lock_until_us);
    Ok(step)
}

pub(super) fn granted(request: &Request, fence: Fence, holds: u32) -> Taken {
    Taken::Granted(Grant { fence, ttl: request.ttl, holds, settle: Duration::ZERO, session: None, permit: None })
}

pub(super) fn beyond() -> Error {
    Error::new(Kind::Data, "the fence in the lock's row is beyond 2^53").hint("somebody wrote it: set it to what it was")
}

fn contended() -> Error {
    Error::new(Kind::Unavailable, "the lock's row was changed by others again and again").effect(Effect::NotApplied)
}
