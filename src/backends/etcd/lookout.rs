//! Finding waiters that are gone, without each waiter proving all the time that it lives.
//!
//! A waiter extends its lease, which is all that it does, once in a third of its length. One waiter at a time, the lookout, looks at the
//! front of the queue every second. Those at the front, and more of them as long as they don't answer, it *calls*: it puts a key that they
//! watch. One that is called extends its lease at once, answers, and extends its lease every [`BEAT`] from then on. One that is silent for [`SILENT`] after its call
//! is gone, and is removed as soon as it is in the way.
//!
//! The lookout is the waiter whose key is [`Names::lookout`], on a lease of a few seconds. All waiters watch that key: when it goes, one of
//! them puts it anew.
//!
//! How long ago a lease was extended, the server tells. A call says how long that was when it was made: so any client can judge the answer.

use std::time::Duration;

use tokio::time::Instant;

use super::{
    client::{Answer, Client},
    failure::Trouble,
    messages::KeyValue,
    names::Names,
    ops,
    queue::{Keys, Look},
    session::Queued,
    waiting::{after, is_past},
};

/// How often the lookout looks.
const ROUND: Duration = Duration::from_secs(1);
/// After calls, unless some behind are known to live: a waiter that lives has answered by then.
const AGAIN: Duration = Duration::from_millis(250);
/// The length of the lookout's lease in seconds, unless the server's shortest is longer.
const LEASE: i64 = 3;
/// When the lookout is gone, each waiter comes for its post within so much time for each place in the line, at random: a few of them, and
/// the others hear that it is taken.
const SPREAD_MS: u64 = 20;
/// But at the latest within so much.
const LATEST_MS: u64 = 5000;
/// How often a waiter that was called proves that it lives.
pub(super) const BEAT: Duration = Duration::from_millis(1500);
/// A waiter whose lease was extended so many whole seconds ago, rounded up, is gone if it is to extend it each [`BEAT`].
const SILENT: i64 = 5;
/// In so many whole seconds one that was called has extended its lease.
const ANSWERED: i64 = 4;
/// What a waiter that was called makes of its call, once it has extended its lease.
pub(super) const HERE: &str = "here";
/// So many waiters that are known to live stand at the front, as far as the lookout looks.
const LIVING: usize = 2;
/// So many are called in one round, and two more for each that is silent.
const CALLS: usize = 8;
/// So many are looked at together, and removed together.
const TOGETHER: usize = 30;

/// The lookout, as far as a waiter knows.
#[derive(Clone, Copy, Debug)]
pub(super) enum Lookout {
    Another,
    /// There is none; from this moment on it could be this waiter.
    Wanted(Instant),
    /// This waiter, whose next round is due then.
    Own(Instant),
}

impl Lookout {
    /// Of one that sees whether there is one.
    pub(super) fn seen(is_there: bool) -> Self {
        if is_there { Self::Another } else { Self::Wanted(after(Duration::ZERO)) }
    }

    /// Of one at this place that hears of a change.
    pub(super) fn heard(self, is_gone: bool, place: Option<u32>) -> Self {
        let spread = (SPREAD_MS * u64::from(place.unwrap_or(1))).min(LATEST_MS);
        match (self, is_gone) {
            (_, true) => Self::Wanted(after(Duration::from_millis(crate::lock::random() % spread.max(1)))),
            // That it has put itself.
            (own @ Self::Own(_), false) => own,
            (_, false) => Self::Another,
        }
    }

    /// When there is something to do.
    pub(super) fn due(&self) -> Option<Instant> {
        match self {
            Self::Another => None,
            Self::Wanted(due) | Self::Own(due) => Some(*due),
        }
    }

    pub(super) fn is_own(&self) -> bool {
        matches!(self, Self::Own(_))
    }
}

