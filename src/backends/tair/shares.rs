//! Shared locks and permits: while shares hold the lock, its value says who has them, as [`Crowd`] writes it, and lasts as long as the
//! last of them. It is changed as any value of ours is: read, decided upon, and written if it is still there.
//!
//! # Worst cases
//! - *Two change it at the same time*: one of the two comparisons fails, and that one reads again.
//! - *The answer to a grant is lost*: asked again, the token has a share. Given up, it is released; should it not be there yet, the value is
//!   written anew, and what comes late finds another one.
//! - *A renewal comes late*, when its share is over but the value is as it was: nobody acted on the end of the share, or the value would be
//!   another one. Whoever is told that it is over, or finds the lock busy without it, writes that down first.
//! - *It is granted, and the next packet is lost*, which notes it for the history: its renewals note it as well.
//! - *A share ends beside others*: what is left of the key's time is that of the others; each end is in the value.
//! - *A lock of another library*: it can't be there while shares are, nor they while it is.

use ::redis::Pipeline;

use super::{
    Tair,
    acquire::{self, Base, millis},
    changed_meanwhile, history, line,
    options::Mode,
    record::MAJOR,
    value::{Compared, Seen, Stored, What, compared},
};
use crate::{
    backends::redis::{failure, names::Names},
    lock::{
        Attempt, Break, Error, Extension, Fence, Grant, Holding, Kind, Marking, Parting, Release, Renewal, Request, Result, Token,
        crowd::Crowd, random,
    },
};

/// How often a step is tried that others get in before.
pub(super) const TRIES: usize = 20;
/// How many bytes all shares of a lock may take when another one is granted; of a value twice as long, not all would be read.
const MOST: usize = 1 << 19;

/// The shares in a lock's value; `None` if it has none.
pub(super) fn read(value: &str) -> Result<Option<Crowd>> {
    let Ok(fields) = serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(value) else { return Ok(None) };
    match (fields.get("dlock"), fields.get("crowd")) {
        (Some(_), Some(crowd)) => Crowd::read(Some(&crowd.to_string())).map(Some),
        _ => Ok(None),
    }
}

