//! Shares of a lock: taking and entering one, extending it and giving it back; and the queue of requests for a share, for
//! the lock in order, or for the whole lock while it is shared.
//!
//! The order is as for holds: bytes, then row; back: row, then bytes. A share has the key's first byte locked for reading, so that no process can
//! lock it for writing, and the byte of each of its holds for writing, which tells that it lives. The row says which shares there are.
//!
//! | taking a share | the first byte can be read | another process has it alone |
//! |---|---|---|
//! | there is room in the row, and no waiter goes first | granted | busy |
//! | there is none | busy | busy |

use std::{collections::HashMap, sync::Arc, time::Duration};

use super::{
    Sqlite,
    document::{Gathering, Witness},
    lock_file::{Bytes, Kind as LockKind, LockFile},
    opened, ours,
    row::unknown_holder,
    slot::{Obstacle, Slot, Watched},
    starts,
    store::Whose,
};
use crate::lock::{
    Attempt, Busy, Effect, Entry, Error, Grant, Intent, Key, Kind, Mode, Release, ReleaseInfo, Renewal, Request, Result, Scope, Token,
    document::Answer,
};

/// How soon to ask again for a lock whose bytes are locked without a row that names the holder: a grant takes less.
const PASSING: Duration = Duration::from_millis(20);
/// An exclusive hold that processes stand behind lasts as long as they do.
const WITHOUT_END: u64 = u64::MAX;

/// An answer of the document.
struct Asked {
    attempt: Attempt,
    /// Others may go now.
    ring: bool,
    ahead: Option<String>,
    watched: Vec<Watched>,
    /// A waiter is about to take it.
    passed: bool,
}

impl Asked {
    fn only(attempt: Attempt) -> Self {
        Self { attempt, ring: false, ahead: None, watched: Vec::new(), passed: false }
    }
}

impl Sqlite {
    /// Takes a share anew, or enters one.
    pub(super) async fn share(&mut self, request: &Request) -> Result<Attempt> {
        let slot = self.slot(&request.key)?;
        let known = slot.has_share(&request.token);
        let secured = slot.take_share(request).map_err(|error| ours(&error))?;
        if secured && !request.detached {
            slot.expect_share(&request.token, request.ttl);
        }
        if !secured && request.entry == Entry::Reenter {
            return Ok(Attempt::NotHeld);
        }
        let obstacle = if slot.mine.is_some() {
            Obstacle::Ourselves
        } else if secured || slot.wants_it_alone() {
            Obstacle::Document
        } else {
            Obstacle::Bytes
        };
        let answer = self.ask(request, secured, obstacle).await;
        let Some(slot) = self.slots.get_mut(&request.key) else { return answer.map(|asked| asked.attempt) };
        match &answer {
            Ok(Asked { attempt: Attempt::Granted(grant), .. }) if !request.detached => slot.confirm_grant(&request.token, grant.fence),
            // It may yet be granted, and must not come upon a lock that another process has taken meanwhile.
            Err(error) if error.effect != Effect::NotApplied => {}
            _ => slot.drop_share(&request.token, known),
        }
        self.heed(request, obstacle, answer)
    }

    /// The lock is shared, or others wait for it in order: asks for it alone. The bytes are ours if `secured`; nothing else keeps
    /// them if it isn't granted.
    pub(super) async fn ask_alone(&mut self, request: &Request, secured: bool, obstacle: Obstacle) -> Result<Attempt> {
        let answer = self.ask(request, secured, obstacle).await;
        let granted = matches!(&answer, Ok(Asked { attempt: Attempt::Granted(_), .. }));
        if secured
            && !granted
            && answer.as_ref().err().is_none_or(|error| error.effect == Effect::NotApplied)
            && let Some(slot) = self.slots.get_mut(&request.key)
        {
            slot.give_back();
        }
        self.heed(request, obstacle, answer)
    }

    /// Keeps in mind what to wait for, and lets others know.
    fn heed(&mut self, request: &Request, obstacle: Obstacle, answer: Result<Asked>) -> Result<Attempt> {
        let asked = answer?;
        if let Some(slot) = self.slots.get_mut(&request.key) {
            if matches!(asked.attempt, Attempt::Busy(_)) {
                self.contended = true;
                slot.obstacle = obstacle;
                slot.line_up(asked.ahead, asked.watched);
                slot.passed = asked.passed.then_some(request.token);
            }
            if asked.ring {
                slot.file.ring();
            }
        }
        Ok(asked.attempt)
    }

