//! Taking a lock, and entering one.

use std::time::Duration;

use ::redis::{Pipeline, Value};

use super::{
    CAPABILITIES, Tair, changed_meanwhile, history,
    line::{self, Line},
    record::Record,
    shares::{TRIES, append},
    starts::{self, Starts},
    value::{Compared, READS, Seen, Stored, What, compared, created, not_a_counter},
};
use crate::{
    backends::redis::{failure, names::Names, reply, state::foreign},
    lock::{Attempt, Busy, Effect, Entry, Error, Fence, Grant, Holder, Kind, Mode, Request, Result, crowd::Crowd},
};

/// What a grant is written on top of, with all that was read after it was there.
pub(super) struct Base {
    pub stored: Stored,
    /// It is an attempt of ours, which nobody else can have.
    made: bool,
    pub now: u64,
    micros: u64,
    counter: Option<u64>,
    pub begun: Value,
    kept: Value,
    /// What becomes of those who wait.
    pub line: Pipeline,
}

impl Base {
    /// Above whatever was published before.
    pub(super) fn next_fence(&self) -> Result<Fence> {
        let fence = (self.counter.unwrap_or(0) + 1).max(self.micros);
        if fence < 1 << 53 { Ok(Fence(fence)) } else { Err(not_a_counter()) }
    }

    /// How far the counter is to be raised for it.
    pub(super) fn counts(&self, fence: Fence) -> u64 {
        fence.0 - self.counter.unwrap_or(0)
    }
}

/// Whether the counter was raised. Others may have counted as well, before they found that the lock isn't theirs: then it is more.
pub(super) fn counted(fence: Fence, reply: &Value) -> Result<()> {
    match reply {
        Value::ServerError(error) => Err(failure::refused(error)),
        reply if reply::int(reply).and_then(|counted| u64::try_from(counted).ok()).is_some_and(|counted| counted >= fence.0) => Ok(()),
        _ => Err(Error::new(Kind::Unavailable, "the fence counter was set back meanwhile")),
    }
}

/// What keeps a lock from being granted to anybody.
pub(super) struct Obstacle {
    pub holder: Holder,
    /// In ms.
    pub left: Option<u64>,
    /// It has not counted yet.
    pub passing: bool,
}

/// What a lock looks like to who asks for it.
pub(super) struct Found {
    /// What a grant would be written on top of: our attempt, or shares.
    pub stored: Option<Stored>,
    /// It is our attempt.
    pub made: bool,
    /// That of the attempt, or of the next one.
    pub record: Record,
    /// With those that are over.
    pub shares: Option<Box<Crowd>>,
    pub obstacle: Option<Obstacle>,
    pub seen: Seen,
    pub begun: Value,
    pub kept: Value,
    pub line: Line,
}

impl Found {
    /// `None` if nothing is stored.
    ///
    /// # Errors
    /// If we may not ask for the time.
    pub(super) fn base(&mut self) -> Result<Option<Base>> {
        let (now, micros) = self.seen.time()?;
        Ok(self.stored.clone().map(|stored| Base {
            stored,
            made: self.made,
            now,
            micros,
            counter: self.seen.counter,
            begun: std::mem::replace(&mut self.begun, Value::Nil),
            kept: std::mem::replace(&mut self.kept, Value::Nil),
            line: Pipeline::new(),
        }))
    }
}

impl Tair {
    pub(super) async fn take(&mut self, request: &Request) -> Result<Attempt> {
        CAPABILITIES.check(request)?;
        let names = self.names(&request.key);
        // Who is in line looks first, and keeps nobody else out as long as it may not go.
        let mut creates = request.entry == Entry::Fresh && !(line::by_rule(request) && self.is_queued(request));
        for _ in 0..TRIES {
            if let Some(attempt) = self.try_take(request, &names, creates).await? {
                return Ok(attempt);
            }
            creates = request.entry == Entry::Fresh;
        }
        Ok(self.busy_in_passing())
    }

