//! Taking, extending and giving back a row, made of a dialect's atomic statements.
//!
//! The usual case of each is one statement: take a free row, extend or free a hold that has no other beside it. What
//! is left (nested holds, a request asked again, and all refusals) reads the row, works out how it should be, and
//! writes it back if nobody changed it meanwhile and it is still held; otherwise the question is to be asked again.

use async_trait::async_trait;

use super::{Record, micros};
use crate::lock::{
    Break, Effect, Entry, Error, Extension, Fence, Grant, Holding, Kind, Marking, Parting, Purpose, Refusal, Release, Renewal, Request,
    Result, Scope, Stage, Token, Ttl,
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
    /// this record. The start is written down by the same statement.
    async fn grant(&mut self, name: &str, request: &Request, judged: Option<&Record>) -> Result<Option<Fence>>;

    /// Extends the hold that the lock was taken with, if the lock is held with this token and no other hold is beside
    /// it (`holds` is null), unless that would shorten it, or it is marked to be broken and not to be stopped; that it is to be
    /// is noted with the mark. `None` if there is no such row.
    async fn extend(&mut self, name: &str, token: &Token, extension: Extension) -> Result<Option<(Ttl, Fence)>>;

    /// Frees the row, if the lock is held with this token and no other hold is beside it (`holds` is null). Wakes who waits, and
    /// remembers how it ended, and what became of its start.
    async fn free(&mut self, name: &str, token: &Token, parting: &Parting) -> Result<bool>;

    /// The row as it is.
    async fn read(&mut self, name: &str) -> Result<Option<Record>>;

    /// Writes back `lock_until`, `root`, `ttl_ms`, `holds` and `renewed_at` if the row's owner and revision are
    /// as they were read and it is still held. Wakes who waits if it is free by that. False if it is not as it was.
    /// Remembers how it ended, and what became of its start, if that is given.
    async fn write(&mut self, record: &Record, parting: Option<&Parting>, became: Option<Stage>) -> Result<bool>;

    /// Marks the hold with this fence, if it has the lock.
    async fn mark(&mut self, name: &str, fence: Fence, mark: &Break) -> Result<bool>;

    /// Notes that the holder knows of the mark.
    async fn see(&mut self, name: &str, fence: Fence) -> Result<()>;
}

/// The last fence that may be given out: above it, not every program can count.
pub const LAST_FENCE: i64 = (1 << 53) - 2;

/// What came of an attempt to take a row.
#[derive(Debug)]
pub enum Taken {
    /// It is ours.
    Granted(Grant),
    /// Somebody else has it.
    Held(Box<Record>),
    /// Nobody has it, but a run before keeps it from this one.
    Refused(Box<Refusal>),
    /// It was free again when it was looked at.
    Passing,
    /// The owner to be joined does not have it.
    NotHeld,
}

/// Takes the row, or enters it for its owner.
///
/// # Errors
/// The dialect's, and those of a row that can't be understood.
pub async fn take(table: &mut (impl Table + ?Sized), name: &str, request: &Request) -> Result<Taken> {
    let granted = |fence, holds| {
        Taken::Granted(Grant { fence, ttl: request.ttl, holds, settle: std::time::Duration::ZERO, session: None, permit: None })
    };
    let nested = request.entry == Entry::Reenter;
    if !nested && let Some(fence) = table.grant(name, request, None).await? {
        return Ok(granted(fence, 1));
    }
    let Some(mut record) = table.read(name).await? else {
        return Ok(if nested { Taken::NotHeld } else { Taken::Passing });
    };
    record.check_layout()?;
    if record.is_held_by(&request.token) {
        let holds = record.enter(&request.token, request.ttl)?;
        write(table, &record, None, None).await?;
        return Ok(granted(record.fence(), holds));
    }
    if !record.is_held() && record.fence >= LAST_FENCE {
        return Err(Error::new(Kind::Data, "the fence in the lock's row is beyond 2^53").hint("somebody wrote it: set it to what it was"));
    }
    if nested {
        return Ok(Taken::NotHeld);
    }
    if record.is_held() {
        return Ok(Taken::Held(Box::new(record)));
    }
    let (known, now_ms) = record.known(&request.token);
    if let Some(refusal) = known.judge(request.terms.as_ref(), now_ms) {
        return Ok(Taken::Refused(Box::new(refusal)));
    }
    // Given back since, or what was in the way is not in the way of this one.
    Ok(table.grant(name, request, Some(&record)).await?.map_or(Taken::Passing, |fence| granted(fence, 1)))
}