    /// One question to the document.
    async fn ask(&mut self, request: &Request, secured: bool, obstacle: Obstacle) -> Result<Asked> {
        let Self { options, store, slots, prepared, .. } = self;
        let Some(slot) = slots.get_mut(&request.key) else { return Err(super::acquire::lost_slot()) };
        if !slot.file.is_current() {
            return Err(slot.replaced(*prepared));
        }
        let fresh = request.entry == Entry::Fresh;
        let waiting = request.waiting && fresh && slot.stand_in_line(&request.token);
        let request = &Request { waiting, ..request.clone() };
        let counts = request.run_policy.as_ref().is_some_and(|run_policy| run_policy.once.is_some() || run_policy.at_least.is_some());
        let slot = &*slot;
        let whose = Whose { namespace: &options.namespace, key: &request.key, token: &request.token };
        let (store, _) = opened(store, &options.path).await?;
        let mut gathering = store.gather(whose.namespace, whose.key, request.detached || counts, Witness::Slot(slot)).await?;
        let outside = outside(&gathering, slot, request, secured)?;
        let passed = !secured && obstacle == Obstacle::Bytes && !outside.known && !gathering.document.has_holders();
        if passed && slot.passed != Some(request.token) && gathering.document.position(&request.token).is_none() {
            // Another waiter that came first is about to be granted it. In the plain queue that one would go first, and a document is in its way.
            let busy = Busy { holders: vec![unknown_holder()], expires_in: Some(PASSING), notifies: true, passing: true, position: None };
            return Ok(Asked { passed, ..Asked::only(Attempt::Busy(busy)) });
        }
        if fresh && gathering.document.is_empty() {
            gathering.absorb(Witness::Slot(slot)).await?;
        }
        let room = gathering.document.has_room(request.mode, outside.until);
        let known = starts::known(&mut gathering.transaction, whose).await?;
        let denial = known.record.judge(request.run_policy.as_ref(), &request.token, gathering.now);
        if !secured && !request.detached && !slot.has_share(&request.token) && gathering.document.fence(&request.token).is_some() {
            return Err(Error::new(Kind::Unavailable, "another process has this very hold"));
        }
        let answer = gathering.document.ask(request, gathering.now, outside.until, || denial);
        let attempt = match answer {
            Answer::Has(grant) => Attempt::Granted(grant),
            Answer::NotHeld => Attempt::NotHeld,
            Answer::Otherwise(mode) => return Err(mode.not_enough()),
            // What is undone with it is done again by the next transaction.
            Answer::Denied(denial) => return Ok(Asked::only(Attempt::Denied(denial))),
            Answer::Go if request.mode == Mode::Exclusive => {
                let fence = starts::grant_alone(&mut gathering.transaction, whose, request, slot.file.id(), known).await?;
                Attempt::Granted(Grant { fence, ttl: request.ttl, holds: 1, drain_delay: Duration::ZERO, session: None, permit: None })
            }
            Answer::Go => {
                let fence = gathering.count_fence().await?;
                Attempt::Granted(gathering.document.grant(request, fence, gathering.now))
            }
            Answer::Busy(busy) => Attempt::Busy(told(&gathering, busy, request, outside, room, obstacle)),
        };
        let alone = request.mode == Mode::Exclusive && matches!(attempt, Attempt::Granted(_));
        // An exclusive holder announces no release: from now on wait for its bytes.
        let ring = if alone { !gathering.document.is_empty() } else { !gathering.document.take_wake_ups(outside.until).is_empty() };
        let ahead = gathering.document.ahead(&request.token).map(str::to_owned);
        let shares = gathering.document.attached().map(|hold| (slot.bytes.of_hold(hold).first(), LockKind::Read));
        let before = gathering.document.before(&request.token).into_iter().map(|hold| (slot.bytes.of_hold(hold).alive(), LockKind::Read));
        let nested = (slot.bytes.nested(), LockKind::Write);
        let watched =
            shares.chain(before).chain([nested]).filter(|(range, kind)| slot.file.others_keep_out(*range, *kind).unwrap_or(false));
        let watched = watched.collect();
        gathering.save().await?;
        Ok(Asked { attempt, ring, ahead, watched, passed })
    }

