//! Who waits where that is of consequence: behind shares, or in fair order.
//!
//! Those who want the lock for themselves alone and in no order stand in the queue as ever (`queue.rs`). Of all others `…:turns` says what
//! they wait for: a hash with their arrival in µs and what [`Crowd`] knows of them, by hold; and `c:<hold>` says since when somebody of
//! either kind has others let it go first. Each writes only what it says of itself, whom it called, and who is gone: that needs no comparing.
//! The lock itself is granted by comparing alone, whoever waits.
//!
//! Nobody is woken: each looks by itself, sooner than a turn is over, and is found dead by those whom it holds up. Nor does anybody keep
//! users of other libraries out by waiting.
//!
//! # Worst cases
//! - *Somebody joins or leaves while another one decides*: it came or went later. Who waits is asked about the moment of the decision.
//! - *Two write of the same waiter*: what it says of itself and who called it are two fields. One that was taken out and is alive comes
//!   again, with its place if it spoke last.
//! - *A turn that was granted is called again late*: the call names a hold that is in no queue any more.

use std::time::Duration;

use ::redis::{Pipeline, Value};

use super::{
    Tair,
    acquire::{Found, Obstacle},
    queue::said_of,
    starts::Starts,
    value::readable,
};
use crate::{
    backends::redis::{failure, names::Names, reply},
    lock::{
        Attempt, Busy, Error, Mode, Request, Result, Waiter,
        crowd::{Answer, Crowd, Place},
    },
};

/// For how many ms a sign of life need not be repeated: a third of what others wait for one, at least.
const SIGN: u64 = 3_000;
/// For how many ms nobody's word is kept.
const KEEP: u64 = 20_000;
/// How long to pause at most where a turn may come and pass.
pub(super) const LOOK: Duration = Duration::from_millis(400);

/// Whether it matters to others that this one waits, or to this one who else does.
pub(super) fn by_rule(request: &Request) -> bool {
    request.fair || request.mode != Mode::Exclusive
}

/// What is kept of those who wait.
#[derive(Debug, Default)]
pub(super) struct Line {
    turns: Vec<(String, String)>,
    queue: Vec<(String, String)>,
    said: Vec<(String, String)>,
}

/// Asks for those who wait by rule.
pub(super) fn read_turns(pipeline: &mut Pipeline, names: &Names) {
    pipeline.cmd("HGETALL").arg(&names.turns);
}

/// Asks for all others.
pub(super) fn read_queue(pipeline: &mut Pipeline, names: &Names) {
    pipeline.cmd("ZRANGE").arg(&names.queue).arg(0).arg(-1).arg("WITHSCORES").cmd("HGETALL").arg(&names.waiters);
}

impl Line {
    /// From the replies to [`read_turns`] and, if that was asked, [`read_queue`].
    pub(super) fn read(turns: &Value, queue: &[Value]) -> Result<Self> {
        let pairs = |reply: &Value| Ok::<_, Error>(readable(reply)?.and_then(reply::pairs).unwrap_or_default());
        let mut line = Self { turns: pairs(turns)?, ..Self::default() };
        if let [queue, said] = queue {
            (line.queue, line.said) = (pairs(queue)?, pairs(said)?);
        }
        Ok(line)
    }