/// Extends a hold.
///
/// # Errors
/// As [`take`].
pub async fn renew(table: &mut (impl Table + ?Sized), name: &str, token: &Token, extension: Extension) -> Result<Renewal> {
    if let Some((ttl, fence)) = table.extend(name, token, extension).await? {
        return Ok(Renewal::Renewed { ttl, fence });
    }
    let Some(mut record) = table.read(name).await? else { return Ok(Renewal::NotHeld) };
    if !record.is_held_by(token) {
        return Ok(Renewal::NotHeld);
    }
    record.check_layout()?;
    if !record.live_holds()?.contains_key(&token.hold_text()) {
        return Ok(Renewal::NotHeld);
    }
    match record.broken() {
        Some(mark) if extension.purpose == Purpose::GoOn => return Ok(Renewal::Broken(mark)),
        Some(mark) if !mark.seen => table.see(name, record.fence()).await?,
        _ => {}
    }
    let answer = record.renew(token, extension.ttl)?;
    if matches!(answer, Renewal::Renewed { .. }) {
        write(table, &record, None, None).await?;
    }
    Ok(answer)
}

/// Whether the token holds the lock.
///
/// # Errors
/// As [`take`].
pub async fn verify(table: &mut (impl Table + ?Sized), name: &str, token: &Token) -> Result<Holding> {
    let Some(record) = table.read(name).await?.filter(|record| record.is_held_by(token)) else { return Ok(Holding::NotHeld) };
    record.check_layout()?;
    Ok(match record.live_holds()?.get(&token.hold_text()) {
        Some(hold) => Holding::Held { expires_in: Some(micros(hold.ends - record.now_us)) },
        None => Holding::NotHeld,
    })
}

/// Gives a hold back.
///
/// # Errors
/// As [`take`].
pub async fn release(table: &mut (impl Table + ?Sized), name: &str, token: &Token, parting: &Parting) -> Result<Release> {
    if table.free(name, token, parting).await? {
        return Ok(Release::Released);
    }
    let Some(mut record) = table.read(name).await? else { return Ok(Release::NotHeld) };
    if !record.is_held_by(token) {
        return Ok(Release::NotHeld);
    }
    record.check_layout()?;
    let answer = record.release(token, parting.scope)?;
    if answer != Release::NotHeld {
        write(table, &record, Some(parting).filter(|_| answer == Release::Released), parting.became).await?;
    }
    Ok(answer)
}

/// Takes the lock away from the hold with this fence.
///
/// # Errors
/// As [`take`].
pub async fn evict(table: &mut (impl Table + ?Sized), name: &str, fence: Fence, mark: &Break) -> Result<Marking> {
    let Some(mut record) = table.read(name).await?.filter(|record| record.is_held() && record.is_ours()) else {
        return Ok(Marking::Changed);
    };
    record.check_layout()?;
    if record.fence() != fence {
        return Ok(Marking::Changed);
    }
    record.evict();
    let (end, why) = mark.into();
    write(table, &record, Some(&Parting { end: Some(end), why, ..Scope::Tree.into() }), None).await?;
    Ok(Marking::Done)
}

async fn write(table: &mut (impl Table + ?Sized), record: &Record, parting: Option<&Parting>, became: Option<Stage>) -> Result<()> {
    if table.write(record, parting, became).await? {
        return Ok(());
    }
    Err(Error::new(Kind::Unavailable, "the lock's row was changed by somebody else at the same moment").effect(Effect::NotApplied))
}