    /// The lock file that others take now, and what this process has in it.
    pub(super) fn witness<'a>(slots: &'a HashMap<Key, Slot>, key: &Key, file: Option<&'a LockFile>, bytes: Bytes) -> Witness<'a> {
        match slots.get(key) {
            Some(slot) if file.is_some_and(|file| file.id() == slot.file.id()) => Witness::Slot(slot),
            _ => Witness::File(file, bytes),
        }
    }

    /// The lock file that the path names now, if there is one.
    pub(super) fn file_now(&self) -> Result<Option<Arc<LockFile>>> {
        match &self.file {
            Some(file) if file.is_current() => Ok(Some(Arc::clone(file))),
            _ => Ok(LockFile::open_to_look(&self.options.path).map_err(|error| ours(&error))?.map(Arc::new)),
        }
    }

    /// Whether this process has that hold of a share, and the kernel confirms it; and whether its lock file is the one that others take.
    fn has_share(&self, key: &Key, token: &Token) -> Result<(bool, bool)> {
        match self.slots.get(key) {
            Some(slot) if slot.has_share(token) => {
                let stands = slot.stands(&token.hold_text()).map_err(|error| ours(&error))?;
                Ok((stands, slot.file.is_current()))
            }
            _ => Ok((false, true)),
        }
    }

    /// A share of this process stands as long as its bytes are ours and there is a row that doesn't say that it is over.
    pub(super) async fn extend_share(&mut self, key: &Key, token: &Token, intent: Intent) -> Result<Renewal> {
        let (standing, current) = self.has_share(key, token)?;
        let guaranteed = standing && current;
        let (file, bytes) = (self.file_now()?, self.bytes(key));
        let Self { options, store, slots, .. } = self;
        let answer = async {
            if !options.path.exists() {
                return Ok((None, false));
            }
            let (store, _) = opened(store, &options.path).await?;
            let witness = Self::witness(slots, key, file.as_deref(), bytes);
            let mut gathering = store.gather(&options.namespace, key, !standing, witness).await?;
            let answer = gathering.row.is_some().then(|| gathering.document.renew(token, intent, gathering.now));
            let ring = !gathering.document.take_wake_ups(None).is_empty();
            gathering.save().await?;
            Ok::<_, Error>((answer, ring))
        };
        let answer = answer.await;
        let kept = slots.get(key).filter(|_| guaranteed).and_then(|slot| slot.share_of(token));
        let kept = kept.map(|share| Renewal::Renewed { ttl: intent.ttl().unwrap_or(share.ttl), fence: share.fence });
        match answer {
            Ok((answer, ring)) => {
                if let Some(file) = file.filter(|_| ring) {
                    file.ring();
                }
                // Without its row the share is not counted: the lock file can't tell how many there are.
                Ok(answer.unwrap_or(Renewal::NotHeld))
            }
            Err(error) => {
                self.give_up_on(&error);
                kept.ok_or(error)
            }
        }
    }

    /// The row first, then the bytes.
    pub(super) async fn hand_back_share(&mut self, key: &Key, token: &Token, info: &ReleaseInfo) -> Result<Release> {
        let (standing, current) = self.has_share(key, token)?;
        let left_before = self.slots.get_mut(key).is_some_and(|slot| slot.begin_to_leave(token));
        let (file, bytes) = (self.file_now()?, self.bytes(key));
        let Self { options, store, slots, .. } = self;
        let answer = async {
            if !options.path.exists() {
                return Ok((Release::NotHeld, false, true));
            }
            let (store, _) = opened(store, &options.path).await?;
            let witness = Self::witness(slots, key, file.as_deref(), bytes);
            let mut gathering = store.gather(&options.namespace, key, !standing, witness).await?;
            gathering.document.forsake(token, |hold| witness.stands(hold));
            let answer = gathering.document.release(token, info, gathering.now);
            let ring = !gathering.document.take_wake_ups(None).is_empty();
            let unknown = gathering.row.is_none();
            gathering.save().await?;
            Ok::<_, Error>((answer, ring, unknown))
        };
        let answer = answer.await;
        let (answer, ring) = match answer {
            // What was given back before, or what the row never knew.
            Ok((Release::NotHeld, ring, unknown)) if standing && (left_before || unknown) => (Ok(Release::Released), ring),
            Ok((answer, ring, _)) => (Ok(answer), ring),
            Err(error) => {
                self.give_up_on(&error);
                // What is left in the row has no byte any more, and the next transaction drops it.
                (if standing && current && !info.is_worth_telling() { Ok(Release::Released) } else { Err(error) }, true)
            }
        };
        if let Some(slot) = self.slots.get_mut(key)
            && (answer.is_ok() || (standing && !info.is_worth_telling()))
        {
            let all = info.scope == Scope::Tree && matches!(answer, Ok(Release::Released));
            slot.remove_share(token, all);
        }
        if let Some(file) = file.filter(|_| ring) {
            file.ring();
        }
        if let Some(store) = &mut self.store {
            store.tidy(&self.options.path, self.contended).await;
        }
        answer
    }