    /// Nobody waits by rule, or is waited for.
    pub(super) fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }

    /// Puts all of them into a crowd that nobody waits for, in the order of their coming.
    pub(super) fn fill(&self, crowd: &mut Crowd) {
        let mut all: Vec<(u64, &str, Option<&str>)> = Vec::new();
        for (hold, text) in self.turns.iter().filter(|(hold, _)| !hold.starts_with("c:")) {
            if let Some((micros, json)) = text.split_once(':')
                && let Ok(micros) = micros.parse()
            {
                all.push((micros, hold, Some(json)));
            }
        }
        all.extend(self.queue.iter().filter_map(|(hold, micros)| Some((micros.parse().ok()?, &**hold, None))));
        all.sort_unstable();
        for (micros, hold, json) in all {
            if let Some(json) = json {
                crowd.line_up(json);
            } else if let Some((seen, metadata)) = said_of(&self.said, hold) {
                crowd.absorb(hold.to_owned(), metadata, micros / 1000, seen);
            }
        }
        for (name, since) in &self.turns {
            if let (Some(hold), Ok(since)) = (name.strip_prefix("c:"), since.parse()) {
                crowd.call(hold, since);
            }
        }
    }

    /// Those who wait, for those who look.
    pub(super) fn waiters(&self, now: u64) -> Vec<Waiter> {
        let mut crowd = Crowd::default();
        self.fill(&mut crowd);
        crowd.settle(now);
        crowd.waiters(now).into_iter().map(|(_, waiter)| waiter).collect()
    }

    /// Somebody is granted the lock: whose turn it was waits for the next one.
    pub(super) fn clear(&self, pipeline: &mut Pipeline, names: &Names) {
        let calls: Vec<&str> = self.turns.iter().map(|(name, _)| &**name).filter(|name| name.starts_with("c:")).collect();
        if !calls.is_empty() {
            pipeline.cmd("HDEL").arg(&names.turns).arg(calls);
        }
    }

    /// Writes what became of the queue by `request`, which was asked in vain.
    pub(super) fn write(
        &self,
        pipeline: &mut Pipeline,
        names: &Names,
        request: &Request,
        (before, after): (&[Place], &[Place]),
        (now, micros): (u64, u64),
    ) {
        let own = request.token.hold_text();
        for place in after {
            let known = before.iter().find(|known| known.hold == place.hold);
            match (known.and_then(|known| known.called), place.called) {
                (None, Some(since)) => {
                    pipeline.cmd("HSET").arg(&names.turns).arg(format!("c:{}", place.hold)).arg(since);
                    pipeline.cmd("PEXPIRE").arg(&names.turns).arg(KEEP);
                }
                (Some(_), None) => {
                    pipeline.cmd("HDEL").arg(&names.turns).arg(format!("c:{}", place.hold));
                }
                _ => {}
            }
            let known = known.filter(|known| known.since == place.since);
            if place.hold != own || known.is_some_and(|known| now.saturating_sub(known.seen) < SIGN) {
                continue;
            }
            if place.plain {
                super::queue::add(pipeline, names, request, (now, micros));
                continue;
            }
            let arrived = known.and_then(|_| self.arrival(&own)).unwrap_or(micros);
            pipeline.cmd("HSET").arg(&names.turns).arg(&own).arg(format!("{arrived}:{}", place.json));
            pipeline.cmd("PEXPIRE").arg(&names.turns).arg(KEEP);
        }
        remove_gone(pipeline, names, &own, before, after);
    }

    fn arrival(&self, hold: &str) -> Option<u64> {
        self.turns.iter().find(|(name, _)| name == hold)?.1.split_once(':')?.0.parse().ok()
    }
}

/// Takes out who died in line, or has let its turn pass.
fn remove_gone(pipeline: &mut Pipeline, names: &Names, own: &str, before: &[Place], after: &[Place]) {
    for gone in before.iter().filter(|known| known.hold != own && after.iter().all(|place| place.hold != known.hold)) {
        remove(pipeline, names, &gone.hold, gone.plain);
    }
}

/// Takes somebody out.
pub(super) fn remove(pipeline: &mut Pipeline, names: &Names, hold: &str, plain: bool) {
    if plain {
        pipeline.cmd("ZREM").arg(&names.queue).arg(hold).cmd("HDEL").arg(&names.waiters).arg(hold);
    } else {
        pipeline.cmd("HDEL").arg(&names.turns).arg(hold).arg(format!("c:{hold}"));
    }
}

impl Tair {
    /// Asks the rules: somebody shares the lock, or waits by rule, or wants it so. As `try_take`.
    pub(super) async fn ask_crowd(&mut self, request: &Request, names: &Names, mut found: Found) -> Result<Option<Attempt>> {
        let asked = self.ask_rules(request, names, &mut found).await;
        let (answer, before, crowd, time) = match asked {
            Ok(asked) => asked,
            Err(error) => {
                self.undo_found(names, &found).await;
                return Err(error);
            }
        };
        match answer {
            Answer::Has(grant) => match &found.stored {
                Some(stored) => self.enter_share(request, names, (&crowd, stored), grant, time.0).await,
                None => Ok(None),
            },
            Answer::Otherwise(mode) => Err(mode.not_enough()),
            Answer::NotHeld => {
                if let (Some(stored), Some(shares)) = (&found.stored, &found.shares) {
                    self.drop_shares(names, stored, (shares, &crowd), time.0).await?;
                }
                Ok(Some(Attempt::NotHeld))
            }
            Answer::Refused(refusal) => {
                self.undo_found(names, &found).await;
                Ok(Some(Attempt::Refused(refusal)))
            }
            Answer::Go => {
                let Some(mut base) = found.base()? else { return Ok(None) };
                found.line.clear(&mut base.line, names);
                remove_gone(&mut base.line, names, &request.token.hold_text(), &before, &crowd.places());
                if request.mode == Mode::Exclusive {
                    self.count(request, names, found.record, &base).await.map(Some)
                } else {
                    self.grant_share(request, names, crowd, &base).await
                }
            }
            Answer::Busy(busy) => self.stand_in_line(request, names, found, busy, (&before, &crowd), time).await.map(Some),
        }
    }