/// Does what is due. `lease` is that of a lookout, and `own` the waiter's.
pub(super) async fn serve(client: &mut Client, names: &Names, queued: &mut Queued, (lease, own): (i64, i64)) -> Answer<()> {
    let due = match queued.lookout {
        Lookout::Another => return Ok(()),
        // The first in the queue has no other waiter to look after.
        Lookout::Wanted(_) if queued.busy.position == Some(1) => {
            queued.lookout = Lookout::Another;
            return Ok(());
        }
        Lookout::Wanted(_) if !take_post(client, names, lease, own).await? => {
            queued.lookout = Lookout::Another;
            return Ok(());
        }
        Lookout::Wanted(_) => after(Duration::ZERO),
        Lookout::Own(due) => {
            if client.keep_alive(lease).await?.is_none() {
                queued.lookout = Lookout::Wanted(after(Duration::ZERO));
                return Ok(());
            }
            due
        }
    };
    // One that is late itself, on a busy host, does not judge others.
    let next = if is_past(due + ROUND) { ROUND } else { look_after(client, names, &queued.own).await? };
    queued.lookout = Lookout::Own(after(next));
    Ok(())
}

/// Gives the post up. Left alone it ends with its lease.
pub(super) async fn retire(client: &mut Client, queued: &mut Queued, lease: i64) {
    if queued.lookout.is_own() {
        queued.lookout = Lookout::Another;
        let _ = client.revoke(lease).await;
    }
}

/// Whether the post was free. One that takes it is called by that: the next one is to know soon whether it died.
async fn take_post(client: &mut Client, names: &Names, lease: i64, own: i64) -> Answer<bool> {
    let name = names.lookout();
    if client.run(vec![ops::peek(&name)]).await?.one()?.is_some_and(|kv| kv.lease != lease) {
        return Ok(false);
    }
    match client.grant(lease, LEASE).await {
        Ok(_) | Err(Trouble::LeaseExists) => {}
        Err(trouble) => return Err(trouble),
    }
    let compare = vec![ops::absent(&name)];
    let success = vec![ops::put(&name, "", lease), ops::put(&names.call(own), "0", own)];
    let mut answers = client.txn(compare, success, vec![ops::peek(&name)]).await?;
    // By a request of ours of which the answer was lost.
    let ours = answers.succeeded || answers.one()?.is_some_and(|kv| kv.lease == lease);
    if !ours {
        client.revoke(lease).await?;
    }
    Ok(ours)
}

/// Calls those at the front that were not called, and removes those that are gone; returns after what time to look again.
async fn look_after(client: &mut Client, names: &Names, own: &str) -> Answer<Duration> {
    let (mut called, mut living, mut silent, mut seen) = (0, 0, 0, 0);
    let mut gone = Vec::new();
    let mut alone = false;
    'front: loop {
        let look = front(client, names, seen + TOGETHER).await?;
        alone |= seen == 0 && look.queue.is_held_alone();
        let more = look.contenders.len() == seen + TOGETHER;
        for at in seen.min(look.contenders.len())..look.contenders.len() {
            if look.contenders[at].name == own {
                // It lives, and those behind it are not in its way.
                break 'front;
            }
            let Some(ahead) = look.waiting(at) else { continue };
            match judge(client, names, &ahead).await? {
                State::Lives => living += 1,
                State::Silent => silent += 1,
                State::Called => called += 1,
                State::Gone => gone.push(ahead),
            }
            if living == LIVING || called >= CALLS + 2 * (silent + gone.len()) {
                break 'front;
            }
        }
        if !more {
            break;
        }
        seen = look.contenders.len();
    }
    if !alone {
        for some in gone.chunks(TOGETHER) {
            remove(client, names, some).await?;
        }
    }
    Ok(if called > 0 && living < LIVING { AGAIN } else { ROUND })
}

/// The first so many contenders, with their records and what else concerns them.
async fn front(client: &mut Client, names: &Names, most: usize) -> Answer<Look> {
    let limit = i64::try_from(most).unwrap_or(i64::MAX);
    let mut answers = client.run(vec![ops::first(&names.folder, limit), ops::under(&names.beside(), false)]).await?;
    let (keys, beside) = (answers.keys()?, answers.keys()?);
    let ids = keys.iter().filter_map(|kv| Some(names.open_as(str::from_utf8(&kv.key).ok()?.rsplit('/').next()?.rsplit('-').next()?)));
    let records: Vec<_> = ids.map(|record| ops::get(&record)).collect();
    let mut open = Vec::new();
    for some in records.chunks(ops::MOST_OPS) {
        let mut answers = client.run(some.to_vec()).await?;
        for _ in some {
            open.extend(answers.one()?);
        }
    }
    Ok(Look::new(names, answers.revision, Keys { contenders: keys.clone(), with_values: keys, open, beside, ..Keys::default() })?)
}