    /// `None` if it has to be asked anew, since somebody else wrote meanwhile, or the lock is free and nothing was stored.
    async fn try_take(&mut self, request: &Request, names: &Names, creates: bool) -> Result<Option<Attempt>> {
        let mode = self.options.mode;
        let mut record = Record::new(request);
        let mut first = ::redis::pipe();
        let ours = if creates { Some(mode.create(&mut first, &names.lock, &record.write()?, request.ttl.as_millis())) } else { None };
        mode.read(&mut first, names);
        history::read_begun(&mut first, names);
        starts::read(mode, &mut first, names);
        line::read_turns(&mut first, names);
        if line::by_rule(request) {
            line::read_queue(&mut first, names);
        }
        let replies = self.run(&first, creates).await?;
        let (stored, reads) = match &ours {
            Some(_) => replies.split_first().map(|(reply, reads)| Ok::<_, Error>((created(reply)?, reads))).transpose()?,
            None => Some((false, &*replies)),
        }
        .ok_or_else(failure::unreadable)?;
        let made = ours.filter(|_| stored);
        let (reads, rest) = reads.split_at_checked(READS).ok_or_else(failure::unreadable)?;
        let [begun, kept, turns, queue @ ..] = rest else { return Err(failure::unreadable()) };
        let read = Seen::read(mode, reads).and_then(|seen| Ok((seen, Line::read(turns, queue)?)));
        let (mut seen, line) = match (read, made.as_ref()) {
            (Ok(read), _) => read,
            (Err(error), None) => return Err(error),
            (Err(error), Some(made)) => {
                self.undo(names, made).await;
                return Err(error);
            }
        };
        self.passing = false;
        self.in_line = line::by_rule(request) || !line.is_empty();
        let what = std::mem::replace(&mut seen.what, What::Nothing);
        let (begun, kept) = (begun.clone(), kept.clone());
        let found = Found { stored: None, made: false, record, shares: None, obstacle: None, seen, begun, kept, line };
        if made.is_some() {
            return self.decide(request, names, Found { stored: made, made: true, ..found }).await;
        }
        match what {
            What::Ours(record, stored) if record.is_of(&request.token) && record.fence.is_some() => {
                Mode::Exclusive.check_nested(request.mode)?;
                let Found { seen: Seen { now, left, .. }, kept, .. } = found;
                self.complete(request, names, &record, now, &kept).await?;
                self.enter(request, names, *record, stored, now, left).await.map(Some)
            }
            What::Shared(crowd, stored) => {
                if let Some(mode) = crowd.mode_of(&request.token) {
                    mode.check_nested(request.mode)?;
                }
                self.in_line = true;
                self.decide(request, names, Found { stored: Some(stored), shares: Some(crowd), ..found }).await
            }
            _ if request.entry == Entry::Reenter => Ok(Some(Attempt::NotHeld)),
            // Of an earlier attempt whose answer was lost.
            What::Ours(record, stored) if record.is_of(&request.token) => {
                self.decide(request, names, Found { stored: Some(stored), made: true, record: *record, ..found }).await
            }
            What::Nothing if creates => Ok(Some(self.busy_in_passing())),
            What::Nothing => self.decide(request, names, found).await,
            What::Ours(record, _) => {
                let left = u64::try_from(found.seen.left).ok();
                let holder = record.holder(found.seen.now.map(|(ms, _)| ms), left.map(Duration::from_millis));
                let obstacle = Some(Obstacle { holder, left, passing: record.fence.is_none() });
                self.decide(request, names, Found { obstacle, ..found }).await
            }
            What::Foreign => {
                let left = u64::try_from(found.seen.left).ok();
                let holder = foreign(Mode::Exclusive, left.map(Duration::from_millis));
                let obstacle = Some(Obstacle { holder, left, passing: false });
                self.decide(request, names, Found { obstacle, ..found }).await
            }
            What::NoLock(kind) => Err(failure::no_lock(&format!("a {kind}"))),
        }
    }

