//! Extending a hold and giving it back.

use std::time::Duration;

use super::{
    CAPABILITIES, Tair,
    acquire::millis,
    changed_meanwhile, history,
    record::Record,
    shares::Step,
    value::{Compared, Seen, Stored, What},
};
use crate::{
    backends::redis::failure,
    lock::{Extension, Fence, Holding, Key, Parting, Purpose, Release, Renewal, Result, Scope, Token, Ttl},
};

/// The owner's record as it stands, with the time and what is left of the lock; `None` if the hold is not there.
fn find(seen: Seen, token: &Token) -> Result<Option<(Record, Stored, i64, i64)>> {
    let What::Ours(record, stored) = seen.what else { return Ok(None) };
    let Some((now, _)) = seen.now else { return Err(failure::unreadable()) };
    let hold = token.hold_text();
    // An attempt that has not counted has no holds yet; it can be undone.
    let is_there = record.live(&hold, now).is_some() || (record.fence.is_none() && record.root == hold);
    Ok((is_there && record.is_of(token)).then_some((*record, stored, now, seen.left)))
}

impl Tair {
    pub(super) async fn compare(&mut self, pipeline: &::redis::Pipeline) -> Result<Compared> {
        let replies = self.run(pipeline, false).await?;
        history::first(&replies)
    }

    pub(super) async fn look_for(&mut self, key: &Key, token: &Token) -> Result<Holding> {
        let found = match self.verify_share(&self.names(key), token).await? {
            Step::Done(answer) => return Ok(answer),
            Step::Apart(seen) => find(seen, token)?,
        };
        Ok(match found.and_then(|(record, _, now, _)| record.fence.and(record.live(&token.hold_text(), now)).map(|(ends, _)| ends - now)) {
            Some(left) => Holding::Held { expires_in: Some(Duration::from_millis(u64::try_from(left).unwrap_or(0))) },
            None => Holding::NotHeld,
        })
    }

    pub(super) async fn extend(&mut self, key: &Key, token: &Token, extension: Extension) -> Result<Renewal> {
        if let Some(ttl) = extension.ttl {
            CAPABILITIES.check_ttl(ttl)?;
        }
        let names = self.names(key);
        let hold = token.hold_text();
        let seen = match self.renew_share(&names, token, extension).await? {
            Step::Done(answer) => return Ok(answer),
            Step::Apart(seen) => seen,
        };
        let Some((mut record, stored, now, left)) = find(seen, token)? else { return Ok(Renewal::NotHeld) };
        let (Some((held_until, taken_with)), Some(fence)) = (record.live(&hold, now), record.fence) else { return Ok(Renewal::NotHeld) };
        if let Some(mark) = &mut record.mark {
            if extension.purpose == Purpose::GoOn {
                return Ok(Renewal::Broken(mark.clone()));
            }
            mark.seen = true;
        }
        let ttl = extension.ttl.map_or(taken_with, Ttl::as_millis);
        let ends = now + millis(ttl);
        if ends < held_until {
            return Ok(Renewal::WouldShorten { expires_in: Duration::from_millis(u64::try_from(held_until - now).unwrap_or(0)) });
        }
        record.settle(now);
        record.holds.insert(hold, (ends, taken_with));
        record.renewed = Some(now);
        let mut swap = ::redis::pipe();
        let lasts = record.lasts(now).max(left);
        let written = self.options.mode.swap(&mut swap, &names.lock, &stored, &record.write()?, lasts);
        history::note_begun(&mut swap, &names, &record)?;
        match self.compare(&swap).await? {
            Compared::Done => {
                self.written = (record.holds.len() == 1).then(|| (key.clone(), *token, written));
                let ttl = Ttl::new(Duration::from_millis(ttl)).map_err(|_| failure::unreadable())?;
                Ok(Renewal::Renewed { ttl, fence: Fence(fence) })
            }
            Compared::Changed => Err(changed_meanwhile()),
            Compared::Gone => Ok(Renewal::NotHeld),
        }
    }

    pub(super) async fn give_back(&mut self, key: &Key, token: &Token, parting: &Parting) -> Result<Release> {
        let names = self.names(key);
        let mut starts = match parting.became {
            Some(stage) => Some((self.starts(&names).await?, stage)),
            None => None,
        };
        if let Some((_, _, stored)) = self.written.take().filter(|(k, t, _)| (k, t) == (key, token)) {
            let mut delete = ::redis::pipe();
            self.options.mode.delete(&mut delete, &names.lock, &stored);
            let said = match Record::read(&stored.value)? {
                Some(record) => {
                    if let (Some((starts, stage)), Some(fence), Some(since)) = (starts.take(), record.fence, record.since) {
                        starts.end(
                            Fence(fence),
                            stage,
                            u64::try_from(since).unwrap_or_default(),
                            self.options.mode,
                            &mut delete,
                            &names,
                        )?;
                    }
                    history::note_over(&mut delete, &names, &record, None, parting)?
                }
                None => None,
            };
            if self.compare(&delete).await? == Compared::Done {
                return Ok(Release::Released);
            }
            if let Some(line) = said {
                let mut take_back = ::redis::pipe();
                history::take_back(&mut take_back, &names, &line);
                self.run(&take_back, false).await?;
            }
        }
        let hold = token.hold_text();
        let unsure = self.unanswered.as_ref().is_some_and(|(k, t)| (k, t) == (key, token));
        let seen = match self.release_share(&names, token, parting, unsure).await? {
            Step::Done(answer) => {
                self.unanswered = None;
                return Ok(answer);
            }
            Step::Apart(seen) => seen,
        };
        let Some((mut record, stored, now, _)) = find(seen, token)? else { return Ok(Release::NotHeld) };
        if starts.is_none()
            && let Some(stage) = parting.became
        {
            starts = Some((self.starts(&names).await?, stage));
        }
        record.settle(now);
        // Who entered whom is not recorded: only the first hold is known to enclose all others.
        let whole_tree = parting.scope == Scope::Tree && record.root == hold;
        record.holds.remove(&hold);
        let mut step = ::redis::pipe();
        let answer = if record.holds.is_empty() || whole_tree {
            self.options.mode.delete(&mut step, &names.lock, &stored);
            history::note_over(&mut step, &names, &record, Some(now), parting)?;
            Release::Released
        } else {
            // What is left lasts as long as its own holds: an inner one that is killed must not keep the outer one's time.
            let lasts = record.lasts(now).max(1);
            self.options.mode.swap(&mut step, &names.lock, &stored, &record.write()?, lasts);
            history::note_begun(&mut step, &names, &record)?;
            Release::StillHeld(u32::try_from(record.holds.len()).unwrap_or(u32::MAX))
        };
        if let (Some((starts, stage)), Some(fence)) = (starts, record.fence) {
            starts.end(Fence(fence), stage, u64::try_from(now).unwrap_or_default(), self.options.mode, &mut step, &names)?;
        }
        match self.compare(&step).await? {
            Compared::Done => Ok(answer),
            Compared::Changed => Err(changed_meanwhile()),
            Compared::Gone => Ok(Release::NotHeld),
        }
    }
}
