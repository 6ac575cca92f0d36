//! Locks that are shared, and those who wait by rules: a column of the lock's row.
//!
//! While it is empty, a lock is had by one hold or by nobody, and those who wait are all alike. Whatever else is
//! asked goes by [`Document`]: the row is read, decided upon here by the server's time, and written back if nobody changed it meanwhile. So
//! no client keeps the row locked while it thinks, and what was decided too late comes to nothing.
//!
//! To ShedLock, and to a dlock that knows of no shares, the lock is held until its last share ends, by [`SHARED_BY`], which is no hold's.
//! That it still says so tells that nobody took the lock since: shares beside another name are lost.

use super::{
    ledger::{Change, LAST_FENCE, Table, Taken, beyond, granted},
    record::{ENDED_US, LAYOUT, Record},
};
use crate::lock::{
    Fence, Intent, Mode, Parting, Past, Release, Renewal, Request, Result, Stage, Token,
    document::{Answer, Document},
};

/// What stands in `locked_by` while a lock is shared.
pub const SHARED_BY: &str = "dlock:shared";

/// Somebody who waits for the whole lock, in no order, and is not in its row: who came when nobody shared it. Times are ms since 1970.
#[derive(Clone, Debug)]
pub struct Plain {
    /// The hold, as [`Token::hold_text`] has it.
    pub hold: String,
    /// Since when.
    pub since_ms: u64,
    /// When it was last heard of.
    pub seen_ms: u64,
    /// Who, as JSON.
    pub metadata: Option<String>,
}

impl Record {
    /// When it was read, in ms.
    pub fn now_ms(&self) -> u64 {
        u64::try_from(self.now_us / 1000).unwrap_or_default()
    }

    /// Whether shares have the lock.
    pub fn is_shared(&self) -> bool {
        self.is_held() && self.locked_by == SHARED_BY
    }

    /// Until when somebody has the lock for itself alone, in ms.
    pub fn outside(&self) -> Option<u64> {
        let until = u64::try_from(self.lock_until_us).unwrap_or_default().div_ceil(1000);
        (self.is_held() && !self.is_shared()).then_some(until)
    }

    /// The readers, permits and fair waiters as they are now, and the holds among them that are over.
    ///
    /// # Errors
    /// As [`Document::read`].
    pub fn document(&self) -> Result<(Document, Vec<Past>)> {
        let mut document = Document::read(self.document.as_deref())?;
        if self.locked_by != SHARED_BY {
            document.lose(self.now_ms());
        }
        document.expire(self.now_ms());
        let past = document.take_ended();
        Ok((document, past))
    }

    /// Writes down who shares the lock and who waits; with no share left, a lock that was shared is free.
    fn put_document(&mut self, document: &Document) {
        let document_text = document.write();
        if document_text == self.document {
            return;
        }
        self.document = document_text;
        if let Some(ends) = document.ends() {
            if !self.is_shared() {
                self.locked_at_us = self.now_us;
            }
            SHARED_BY.clone_into(&mut self.locked_by);
            self.layout = self.layout.or(Some(LAYOUT));
            (self.root, self.holds) = (None, None);
            self.renewed_us = self.now_us;
            self.lock_until_us = i64::try_from(ends.saturating_mul(1000)).unwrap_or(i64::MAX);
        } else if self.locked_by == SHARED_BY {
            self.lock_until_us = ENDED_US;
        }
    }
}

/// A row as it was read, and what it is to be.
pub(super) struct Step {
    was: Record,
    pub is: Record,
    pub document: Document,
    pub past: Vec<Past>,
    pub became: Option<Stage>,
    /// See [`Change::by_us`].
    pub by_us: Option<i64>,
    /// See [`Change::wake_plain`]; told in any case when the lock becomes free.
    pub wake_plain: bool,
    absorbed: Vec<String>,
}

impl Step {
    pub fn from(was: Record) -> Result<Self> {
        let (document, past) = was.document()?;
        Ok(Self { is: was.clone(), was, document, past, became: None, by_us: None, wake_plain: false, absorbed: Vec::new() })
    }