    /// Grants it, or says why not.
    async fn decide(&mut self, request: &Request, names: &Names, mut found: Found) -> Result<Option<Attempt>> {
        if self.in_line {
            return self.ask_crowd(request, names, found).await;
        }
        // Nobody shares it, nobody waits by rule, and this one wants all of it.
        if let Some(Obstacle { holder, left, passing }) = found.obstacle {
            self.passing = passing;
            let position = self.join(request, names, found.seen.now).await?;
            let expires_in = left.map(Duration::from_millis);
            return Ok(Some(Attempt::Busy(Busy { holders: vec![holder], expires_in, notifies: false, passing, position })));
        }
        match found.base() {
            Ok(Some(base)) => self.count(request, names, found.record, &base).await.map(Some),
            Ok(None) => Ok(None),
            Err(error) => {
                self.undo_found(names, &found).await;
                Err(error)
            }
        }
    }

    pub(super) async fn undo_found(&mut self, names: &Names, found: &Found) {
        if let Some(made) = found.stored.as_ref().filter(|_| found.made) {
            self.undo(names, made).await;
        }
    }

    /// Takes back the attempt that a grant would have been written on top of.
    pub(super) async fn give_up(&mut self, names: &Names, base: &Base) {
        if base.made {
            self.undo(names, &base.stored).await;
        }
    }

    /// Writes the start of a hold that is asked for again, if the packet that granted it was not executed to its end.
    async fn complete(&mut self, request: &Request, names: &Names, record: &Record, now: Option<(i64, u64)>, kept: &Value) -> Result<()> {
        let (Some(terms), Entry::Fresh, Some(fence), Some((now, _))) = (&request.terms, request.entry, record.fence.map(Fence), now) else {
            return Ok(());
        };
        let mut starts = Starts::of(kept)?.record;
        let paced =
            terms.skew_guard.is_none() && terms.at_least.is_none() || starts.paced.as_ref().is_some_and(|paced| paced.fence == fence);
        let once = terms.once.is_none() || starts.start.as_ref().is_some_and(|start| start.fence == fence);
        if paced && once {
            return Ok(());
        }
        let now_ms = u64::try_from(now).unwrap_or_default();
        starts.begin(request, fence, now_ms);
        let mut put = ::redis::pipe();
        Starts::put(&starts, now_ms, self.options.mode, &mut put, names)?;
        let replies = self.run(&put, true).await?;
        replies.first().ok_or_else(failure::unreadable).and_then(starts::written)
    }

    /// Counts, and writes the fence into the value that is ours so far, or in the place of one that is over.
    pub(super) async fn count(&mut self, request: &Request, names: &Names, mut record: Record, base: &Base) -> Result<Attempt> {
        let (now_ms, now, ours) = (base.now, millis(base.now), &base.stored);
        let refused = Starts::of(&base.kept).map(|starts| (starts.record.judge(request.terms.as_ref(), now_ms), starts.record));
        let (mut starts, fence) = match refused.and_then(|(refusal, starts)| Ok((refusal, starts, base.next_fence()?))) {
            Ok((None, starts, fence)) => (starts, fence.0),
            Ok((Some(refusal), ..)) => {
                self.give_up(names, base).await;
                return Ok(Attempt::Refused(Box::new(refusal)));
            }
            Err(error) => {
                self.give_up(names, base).await;
                return Err(error);
            }
        };
        let ttl = request.ttl.as_millis();
        record.fence = Some(fence);
        record.since = Some(now);
        record.renewed = Some(now);
        record.holds = [(request.token.hold_text(), (now + millis(ttl), ttl))].into();
        let mut second = ::redis::pipe();
        second.cmd("INCRBY").arg(&names.fence).arg(base.counts(Fence(fence)));
        let written = self.options.mode.swap(&mut second, &names.lock, ours, &record.write()?, millis(ttl));
        if request.terms.is_some() {
            starts.begin(request, Fence(fence), now_ms);
            Starts::put(&starts, now_ms, self.options.mode, &mut second, names)?;
        }
        history::note_begun(&mut second, names, &record)?;
        history::note_vanished(&mut second, names, &base.begun, &[Fence(fence)]);
        append(&mut second, &base.line);
        let replies = self.run(&second, true).await?;
        let [counted, swapped, ..] = &*replies else { return Err(failure::unreadable()) };
        match compared(swapped)? {
            Compared::Done => {}
            Compared::Changed | Compared::Gone => {
                let mut never = ::redis::pipe();
                never.cmd("HDEL").arg(&names.record).arg(fence);
                let _ = self.run(&never, false).await;
                return Ok(self.busy_in_passing());
            }
        }
        if let Err(error) = self::counted(Fence(fence), counted) {
            self.undo(names, &written).await;
            return Err(error);
        }
        if request.terms.is_some()
            && let Err(error) = replies.get(2).ok_or_else(failure::unreadable).and_then(starts::written)
        {
            self.undo(names, &written).await;
            return Err(error);
        }
        self.written = Some((request.key.clone(), request.token, written));
        self.leave_as_holder(request).await;
        Ok(granted(request, fence, 1))
    }