/// A waiter's call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    /// Not answered. How long its lease had not been extended when it was called.
    Open(i64),
    Answered,
}

/// Answers the call of this waiter, which has extended its lease. If the store refuses, the waiter only counts as a slow one: its
/// extended lease keeps it from being removed.
pub(super) async fn answer(client: &mut Client, names: &Names, own: i64) {
    let _ = client.run(vec![ops::put(&names.call(own), HERE, own)]).await;
}

/// Of the keys next to a lock's last fence those that call a waiter, by its lease, and what they say.
pub(super) fn calls(names: &Names, keys: &[KeyValue]) -> Vec<(i64, Call)> {
    let folder = names.calls();
    let call = |kv: &KeyValue| {
        let lease = i64::from_str_radix(str::from_utf8(&kv.key).ok()?.strip_prefix(&*folder)?, 16).ok()?;
        let said = str::from_utf8(&kv.value).ok()?;
        Some((lease, if said == HERE { Call::Answered } else { Call::Open(said.parse().ok()?) }))
    };
    keys.iter().filter_map(call).collect()
}

/// What is known of a waiter.
enum State {
    Lives,
    /// For longer than one does that was called.
    Silent,
    /// Just now.
    Called,
    Gone,
}

/// Tells whether a waiter lives; one of which nothing is known is called.
async fn judge(client: &mut Client, names: &Names, one: &Ahead) -> Answer<State> {
    let lease = match client.time_to_live(one.lease).await {
        Ok(lease) => lease,
        // Its key expires by itself; or this user may not see it.
        Err(Trouble::NoLease | Trouble::Refused(_)) => return Ok(State::Silent),
        Err(trouble) => return Err(trouble),
    };
    let silent = lease.granted_ttl - lease.ttl;
    match one.called {
        _ if !one.answers => Ok(State::Silent),
        Some(Call::Answered) if silent >= SILENT => Ok(State::Gone),
        Some(Call::Answered) => Ok(if silent < ANSWERED { State::Lives } else { State::Silent }),
        Some(Call::Open(called)) if silent >= SILENT.max(called + ANSWERED) => Ok(State::Gone),
        // What it says then is on its way, or was lost: it is called anew.
        Some(Call::Open(called)) if silent + 2 >= called => Ok(State::Silent),
        _ => {
            // On the lease of the one that is called, if that stands there still.
            let compare = vec![ops::created_at(&one.key, one.created)];
            let call = ops::put(&names.call(one.lease), silent.to_string(), one.lease);
            match client.run_if(compare, vec![call]).await {
                Ok(_) | Err(Trouble::NoLease | Trouble::Full(_)) => Ok(State::Called),
                Err(trouble) => Err(trouble),
            }
        }
    }
}

/// One that waits, as it was seen: it is still the same as long as its key and its record are.
#[derive(Clone, Debug)]
pub(super) struct Ahead {
    pub key: String,
    pub created: i64,
    pub lease: i64,
    pub record: String,
    /// Of the record. The grant writes it anew, or removes it.
    pub revision: i64,
    /// dlock put it there: it answers a call.
    pub answers: bool,
    pub called: Option<Call>,
}

/// Removes one that waits if it is gone, for one that does not wait itself; whether it was. One that was not called is.
pub(super) async fn remove_if_gone(client: &mut Client, names: &Names, one: &Ahead) -> Answer<bool> {
    Ok(matches!(judge(client, names, one).await?, State::Gone) && remove(client, names, std::slice::from_ref(one)).await?)
}

/// Removes several that are gone, in one step; whether any was.
///
/// A holder is never removed: a grant writes the record anew or removes it, in the step that grants, and compares the key. One that
/// lives after all finds its key gone, and queues up anew.
async fn remove(client: &mut Client, names: &Names, gone: &[Ahead]) -> Answer<bool> {
    let each = gone.iter().map(|one| {
        let compare = vec![ops::created_at(&one.key, one.created), ops::unchanged(&one.record, one.revision)];
        ops::when(compare, vec![ops::delete(&one.key), ops::delete(&one.record), ops::delete(&names.call(one.lease))], Vec::new())
    });
    let mut answers = client.run(each.collect()).await?;
    Ok(answers.any_branch())
}