    /// Writes it down, if there is anything to be written. False, and nothing was done, if the row is not as it was any more.
    pub async fn write(mut self, table: &mut (impl Table + ?Sized)) -> Result<bool> {
        self.past.extend(self.document.take_ended());
        let woken = self.document.take_wake_ups(self.is.outside());
        self.is.put_document(&self.document);
        if self.is == self.was && self.past.is_empty() && self.became.is_none() {
            return Ok(true);
        }
        let freed = self.was.is_held() && !self.is.is_held();
        let change = Change {
            was: &self.was,
            is: &self.is,
            by_us: self.by_us,
            past: &self.past,
            became: self.became,
            absorbed: &self.absorbed,
            wake_plain: self.wake_plain || freed || woken.iter().any(|woken| woken.plain),
            plain: woken.iter().find(|woken| woken.plain).map(|woken| woken.hold.clone()),
            wake: woken.into_iter().filter(|woken| !woken.plain).map(|woken| woken.hold).collect(),
        };
        table.write(&change).await
    }

    /// What it goes by ends with this token's share.
    fn while_held(&mut self, token: &Token) {
        self.by_us = self.document.lasts(token).map(|ends| i64::try_from(ends.saturating_mul(1000)).unwrap_or(i64::MAX));
    }
}

/// Whether a request is to be judged by who shares the lock and who waits.
pub(super) fn rule(record: &Record, request: &Request) -> bool {
    record.document.is_some() || request.mode != Mode::Exclusive || (request.fair && request.waiting && record.is_held())
}

/// Takes the lock, a share of it, or a place in its queue. `None` if it was changed meanwhile.
pub(super) async fn take(table: &mut (impl Table + ?Sized), record: Record, request: &Request) -> Result<Option<Taken>> {
    let mut step = Step::from(record)?;
    // Who neither waits nor can be granted anything goes past nobody.
    if step.was.waited && (request.waiting || step.was.outside().is_none()) {
        let holder = step.was.root.clone().filter(|_| step.was.is_held());
        // Who has the lock may have been asked for again, when it was not known yet.
        for plain in table.plain_waiters(&step.was.name).await?.into_iter().filter(|plain| Some(&plain.hold) != holder.as_ref()) {
            let metadata = plain.metadata.and_then(|json| serde_json::from_str(&json).ok());
            step.document.absorb(plain.hold.clone(), metadata, plain.since_ms, plain.seen_ms);
            step.absorbed.push(plain.hold);
        }
    }
    if request.mode == Mode::Exclusive && !(step.past.is_empty() && step.absorbed.is_empty()) {
        // The statement that grants knows nothing of these: they come first, and then it is asked again.
        step.write(table).await?;
        return Ok(None);
    }
    step.while_held(&request.token);
    let (known, now_ms) = (step.was.starts.clone(), step.was.now_ms());
    let outside = step.was.outside();
    match step.document.ask(request, now_ms, outside, || known.judge(request.terms.as_ref(), &request.token, now_ms)) {
        Answer::Has(grant) => Ok(step.write(table).await?.then_some(Taken::Granted(grant))),
        Answer::NotHeld => Ok(Some(Taken::NotHeld)),
        Answer::Otherwise(mode) => Err(mode.not_enough()),
        Answer::Refused(refusal) => Ok(Some(Taken::Refused(refusal))),
        Answer::Go if step.was.fence >= LAST_FENCE => Err(beyond()),
        Answer::Go if request.mode == Mode::Exclusive => {
            step.is.put_document(&step.document);
            let judged = Record { document: step.is.document, ..step.was };
            let fence = table.grant(&judged.name, request, Some(&judged)).await?;
            Ok(fence.map(|fence| granted(request, fence, 1)))
        }
        Answer::Go => {
            // Never below the time, so that a lost table does not repeat fences.
            step.is.fence = (step.was.fence + 1).max(step.was.now_us);
            step.past.extend(step.was.vanished());
            let grant = step.document.grant(request, Fence(u64::try_from(step.is.fence).unwrap_or_default()), now_ms);
            Ok(step.write(table).await?.then_some(Taken::Granted(grant)))
        }
        Answer::Busy(mut busy) => {
            busy.holders.extend(step.was.holder()?);
            let foreign = outside.is_some() && !step.was.is_ours();
            let told = step.document.notified();
            Ok(step.write(table).await?.then_some(Taken::Queued { busy, foreign, told }))
        }
    }
}