    /// Adds a hold to those of the owner, or asks for one of them again.
    async fn enter(
        &mut self,
        request: &Request,
        names: &Names,
        mut record: Record,
        stored: Stored,
        now: Option<(i64, u64)>,
        left: i64,
    ) -> Result<Attempt> {
        let (Some((now, _)), Some(fence)) = (now, record.fence) else { return Ok(Attempt::NotHeld) };
        let hold = request.token.hold_text();
        let ttl = request.ttl.as_millis();
        // Asked again after it was extended, the hold keeps what it was given.
        let ends = record.live(&hold, now).map_or(0, |(ends, _)| ends).max(now + millis(ttl));
        record.settle(now);
        record.holds.insert(hold, (ends, ttl));
        record.renewed = Some(now);
        let mut swap = ::redis::pipe();
        let lasts = record.lasts(now).max(left);
        let written = self.options.mode.swap(&mut swap, &names.lock, &stored, &record.write()?, lasts);
        let replies = self.run(&swap, true).await?;
        match replies.first().map(compared).transpose()? {
            Some(Compared::Done) => {
                let only = record.holds.len() == 1;
                self.written = only.then(|| (request.key.clone(), request.token, written));
                self.leave_as_holder(request).await;
                Ok(granted(request, fence, u32::try_from(record.holds.len()).unwrap_or(u32::MAX)))
            }
            Some(Compared::Changed) => Err(changed_meanwhile()),
            Some(Compared::Gone) if request.entry == Entry::Reenter => Ok(Attempt::NotHeld),
            Some(Compared::Gone) => Ok(self.busy_in_passing()),
            None => Err(failure::unreadable()),
        }
    }

    pub(super) fn busy_in_passing(&mut self) -> Attempt {
        self.passing = true;
        Attempt::Busy(Busy { passing: true, ..Busy::default() })
    }

    /// Deletes what this very attempt wrote. If that fails, it ends with its TTL.
    pub(super) async fn undo(&mut self, names: &Names, written: &Stored) {
        let mut delete = ::redis::pipe();
        self.options.mode.delete(&mut delete, &names.lock, written);
        if let Ok(Some(Record { fence: Some(fence), .. })) = Record::read(&written.value) {
            delete.cmd("HDEL").arg(&names.record).arg(fence);
        }
        let _ = self.run(&delete, false).await.map_err(|error| error.effect(Effect::Unknown));
    }
}

pub(super) fn millis(ms: u64) -> i64 {
    i64::try_from(ms).unwrap_or(i64::MAX)
}

fn granted(request: &Request, fence: u64, holds: u32) -> Attempt {
    Attempt::Granted(Grant { fence: Fence(fence), ttl: request.ttl, holds, settle: Duration::ZERO, session: None, permit: None })
}