/// A value that nobody has written before; `None` if there are no shares.
fn write(crowd: &Crowd) -> Option<String> {
    crowd.write_shares().map(|shares| format!(r#"{{"dlock":"{MAJOR}.0","nonce":"{:016x}","crowd":{shares}}}"#, random()))
}

/// Writes the shares in the place of `old`, or deletes it if there are none.
fn put(mode: Mode, pipeline: &mut Pipeline, names: &Names, old: &Stored, crowd: &Crowd, now: u64) -> Option<Stored> {
    if let (Some(value), Some(ends)) = (write(crowd), crowd.ends()) {
        Some(mode.swap(pipeline, &names.lock, old, &value, millis(ends.saturating_sub(now).max(1))))
    } else {
        mode.delete(pipeline, &names.lock, old);
        None
    }
}

/// What a step writes beside the shares.
#[derive(Default)]
pub(super) struct Notes {
    commands: Pipeline,
    /// What is remembered of holds that ended in this step.
    over: Option<String>,
    /// Nothing has changed, but what is on its way must not find the value as it is.
    touch: bool,
}

/// What a step came to.
pub(super) enum Step<T> {
    Done(T),
    /// The lock isn't shared.
    Apart(Seen),
}

impl Tair {
    /// A step on the shares of a lock. It is tried again while others get in before.
    async fn step<T>(&mut self, names: &Names, mut decide: impl FnMut(&mut Crowd, u64, &mut Notes) -> Result<T>) -> Result<Step<T>> {
        let mode = self.options.mode;
        for _ in 0..TRIES {
            let seen = self.see(names).await?;
            let time = seen.time();
            let What::Shared(mut crowd, stored) = seen.what else { return Ok(Step::Apart(seen)) };
            let ((now, _), before, mut notes) = (time?, crowd.write_shares(), Notes::default());
            crowd.settle(now);
            let answer = decide(&mut crowd, now, &mut notes)?;
            if !notes.touch && crowd.write_shares() == before {
                return Ok(Step::Done(answer));
            }
            let mut swap = ::redis::pipe();
            put(mode, &mut swap, names, &stored, &crowd, now);
            append(&mut swap, &notes.commands);
            if self.compare(&swap).await? == Compared::Done {
                return Ok(Step::Done(answer));
            }
            if let Some(line) = &notes.over {
                let mut take_back = ::redis::pipe();
                history::take_back(&mut take_back, names, line);
                self.run(&take_back, false).await?;
            }
        }
        Err(changed_meanwhile())
    }

    /// A lock as it stands.
    pub(super) async fn see(&mut self, names: &Names) -> Result<Seen> {
        let mut look = ::redis::pipe();
        self.options.mode.read(&mut look, names);
        let replies = self.look(&look).await?;
        Seen::read(self.options.mode, &replies)
    }

    /// Grants a share beside those there are, on top of what was read; `None` if somebody else wrote meanwhile.
    pub(super) async fn grant_share(&mut self, request: &Request, names: &Names, mut crowd: Crowd, base: &Base) -> Result<Option<Attempt>> {
        let (now, before) = (base.now, crowd.clone());
        let fence = match base.next_fence() {
            Ok(fence) => fence,
            Err(error) => {
                self.give_up(names, base).await;
                return Err(error);
            }
        };
        let grant = crowd.grant(request, fence, now);
        if crowd.write_shares().is_some_and(|shares| shares.len() > MOST) {
            self.give_up(names, base).await;
            return Err(Error::new(Kind::Unsupported, "more holders share the lock than a value has room for"));
        }
        let mut second = ::redis::pipe();
        second.cmd("INCRBY").arg(&names.fence).arg(base.counts(fence));
        let written = put(self.options.mode, &mut second, names, &base.stored, &crowd, now);
        // Until there is an answer, it may come late.
        self.unanswered = Some((request.key.clone(), request.token));
        let replies = self.run(&second, true).await?;
        self.unanswered = None;
        let [counted, swapped] = &*replies else { return Err(failure::unreadable()) };
        if compared(swapped)? != Compared::Done {
            return Ok(None);
        }
        if let Err(error) = acquire::counted(fence, counted) {
            if let Some(written) = written {
                let mut undo = ::redis::pipe();
                put(self.options.mode, &mut undo, names, &written, &before, now);
                let _ = self.run(&undo, false).await;
            }
            return Err(error);
        }
        // Only now: others write at the same time, and nobody may take for a hold what was not granted.
        let mut third = ::redis::pipe();
        note(&mut third, names, &crowd, fence)?;
        history::note_vanished(&mut third, names, &base.begun, &crowd.fences().collect::<Vec<_>>());
        append(&mut third, &base.line);
        if self.is_queued(request) {
            line::remove(&mut third, names, &request.token.hold_text(), false);
        }
        // Whether that works is of no matter to who has the lock; its place in the queue ends by itself.
        if self.run(&third, false).await.is_ok() {
            self.forget_queued(request);
        }
        Ok(Some(Attempt::Granted(grant)))
    }

    /// Writes a hold that an owner of a share has entered or asked for again; `None` if somebody else wrote meanwhile.
    pub(super) async fn enter_share(
        &mut self,
        request: &Request,
        names: &Names,
        (crowd, stored): (&Crowd, &Stored),
        grant: Grant,
        now: u64,
    ) -> Result<Option<Attempt>> {
        let mut swap = ::redis::pipe();
        put(self.options.mode, &mut swap, names, stored, crowd, now);
        note(&mut swap, names, crowd, grant.fence)?;
        let replies = self.run(&swap, true).await?;
        if history::first(&replies)? != Compared::Done {
            return Ok(None);
        }
        self.leave_as_holder(request).await;
        Ok(Some(Attempt::Granted(grant)))
    }

    /// Writes that shares are over, if any are, for who is told that somebody else has the lock.
    pub(super) async fn drop_shares(&mut self, names: &Names, stored: &Stored, (before, after): (&Crowd, &Crowd), now: u64) -> Result<()> {
        if before.write_shares() != after.write_shares() {
            let mut swap = ::redis::pipe();
            put(self.options.mode, &mut swap, names, stored, after, now);
            // Whoever was faster has dropped them as well.
            self.compare(&swap).await?;
        }
        Ok(())
    }

    pub(super) async fn verify_share(&mut self, names: &Names, token: &Token) -> Result<Step<Holding>> {
        let seen = self.see(names).await?;
        let time = seen.time();
        let What::Shared(before, stored) = seen.what else { return Ok(Step::Apart(seen)) };
        let ((now, _), mut crowd) = (time?, before.clone());
        crowd.settle(now);
        let answer = crowd.verify(token, now);
        if answer == Holding::NotHeld && before.lasts(token).is_some() {
            match self.drop_shares(names, &stored, (&before, &crowd), now).await {
                // Who may only look changes nothing.
                Err(error) if error.kind != Kind::Denied => return Err(error),
                _ => {}
            }
        }
        Ok(Step::Done(answer))
    }

    pub(super) async fn renew_share(&mut self, names: &Names, token: &Token, extension: Extension) -> Result<Step<Renewal>> {
        self.step(names, |crowd, now, notes| {
            let answer = crowd.renew(token, extension, now);
            if let Renewal::Renewed { fence, .. } = answer {
                note(&mut notes.commands, names, crowd, fence)?;
            }
            Ok(answer)
        })
        .await
    }

    pub(super) async fn release_share(&mut self, names: &Names, token: &Token, parting: &Parting, unsure: bool) -> Result<Step<Release>> {
        self.step(names, |crowd, now, notes| {
            let fence = crowd.fence(token);
            let (answer, past) = crowd.release(token, parting, now);
            notes.touch = unsure && answer == Release::NotHeld;
            match (&answer, fence) {
                (Release::Released, Some(fence)) => {
                    notes.over = history::note_end(&mut notes.commands, names, fence, past.as_ref())?;
                }
                (Release::StillHeld(_), Some(fence)) => note(&mut notes.commands, names, crowd, fence)?,
                _ => {}
            }
            Ok(answer)
        })
        .await
    }

    pub(super) async fn mark_share(&mut self, names: &Names, fence: Fence, mark: &Break) -> Result<Step<Marking>> {
        self.step(names, |crowd, _, notes| {
            let answer = crowd.mark(fence, mark);
            note(&mut notes.commands, names, crowd, fence)?;
            Ok(answer)
        })
        .await
    }

    pub(super) async fn evict_share(&mut self, names: &Names, fence: Fence, mark: &Break) -> Result<Step<Marking>> {
        self.step(names, |crowd, now, notes| {
            let Some(past) = crowd.evict(fence, mark, now) else { return Ok(Marking::Changed) };
            notes.over = history::note_end(&mut notes.commands, names, fence, Some(&past))?;
            Ok(Marking::Done)
        })
        .await
    }
}

/// Notes what is to be remembered of a share should it vanish.
fn note(pipeline: &mut Pipeline, names: &Names, crowd: &Crowd, fence: Fence) -> Result<()> {
    match crowd.vanished(fence) {
        Some(past) => history::note_hold(pipeline, names, fence, &past),
        None => Ok(()),
    }
}

/// Adds the commands of another packet.
pub(super) fn append(pipeline: &mut Pipeline, more: &Pipeline) {
    for command in more.cmd_iter() {
        pipeline.add_command(command.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backends::tair::record::Record;

    const SHARES: &str = r#"{"v":100,"s":[{"o":"o","r":"r","h":{"r":{"t":5,"e":9}},"m":"s","f":7,"b":1,"l":2}]}"#;

    #[test]
    fn shares_come_back_and_no_value_is_written_twice() {
        let value = format!(r#"{{"dlock":"1.7","nonce":"n","crowd":{SHARES},"new":1}}"#);
        let crowd = read(&value).unwrap().unwrap();
        assert_eq!((crowd.ends(), crowd.fences().collect::<Vec<_>>()), (Some(9), vec![Fence(7)]));
        let (one, two) = (write(&crowd).unwrap(), write(&crowd).unwrap());
        assert!(one != two && read(&one).unwrap().unwrap() == crowd && one.contains(SHARES), "{one}");
        assert!(Record::read(&one).unwrap().is_none(), "it is no exclusive hold");
        assert!(write(&Crowd::default()).is_none());
    }

    #[test]
    fn what_others_store_is_no_share_and_a_newer_layout_is_refused() {
        for value in ["", "7", "{}", r#"{"dlock":"1.0"}"#, r#"["crowd"]"#, r#"{"crowd":7}"#] {
            assert!(read(value).unwrap().is_none(), "{value}");
        }
        for (crowd, kind) in [(r#"{"v":200}"#, Kind::Layout), ("7", Kind::Data)] {
            assert_eq!(read(&format!(r#"{{"dlock":"1.0","crowd":{crowd}}}"#)).unwrap_err().kind, kind);
        }
        assert_eq!(Record::read(r#"{"dlock":"2.0","crowd":{}}"#).unwrap_err().kind, Kind::Layout);
    }
}
