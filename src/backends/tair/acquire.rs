//! Taking a lock, and entering one.

use std::time::Duration;

use super::{
    CAPABILITIES, Tair, changed_meanwhile, history,
    record::Record,
    starts::{self, Starts},
    value::{Compared, READS, Seen, Stored, What, compared, created, not_a_counter},
};
use crate::{
    backends::redis::{failure, names::Names, reply, state::foreign},
    lock::{Attempt, Busy, Effect, Entry, Error, Fence, Grant, Kind, Mode, Request, Result},
};

impl Tair {
    pub(super) async fn take(&mut self, request: &Request) -> Result<Attempt> {
        CAPABILITIES.check(request)?;
        let names = self.names(&request.key);
        let mode = self.options.mode;
        let mut record = Record::new(request);
        let mut first = ::redis::pipe();
        let ours = match request.entry {
            Entry::Fresh => Some(mode.create(&mut first, &names.lock, &record.write()?, request.ttl.as_millis())),
            Entry::Reenter => None,
        };
        mode.read(&mut first, &names);
        history::read_begun(&mut first, &names);
        starts::read(mode, &mut first, &names);
        let replies = self.run(&first, ours.is_some()).await?;
        let (stored, reads) = match &ours {
            Some(_) => replies.split_first().map(|(reply, reads)| Ok::<_, Error>((created(reply)?, reads))).transpose()?,
            None => Some((false, &*replies)),
        }
        .ok_or_else(failure::unreadable)?;
        let (reads, begun) = reads.split_at_checked(READS).ok_or_else(failure::unreadable)?;
        let [begun, kept] = begun else { return Err(failure::unreadable()) };
        let seen = match Seen::read(mode, reads) {
            Ok(seen) => seen,
            Err(error) => {
                if let Some(ours) = ours.filter(|_| stored) {
                    self.undo(&names, &ours).await;
                }
                return Err(error);
            }
        };
        if let Some(ours) = ours.filter(|_| stored) {
            return self.count(request, &names, record, ours, &seen, (begun, kept)).await;
        }
        self.passing = false;
        match seen.what {
            What::Ours(record, stored) if record.is_of(&request.token) && record.fence.is_some() => {
                self.complete(request, &names, &record, seen.now, kept).await?;
                self.enter(request, &names, *record, stored, seen.now, seen.left).await
            }
            _ if request.entry == Entry::Reenter => Ok(Attempt::NotHeld),
            // Of an earlier attempt whose answer was lost.
            What::Ours(ref record, ref stored) if record.is_of(&request.token) => {
                self.count(request, &names, (**record).clone(), stored.clone(), &seen, (begun, kept)).await
            }
            What::Nothing => Ok(self.busy_in_passing()),
            What::Ours(record, _) => {
                let left = u64::try_from(seen.left).ok().map(Duration::from_millis);
                let passing = record.fence.is_none();
                self.passing = passing;
                let holders = vec![record.holder(seen.now.map(|(ms, _)| ms), left)];
                let position = self.join(request, &names, seen.now).await?;
                Ok(Attempt::Busy(Busy { holders, expires_in: left, notifies: false, passing, position }))
            }
            What::Foreign => {
                let left = u64::try_from(seen.left).ok().map(Duration::from_millis);
                let position = self.join(request, &names, seen.now).await?;
                Ok(Attempt::Busy(Busy { holders: vec![foreign(Mode::Exclusive, left)], expires_in: left, position, ..Busy::default() }))
            }
            What::NoLock(kind) => Err(failure::no_lock(&format!("a {kind}"))),
        }
    }

    /// Writes the start of a hold that is asked for again, if the packet that granted it was not executed to its end.
    async fn complete(
        &mut self,
        request: &Request,
        names: &Names,
        record: &Record,
        now: Option<(i64, u64)>,
        kept: &::redis::Value,
    ) -> Result<()> {
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

    /// Counts, and writes the fence into the value that is ours so far.
    async fn count(
        &mut self,
        request: &Request,
        names: &Names,
        mut record: Record,
        ours: Stored,
        seen: &Seen,
        (begun, kept): (&::redis::Value, &::redis::Value),
    ) -> Result<Attempt> {
        let Some((now, micros)) = seen.now else {
            self.undo(names, &ours).await;
            return Err(Error::new(Kind::Denied, "the user may not ask the server for its time").hint("ACL SETUSER USER +time"));
        };
        let now_ms = u64::try_from(now).unwrap_or_default();
        let mut starts = match Starts::of(kept) {
            Ok(starts) => starts.record,
            Err(error) => {
                self.undo(names, &ours).await;
                return Err(error);
            }
        };
        if let Some(refusal) = starts.judge(request.terms.as_ref(), now_ms) {
            self.undo(names, &ours).await;
            return Ok(Attempt::Refused(Box::new(refusal)));
        }
        let before = seen.counter.unwrap_or(0);
        let fence = (before + 1).max(micros);
        if fence >= 1 << 53 {
            self.undo(names, &ours).await;
            return Err(not_a_counter());
        }
        let ttl = request.ttl.as_millis();
        record.fence = Some(fence);
        record.since = Some(now);
        record.renewed = Some(now);
        record.holds = [(request.token.hold_text(), (now + millis(ttl), ttl))].into();
        let mut second = ::redis::pipe();
        second.cmd("INCRBY").arg(&names.fence).arg(fence - before);
        let written = self.options.mode.swap(&mut second, &names.lock, &ours, &record.write()?, millis(ttl));
        if request.terms.is_some() {
            starts.begin(request, Fence(fence), now_ms);
            Starts::put(&starts, now_ms, self.options.mode, &mut second, names)?;
        }
        history::note_begun(&mut second, names, &record)?;
        history::note_vanished(&mut second, names, begun);
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
        // Others may have counted as well, before they found that the lock isn't theirs: then it is more.
        if reply::int(counted).and_then(|counted| u64::try_from(counted).ok()).is_none_or(|counted| counted < fence) {
            self.undo(names, &written).await;
            return Err(match counted {
                ::redis::Value::ServerError(error) => failure::refused(error),
                _ => Error::new(Kind::Unavailable, "the fence counter was set back meanwhile"),
            });
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

    fn busy_in_passing(&mut self) -> Attempt {
        self.passing = true;
        Attempt::Busy(Busy { passing: true, ..Busy::default() })
    }

    /// Deletes what this very attempt wrote. If that fails, it ends with its TTL.
    async fn undo(&mut self, names: &Names, written: &Stored) {
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