    /// Leaves the document's queue, and notifies those that it held up.
    pub(super) async fn leave_line(&mut self, request: &Request) -> Result<()> {
        let (file, bytes) = (self.file_now()?, self.bytes(&request.key));
        let Self { options, store, slots, .. } = self;
        let (store, _) = opened(store, &options.path).await?;
        let witness = Self::witness(slots, &request.key, file.as_deref(), bytes);
        let mut gathering = store.gather(&options.namespace, &request.key, false, witness).await?;
        gathering.document.leave(&request.token);
        let ring = !gathering.document.take_wake_ups(None).is_empty();
        gathering.save().await?;
        if let Some(file) = file.filter(|_| ring) {
            file.ring();
        }
        Ok(())
    }
}

/// The exclusive holder, as far as the document needs it.
#[derive(Clone, Copy)]
struct Outside {
    /// Until when the lock is held alone, or may be about to be; `None` if it is not.
    until: Option<u64>,
    /// It is the holder that the row names.
    known: bool,
}

fn outside(gathering: &Gathering<'_>, slot: &Slot, request: &Request, secured: bool) -> Result<Outside> {
    let failed = |error: std::io::Error| ours(&error);
    let free = Outside { until: (!secured).then_some(WITHOUT_END), known: false };
    let Some(row) = gathering.row.as_ref().filter(|row| row.owner.is_some()) else { return Ok(free) };
    if row.by_lease(Some(slot.file.id())) {
        let ends = u64::try_from(row.expires_ms).unwrap_or_default();
        return Ok(if ends > gathering.now { Outside { until: Some(ends), known: true } } else { free });
    }
    // The holder of the bytes has outlived its row. With a share there may be holds that had entered its hold: they have their byte
    // before their row, and no row without this one.
    let held = if secured {
        request.mode != Mode::Exclusive && slot.file.others_have(slot.bytes.nested()).map_err(failed)?
    } else {
        slot.mine.is_some() || slot.file.others_have_it_alone(slot.bytes).map_err(failed)?
    };
    Ok(if held { Outside { until: Some(WITHOUT_END), known: true } } else { free })
}

/// What the document can't say of the lock's holders: the exclusive one, and which of them end by themselves.
fn told(gathering: &Gathering<'_>, busy: Busy, request: &Request, outside: Outside, room: bool, obstacle: Obstacle) -> Busy {
    let Busy { mut holders, mut expires_in, position, .. } = busy;
    let row = gathering.row.as_ref().filter(|_| outside.known && holders.is_empty());
    holders.extend(row.map(super::row::Row::holder));
    let passing = holders.is_empty() && obstacle != Obstacle::Ourselves;
    if !room {
        let end = match outside.until {
            Some(WITHOUT_END) | None => gathering.document.ends_by_itself(request.mode),
            end => end,
        };
        expires_in = end.filter(|_| !holders.is_empty()).map(|end| Duration::from_millis(end.saturating_sub(gathering.now)));
        if passing && obstacle != Obstacle::Bytes {
            // What was in the way has just ended.
            expires_in = Some(Duration::ZERO);
        }
        if passing {
            holders.push(unknown_holder());
        }
    }
    Busy { holders, expires_in, notifies: true, passing, position }
}

impl Slot {
    /// That others take another file's bytes. What we wait in and what a guardian has inherited is the old one.
    pub(super) fn replaced(&self, prepared: bool) -> Error {
        let error = Error::new(Kind::Unavailable, format!("the lock file {} was replaced", self.file.path().display()));
        if prepared { error.hint("run it again") } else { error }
    }
}