/// Extends a share. `None` if the row was changed meanwhile.
pub(super) async fn renew(table: &mut (impl Table + ?Sized), record: Record, token: &Token, intent: Intent) -> Result<Option<Renewal>> {
    let mut step = Step::from(record)?;
    let now = step.was.now_ms();
    let Renewal::Kept { expires_in: Some(left) } = step.document.verify(token, now) else { return Ok(Some(Renewal::NotHeld)) };
    step.by_us = Some(step.was.now_us.saturating_add(i64::try_from(left.as_micros()).unwrap_or(i64::MAX)));
    let answer = step.document.renew(token, intent, now);
    if matches!(answer, Renewal::Broken(_)) {
        return Ok(Some(answer));
    }
    Ok(step.write(table).await?.then_some(answer))
}

/// Gives a share back, or a hold of it. `None` if the row was changed meanwhile.
pub(super) async fn release(
    table: &mut (impl Table + ?Sized),
    record: Record,
    token: &Token,
    parting: &Parting,
) -> Result<Option<Release>> {
    let mut step = Step::from(record)?;
    step.while_held(token);
    let answer = step.document.release(token, parting, step.was.now_ms());
    if answer == Release::NotHeld {
        return Ok(Some(answer));
    }
    Ok(step.write(table).await?.then_some(answer))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        backends::sql::locked_by,
        lock::{End, Key, Ttl},
    };

    const SECOND: i64 = 1_000_000;

    fn request(mode: Mode, seconds: u64) -> Request {
        Request { mode, ..Request::new(Key::new("job").unwrap(), Ttl::new(Duration::from_secs(seconds)).unwrap()) }
    }

    /// A row whose hold vanished.
    fn row(token: &Token) -> Record {
        Record {
            name: "dlock:job".into(),
            now_us: ENDED_US + 1000 * SECOND,
            lock_until_us: ENDED_US + 990 * SECOND,
            locked_at_us: ENDED_US + 900 * SECOND,
            locked_by: locked_by(token),
            layout: None,
            owner: Some(locked_by(token)),
            root: Some(token.hold_text()),
            ttl_ms: 60_000,
            holds: None,
            fence: 7,
            detached: false,
            renewed_us: ENDED_US + 900 * SECOND,
            metadata: None,
            mark: None,
            seen: false,
            document: None,
            waited: false,
            mode: None,
            revision: 1,
            starts: crate::lock::Record::default(),
        }
    }

    fn share(row: &mut Record, request: &Request) {
        let (mut document, _) = row.document().unwrap();
        document.grant(request, Fence(8), row.now_ms());
        row.put_document(&document);
    }

    #[test]
    fn a_lock_that_is_shared_ends_with_its_last_share() {
        let (token, short, long) = (Token::random(), request(Mode::Shared, 10), request(Mode::Shared, 20));
        let mut row = row(&token);
        assert!(row.vanished().is_some_and(|past| past.end == End::Expired));
        share(&mut row, &long);
        share(&mut row, &short);
        assert!(row.is_shared() && !row.is_ours() && !row.is_held_by(&token) && row.vanished().is_none());
        assert_eq!((row.lock_until_us - row.now_us, row.layout, row.outside()), (20 * SECOND, Some(LAYOUT), None));
        row.now_us += 15 * SECOND;
        let (mut document, past) = row.document().unwrap();
        assert_eq!((past.len(), document.holders(row.now_ms()).len()), (1, 1));
        document.release(&long.token, &crate::lock::Scope::Hold.into(), row.now_ms());
        assert_eq!(document.take_ended().len(), 1);
        row.put_document(&document);
        assert_eq!((row.is_held(), row.lock_until_us, &row.document), (false, ENDED_US, &None));
    }

    #[test]
    fn shares_beside_another_name_are_lost() {
        let mut row = row(&Token::random());
        share(&mut row, &request(Mode::Permits(2), 10));
        row.locked_by = "web7".into();
        let (document, past) = row.document().unwrap();
        assert!(!document.has_holders() && past.len() == 1 && past[0].ended_ms == Some(row.now_ms()));
        assert_eq!(row.outside(), Some(u64::try_from(row.lock_until_us / 1000).unwrap()));
        assert!(row.holder().unwrap().unwrap().foreign);
    }
}