    /// What the rules say, with who waited before, and the crowd after.
    async fn ask_rules(&mut self, request: &Request, names: &Names, found: &mut Found) -> Result<(Answer, Vec<Place>, Crowd, (u64, u64))> {
        let time = found.seen.time()?;
        if !by_rule(request) && !found.line.is_empty() {
            found.line = self.whole_line(names).await?;
        }
        let mut crowd = found.shares.as_deref().cloned().unwrap_or_default();
        found.line.fill(&mut crowd);
        let before = crowd.places();
        crowd.settle(time.0);
        let starts = Starts::of(&found.kept)?.record;
        // Without an end it is not a lock that we know how to wait for.
        let outside = found.obstacle.as_ref().map(|obstacle| obstacle.left.map_or(u64::MAX, |left| time.0.saturating_add(left)));
        let answer = crowd.ask(request, time.0, outside, || starts.judge(request.terms.as_ref(), time.0));
        Ok((answer, before, crowd, time))
    }

    /// Takes back what was stored, writes down what was found, and says who has the lock.
    async fn stand_in_line(
        &mut self,
        request: &Request,
        names: &Names,
        found: Found,
        mut busy: Busy,
        (before, crowd): (&[Place], &Crowd),
        time: (u64, u64),
    ) -> Result<Attempt> {
        let mut step = ::redis::pipe();
        if let (Some(stored), Some(shares)) = (&found.stored, &found.shares) {
            self.drop_shares(names, stored, (shares, crowd), time.0).await?;
        } else if let Some(made) = found.stored.as_ref().filter(|_| found.made) {
            self.options.mode.delete(&mut step, &names.lock, made);
        }
        if busy.position.is_some() {
            self.note_queued(request);
        }
        let whole = by_rule(request) || !found.line.is_empty();
        if whole {
            found.line.write(&mut step, names, request, (before, &crowd.places()), time);
        }
        if !step.is_empty() {
            let replies = self.run(&step, false).await?;
            if let Some(Value::ServerError(error)) = replies.iter().find(|reply| matches!(reply, Value::ServerError(_))) {
                return Err(failure::refused(error));
            }
        }
        if !whole {
            busy.position = self.join(request, names, found.seen.now).await?;
        }
        if let Some(Obstacle { holder, left, passing }) = found.obstacle {
            busy.expires_in = left.map(Duration::from_millis);
            busy.holders = vec![holder];
            busy.passing = passing;
        }
        busy.notifies = false;
        self.passing = busy.passing;
        Ok(Attempt::Busy(busy))
    }

    /// The rest of the line, for who has read no more than that there is one.
    pub(super) async fn whole_line(&mut self, names: &Names) -> Result<Line> {
        let mut look = ::redis::pipe();
        read_turns(&mut look, names);
        read_queue(&mut look, names);
        match &*self.look(&look).await? {
            [turns, queue @ ..] => Line::read(turns, queue),
            [] => Err(failure::unreadable()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(of: &[(&str, &str)]) -> Vec<(String, String)> {
        of.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect()
    }

    #[test]
    fn all_who_wait_stand_in_one_line() {
        let reader = r#"{"h":"bb","m":"s","b":1000,"l":1500}"#;
        let fair = r#"{"h":"dd","m":"x","f":true,"b":1000,"l":1000}"#;
        let line = Line {
            turns: pairs(&[
                ("dd", &format!("1000900:{fair}")),
                ("c:cc", "1600"),
                ("bb", &format!("1000100:{reader}")),
                ("ee", "1000200:of a newer dlock"),
                ("c:zz", "1600"),
            ]),
            queue: pairs(&[("aa", "1000300"), ("cc", "1000400"), ("ff", "1000500")]),
            said: pairs(&[("cc", "1500:"), ("aa", "1700:")]),
        };
        let mut crowd = Crowd::default();
        line.fill(&mut crowd);
        let places = crowd.places();
        let told: Vec<_> = places.iter().map(|place| (&*place.hold, place.plain, place.called)).collect();
        assert_eq!(told, [("bb", false, None), ("aa", true, None), ("cc", true, Some(1600)), ("dd", false, None)]);
        assert_eq!((&*places[0].json, line.arrival("bb")), (reader, Some(1_000_100)));
        assert_eq!(line.waiters(16_200).len(), 3, "who has not asked for so long is gone");
        let mut clear = Pipeline::new();
        line.clear(&mut clear, &Names::new(&crate::lock::Namespace::default(), &crate::lock::Key::new("job").unwrap()));
        assert_eq!(clear.len(), 1);
    }
}
