//! What holds of every document that dlock writes. Debug builds check it after each read and before
//! each write, so each test and each campaign looks for broken rules.
//!
//! Only what dlock's own steps guarantee, also if a clock is set, a request is late, or another
//! program writes next to the document. So neither the order of times is checked (a clock may
//! be set back), nor a hold outside of the document (another library may take a lock that it takes
//! for free), nor the outbox (a store may read it later than the holders).

use std::collections::BTreeSet;

use super::{super::Mode, Document, Fence};

impl Document {
    /// Panics in a debug build if a rule is broken, naming the rule and the lock. `now` is the
    /// store's time in ms, `last` the last fence of the lock, if known. A store that reads the
    /// queue and the run record later than the holders is not `at_once`: these may not match.
    pub fn check(&self, lock: &str, now: u64, last: Option<Fence>, at_once: bool) {
        if cfg!(debug_assertions) {
            let broken = self.broken_rule(now, last).or_else(|| {
                let broken = || {
                    self.broken_queue_rule()
                        .or_else(|| self.broken_record(last))
                };
                at_once.then(broken).flatten()
            });
            assert!(
                broken.is_none(),
                "lock {lock}: {}",
                broken.unwrap_or_default()
            );
        }
    }

    /// Returns the first broken rule on holders.
    fn broken_rule(&self, now: u64, last: Option<Fence>) -> Option<String> {
        let (mut owners, mut fences, mut permits) =
            (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        let first = self.holders.first()?;
        for (at, holder) in self.holders.iter().enumerate() {
            let fence = holder.fence;
            let is_above = last.is_some_and(|last| fence > last.0);
            let root = holder.holds.get(&holder.root);
            let broken = if holder.holds.is_empty() {
                "has no hold".into()
            } else if !owners.insert(&holder.owner) {
                "has the owner of another holder".into()
            } else if !fences.insert(fence) {
                "has the fence of another holder".into()
            } else if is_above {
                format!("has a fence above the last one, {}", last?.0)
            } else if holder.mode == Mode::Exclusive && self.holders.len() > 1 {
                "has the lock exclusively, and is not alone".into()
            } else if holder.session.is_none()
                && root.is_some_and(|root| root.ends > now && root.ends < holder.since)
            {
                "ends before it began".into()
            } else {
                match (holder.mode, holder.permit) {
                    (Mode::Permits(most), Some(permit)) => {
                        if permit >= most {
                            format!("has permit {permit} of {most}")
                        } else if !permits.insert(permit) {
                            format!("has permit {permit}, which another holder has")
                        } else if usize::try_from(most).is_ok_and(|most| at >= most) {
                            // Holders are in the order of their grants.
                            format!("was granted one of {most} permits while {at} were held")
                        } else if first.permit.is_none() {
                            "has a permit next to a holder without one".into()
                        } else {
                            continue;
                        }
                    }
                    (Mode::Shared, None) if first.mode != Mode::Shared => {
                        "reads next to a holder that does not".into()
                    }
                    (Mode::Exclusive | Mode::Shared, None) => continue,
                    (Mode::Permits(_), None) => "has no number for its permit".into(),
                    (_, Some(permit)) => format!("has permit {permit}, and another mode"),
                }
            };
            return Some(format!("the holder with fence {fence} {broken}"));
        }
        None
    }

    /// Returns the first broken rule on waiters.
    fn broken_queue_rule(&self) -> Option<String> {
        let held: BTreeSet<_> = self
            .holders
            .iter()
            .flat_map(|one| one.holds.keys())
            .collect();
        let mut queued = BTreeSet::new();
        self.queue
            .all()
            .iter()
            .enumerate()
            .find_map(|(at, waiter)| {
                let broken = if !queued.insert(&waiter.hold) {
                    "is in the queue twice"
                } else if held.contains(&waiter.hold) {
                    "is a holder"
                } else if waiter.offered.is_some() && self.room(waiter.mode, None) == 0 {
                    // A grant ends all offers, and until then there is only more room.
                    "has an offer of a lock without room"
                } else {
                    return None;
                };
                Some(format!("the waiter {} from the front {broken}", at + 1))
            })
    }

    /// Returns the first broken rule on earlier runs and warnings.
    fn broken_record(&self, last: Option<Fence>) -> Option<String> {
        let (last, record) = (last?, &self.run_record);
        [
            ("cooldown", record.cooldown.as_ref().map(|run| run.fence)),
            ("last start", record.start.as_ref().map(|run| run.fence)),
            ("last warning", Some(Fence(self.warned.0))),
        ]
        .into_iter()
        .find(|(_, fence)| fence.is_some_and(|fence| fence > last))
        .map(|(what, _)| format!("the {what} has a fence above the last one, {}", last.0))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::{
        damage::{self, Dice},
        lock::{
            Break, Entry, Intent, Once, ReleaseInfo, Request, RunPolicy, Scope,
            document::{
                HoldEntry, RequestContext,
                tests::{fair, request, waiting},
            },
        },
    };

    const NOW: u64 = 1_800_000_000_000;

    fn holders(modes: &[Mode]) -> Document {
        let mut document = Document::default();
        for (mode, fence) in modes.iter().zip(1..) {
            document.grant(&request(*mode), Fence(fence), NOW);
        }
        document
    }

    fn queued(modes: &[Mode]) -> Document {
        let mut document = holders(&[Mode::Exclusive]);
        for mode in modes {
            document.ask(&waiting(*mode), NOW, None, || None);
        }
        document
    }

    /// Whether a rule with this text is broken once `spoil` has changed the document.
    #[track_caller]
    fn finds(text: &str, mut document: Document, spoil: impl FnOnce(&mut Document)) {
        document.check("job", NOW, Some(Fence(3)), true);
        spoil(&mut document);
        let panic = std::panic::catch_unwind(|| document.check("job", NOW, Some(Fence(3)), true));
        let said = panic.expect_err(text);
        let said = said.downcast_ref::<String>().unwrap();
        assert!(
            said.starts_with("lock job: ") && said.contains(text),
            "{said}"
        );
    }

    #[test]
    fn each_broken_rule_is_found() {
        let permits = || holders(&[Mode::Permits(3); 3]);
        finds("has no hold", permits(), |d| {
            d.holders[1].holds = BTreeMap::new();
        });
        finds("has the owner of another holder", permits(), |d| {
            d.holders[1].owner = d.holders[0].owner.clone();
        });
        finds("has the fence of another holder", permits(), |d| {
            d.holders[1].fence = 1;
        });
        finds("a fence above the last one, 3", permits(), |d| {
            d.holders[1].fence = 4;
        });
        finds("is not alone", holders(&[Mode::Shared; 2]), |d| {
            d.holders[0].mode = Mode::Exclusive;
        });
        finds("ends before it began", permits(), |d| {
            d.holders[1].since = NOW + 99_000;
        });
        finds("has permit 3 of 3", permits(), |d| {
            d.holders[1].permit = Some(3);
        });
        finds("has permit 0, which another holder has", permits(), |d| {
            d.holders[2].permit = Some(0);
        });
        finds("one of 2 permits while 2 were held", permits(), |d| {
            (d.holders[0].permit, d.holders[2].permit) = (Some(2), Some(0));
            d.holders[2].mode = Mode::Permits(2);
        });
        finds("next to a holder without one", permits(), |d| {
            (d.holders[0].mode, d.holders[0].permit) = (Mode::Shared, None);
        });
        finds("reads next to a holder that does not", permits(), |d| {
            (d.holders[2].mode, d.holders[2].permit) = (Mode::Shared, None);
        });
        finds("has no number for its permit", permits(), |d| {
            d.holders[1].permit = None;
        });
        finds(
            "has permit 0, and another mode",
            holders(&[Mode::Shared]),
            |d| {
                d.holders[0].permit = Some(0);
            },
        );

        let waiters = || queued(&[Mode::Exclusive, Mode::Shared]);
        finds(
            "the waiter 3 from the front is in the queue twice",
            waiters(),
            |d| {
                let again = d.queue().to_vec();
                d.queue = serde_json::from_value(serde_json::json!([again[0], again[1], again[0]]))
                    .unwrap();
            },
        );
        finds("is a holder", waiters(), |d| {
            let hold = d.queue()[1].hold.clone();
            d.holders[0]
                .holds
                .insert(hold, HoldEntry { ttl: 1, ends: NOW });
        });
        finds("has an offer of a lock without room", waiters(), |d| {
            let hold = d.queue()[1].hold.clone();
            d.offer(&hold, NOW);
        });
        finds("the last warning has a fence above", waiters(), |d| {
            d.set_warned(Fence(4), 1);
        });
        finds(
            "the last start has a fence above",
            Document::default(),
            |d| {
                d.run_record.begin(&once(), Fence(4), NOW);
                d.run_record.cooldown = None;
            },
        );
    }

    fn once() -> Request {
        let once = Once {
            window: std::time::Duration::from_secs(60),
            retry_failed: 1,
            retry_crashed: true,
        };
        Request {
            run_policy: Some(RunPolicy {
                once: Some(once),
                ..RunPolicy::forgetting("web1".into())
            }),
            ..request(Mode::Exclusive)
        }
    }

    /// A random step, as a store takes it, by one of `requests`.
    fn step(document: &mut Document, dice: &mut Dice, requests: &mut [Request], now: u64) -> bool {
        let at = dice.below(requests.len());
        let mark = Break {
            by: "ana".into(),
            why: None,
            seen: false,
        };
        let request = requests[at].clone();
        let fence = document.fences().nth(dice.below(4)).unwrap_or(Fence(0));
        document.expire(now);
        let mut granted = false;
        match dice.below(10) {
            0 => drop(document.release(&request.token, &ReleaseInfo::UNDO, now)),
            1 => drop(document.release(&request.token, &Scope::Hold.into(), now)),
            2 => drop(document.renew(&request.token, Intent::Extend(None), now)),
            3 => drop(document.leave(&request.token)),
            4 => drop(document.mark(fence, &mark)),
            5 => drop(document.evict(fence, &mark, now)),
            6 => drop(document.claim_warning(fence, 1)),
            7 => requests[at].token = request.token.nested(),
            _ => {
                let context = RequestContext {
                    now,
                    outside: None,
                    fence: Fence(now),
                };
                granted = document.acquire(&request, &context).is_ok_and(|attempt| {
                    matches!(attempt, crate::lock::Attempt::Granted(grant) if grant.fence.0 == now)
                });
            }
        }
        document.take_wake_ups(None);
        granted
    }

    #[test]
    fn random_steps_keep_every_rule() {
        damage::each(|dice| {
            let mut requests: Vec<Request> = [Mode::Exclusive, Mode::Shared, Mode::Permits(2)]
                .into_iter()
                .flat_map(|mode| [request(mode), waiting(mode), fair(mode)])
                .chain([once(), request(Mode::Permits(3))])
                .collect();
            let entry = Entry::Reenter;
            requests.push(Request {
                entry,
                ..requests[0].clone()
            });
            let (mut document, mut now, mut last) = (Document::default(), NOW, None);
            for _ in 0..60 {
                now += [1, 300, 1_500, 20_000][dice.below(4)];
                if step(&mut document, dice, &mut requests, now) {
                    last = Some(Fence(now));
                }
                document.check("job", now, last, true);
            }
        });
    }
}
