//! Every order of the steps of a few contenders of the queue, with the real rules: dead waiters,
//! slow waiters that are taken for dead, lost watches.
//!
//! **What it shows.** No two incompatible holds are granted. When no more steps are possible, each
//! contender that is alive has had the lock: no waiter is stuck behind contenders that are gone.
//!
//! **The model.** The store keeps the entries in order of arrival, and does each step of a
//! contender at once. A contender looks. Then it either asks for the lock by that look, or watches
//! the entry from [`Contenders::awaited`]. The entry of a dead contender stays until its lease
//! ends, at any time, or until the queue monitor removes it if it waits. The graph of states has no
//! cycle, so "eventually" is checked in each state without a next one; the checker's own
//! `eventually` does not follow paths that join.

mod tests;

use stateright::{Checker, HasDiscoveries, Model, Property};

use super::{Awaited, Contender, Contenders, GrantEvidence};
use crate::lock::Mode;

/// How a watch begins.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WatchStart {
    /// Together with the look: no later change is missed (etcd).
    AtTheLook,
    /// After the look; then the waiter compares whether the watched entry has changed (ZooKeeper).
    AndCompare,
    /// After the look, without a comparison.
    Later,
}

/// What keeps the rules safe.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Precaution {
    /// A waiter whose watch may be lost looks again by itself.
    LookAgain,
    /// The queue monitor removes a waiter only if its record has not changed since it was judged.
    CompareRecord,
    /// A grant of a permit compares that no other permit was granted since the look.
    ComparePermits,
    /// A writer behind a writer is granted the lock without another look only if the other one held
    /// and released it.
    CompareRelease,
}

/// A store's queue.
#[derive(Clone, Copy)]
struct QueueModel {
    watching: WatchStart,
    left_out: Option<Precaution>,
}

const RULE: QueueModel = QueueModel {
    watching: WatchStart::AtTheLook,
    left_out: None,
};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct ModelEntry {
    client: usize,
    /// Its number in the order of arrival.
    created: u8,
    is_granted: bool,
    permit: Option<u32>,
}

/// The result of a look: an entry, whether it was granted, whether both it and the waiter are
/// writers, and how often permits were taken and released.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct ModelLook {
    contender: Option<(u8, bool)>,
    writers: bool,
    permits: bool,
    taken: u8,
    returned: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum ModelClient {
    Out,
    /// The contender lost its position.
    Anew,
    /// The contender's next step is a look.
    Looks(u8),
    /// The contender asks for the lock, by the permits that it saw.
    Asks(u8, u8),
    /// The contender's next step is to watch this.
    Chose(u8, ModelLook),
    Watches(u8, ModelLook),
    /// The contender watches this, but its watch is lost.
    Deaf(u8),
    Holds(u8),
    Dead(u8),
    Done,
}

const fn permits(most: u32) -> Mode {
    Mode::Permits(most)
}

const CLIENTS: usize = 3;

/// The requests of the contenders.
const SCOPES: [[Mode; CLIENTS]; 7] = [
    [Mode::Exclusive; CLIENTS],
    [Mode::Exclusive, Mode::Exclusive, Mode::Shared],
    [Mode::Exclusive, Mode::Shared, Mode::Shared],
    [permits(1); CLIENTS],
    [permits(2); CLIENTS],
    [permits(1), permits(2), permits(2)],
    [Mode::Exclusive, permits(1), permits(2)],
];

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct QueueModelState {
    /// An index of [`SCOPES`].
    scope: usize,
    entries: Vec<ModelEntry>,
    clients: Vec<ModelClient>,
    arrived: u8,
    taken: u8,
    returned: u8,
    /// The entry of the last hold that was released.
    released: Option<u8>,
    /// A waiter that the queue monitor takes for gone.
    judged: Option<u8>,
    deaths: u8,
    losses: u8,
    mistakes: u8,
    /// A permit was granted although all were held.
    is_one_too_many: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum QueueStep {
    Join(usize),
    Look(usize),
    Ask(usize),
    Watch(usize),
    Lose(usize),
    LookAgain(usize),
    Leave(usize),
    Die(usize),
    Expire(usize),
    /// The queue monitor takes a waiter for gone: a dead one, or a slow one.
    Judge(usize),
    Remove,
}

impl QueueModelState {
    fn mode(&self, client: usize) -> Mode {
        SCOPES[self.scope][client]
    }

    fn contenders(&self) -> Contenders {
        let state = |entry: &ModelEntry| {
            if entry.is_granted {
                GrantEvidence::Granted
            } else {
                GrantEvidence::Waits
            }
        };
        let all = self
            .entries
            .iter()
            .map(|entry| Contender {
                mode: self.mode(entry.client),
                state: state(entry),
            })
            .collect();
        Contenders::new(
            all,
            self.entries
                .iter()
                .filter_map(|entry| entry.permit)
                .collect(),
        )
    }

    fn find(&self, created: u8) -> Option<usize> {
        self.entries
            .iter()
            .position(|entry| entry.created == created)
    }

    /// What a waiter at this place waits for, as it is now.
    fn awaited(&self, contenders: &Contenders, at: usize) -> ModelLook {
        let Awaited { contender, permits } =
            contenders.awaited(self.mode(self.entries[at].client), at);
        let modes = [Some(at), contender]
            .map(|entry| entry.map(|entry| self.mode(self.entries[entry].client)));
        let contender =
            contender.map(|other| (self.entries[other].created, self.entries[other].is_granted));
        ModelLook {
            contender,
            writers: modes == [Some(Mode::Exclusive); 2],
            permits,
            taken: self.taken,
            returned: self.returned,
        }
    }

    /// Whether the watched state has changed so that the watcher is notified.
    fn has_changed(&self, mode: Mode, seen: ModelLook) -> bool {
        let of_permits = matches!(mode, Mode::Permits(_));
        let contender = seen.contender.is_some_and(|(created, was_granted)| {
            self.find(created)
                .is_none_or(|at| of_permits && self.entries[at].is_granted != was_granted)
        });
        contender || seen.permits && self.returned != seen.returned
    }

    fn remove(&mut self, created: u8) {
        if let Some(at) = self.find(created) {
            self.returned += u8::from(self.entries.remove(at).permit.is_some());
        }
    }

    /// Whose hold may have something running: a dead one's until its lease ends.
    fn holding(&self) -> Vec<Mode> {
        let holds = |client: &usize| match self.clients[*client] {
            ModelClient::Holds(_) => true,
            ModelClient::Dead(created) => self
                .find(created)
                .is_some_and(|at| self.entries[at].is_granted),
            _ => false,
        };
        (0..self.clients.len())
            .filter(holds)
            .map(|client| self.mode(client))
            .collect()
    }

    fn go_together(&self) -> bool {
        let holding = self.holding();
        let permits = |mode: &Mode| matches!(mode, Mode::Permits(_)) && !self.is_one_too_many;
        holding.len() <= 1
            || holding.iter().all(|mode| *mode == Mode::Shared)
            || holding.iter().all(permits)
    }
}

impl QueueModel {
    const fn without(self, precaution: Precaution) -> Self {
        Self {
            left_out: Some(precaution),
            ..self
        }
    }

    fn has(self, precaution: Precaution) -> bool {
        self.left_out != Some(precaution)
    }

    /// Continues after a change of the watched state.
    fn wake(self, state: &mut QueueModelState, i: usize, created: u8, seen: ModelLook) {
        let is_released = |(other, _): (u8, bool)| {
            state.released == Some(other) || !self.has(Precaution::CompareRelease)
        };
        if state.find(created).is_some() && seen.writers && seen.contender.is_some_and(is_released)
        {
            self.ask(state, i, created, seen.taken);
        } else {
            self.look(state, i, created);
        }
    }

    fn look(self, state: &mut QueueModelState, i: usize, created: u8) {
        let Some(at) = state.find(created) else {
            // The contender's position is lost: it joins anew.
            state.clients[i] = ModelClient::Anew;
            return;
        };
        let contenders = state.contenders();
        state.clients[i] = if contenders.may_hold(state.mode(i), at) {
            ModelClient::Asks(created, state.taken)
        } else {
            let seen = state.awaited(&contenders, at);
            if self.watching == WatchStart::AtTheLook {
                ModelClient::Watches(created, seen)
            } else {
                ModelClient::Chose(created, seen)
            }
        };
    }

    fn ask(self, state: &mut QueueModelState, i: usize, created: u8, taken: u8) {
        let Some(at) = state.find(created) else {
            state.clients[i] = ModelClient::Looks(created);
            return;
        };
        if let Mode::Permits(_) = state.mode(i) {
            let number = state.contenders().free_number();
            if self.has(Precaution::ComparePermits) && state.taken != taken {
                state.clients[i] = ModelClient::Looks(created);
                return;
            }
            state.entries[at].permit = Some(number);
            state.taken += 1;
        }
        state.entries[at].is_granted = true;
        state.clients[i] = ModelClient::Holds(created);
        // The number of permits of the one that is granted rules.
        if let Mode::Permits(most) = state.mode(i) {
            state.is_one_too_many |= state.holding().len() > most as usize;
        }
    }

    fn apply(self, last: &QueueModelState, next: &mut QueueModelState, action: QueueStep) -> bool {
        match action {
            QueueStep::Join(i) => {
                let created = last.arrived;
                next.entries.push(ModelEntry {
                    client: i,
                    created,
                    is_granted: false,
                    permit: None,
                });
                next.arrived += 1;
                next.clients[i] = ModelClient::Looks(created);
                // Contenders with the same request are alike: they come one after the other.
                let alike = (0..i).any(|other| {
                    last.clients[other] == ModelClient::Out && last.mode(other) == last.mode(i)
                });
                last.clients[i] == ModelClient::Anew
                    || last.clients[i] == ModelClient::Out && !alike
            }
            QueueStep::Look(i) => match last.clients[i] {
                // A contender whose own entry is gone is notified too.
                ModelClient::Looks(created) => {
                    self.look(next, i, created);
                    true
                }
                ModelClient::Watches(created, seen)
                    if last.find(created).is_none() || last.has_changed(last.mode(i), seen) =>
                {
                    self.wake(next, i, created, seen);
                    true
                }
                _ => false,
            },
            QueueStep::Ask(i) => match last.clients[i] {
                ModelClient::Asks(created, taken) => {
                    self.ask(next, i, created, taken);
                    true
                }
                _ => false,
            },
            QueueStep::Watch(i) => match last.clients[i] {
                ModelClient::Chose(created, seen) => {
                    let compared = self.watching == WatchStart::AndCompare
                        && last.has_changed(last.mode(i), seen);
                    next.clients[i] = match last.find(created) {
                        Some(_) if compared => ModelClient::Looks(created),
                        Some(_) if self.watching == WatchStart::Later => {
                            ModelClient::Watches(created, now_of(last, seen))
                        }
                        _ => ModelClient::Watches(created, seen),
                    };
                    true
                }
                _ => false,
            },
            QueueStep::Lose(i) => match last.clients[i] {
                ModelClient::Watches(created, _) if last.losses > 0 => {
                    (next.clients[i], next.losses) = (ModelClient::Deaf(created), last.losses - 1);
                    true
                }
                _ => false,
            },
            QueueStep::LookAgain(i) => match last.clients[i] {
                ModelClient::Deaf(created) if self.has(Precaution::LookAgain) => {
                    next.clients[i] = ModelClient::Looks(created);
                    true
                }
                _ => false,
            },
            QueueStep::Leave(i) => match last.clients[i] {
                ModelClient::Holds(created) => {
                    next.remove(created);
                    next.released = Some(created);
                    next.clients[i] = ModelClient::Done;
                    true
                }
                _ => false,
            },
            QueueStep::Die(i) => match last.clients[i] {
                ModelClient::Looks(own)
                | ModelClient::Asks(own, _)
                | ModelClient::Watches(own, _)
                | ModelClient::Deaf(own)
                | ModelClient::Holds(own)
                    if last.deaths > 0 =>
                {
                    (next.clients[i], next.deaths) = (ModelClient::Dead(own), last.deaths - 1);
                    true
                }
                _ => false,
            },
            QueueStep::Expire(i) => match last.clients[i] {
                ModelClient::Dead(created) if last.find(created).is_some() => {
                    next.remove(created);
                    true
                }
                _ => false,
            },
            QueueStep::Judge(i) => {
                let Some(at) = last.entries.iter().position(|entry| entry.client == i) else {
                    return false;
                };
                let is_slow = !matches!(last.clients[i], ModelClient::Dead(_));
                if last.judged.is_some()
                    || !last.contenders().waits(at)
                    || is_slow && last.mistakes == 0
                {
                    return false;
                }
                next.judged = Some(last.entries[at].created);
                next.mistakes -= u8::from(is_slow);
                true
            }
            QueueStep::Remove => {
                let Some(created) = next.judged.take() else {
                    return false;
                };
                if !self.has(Precaution::CompareRecord)
                    || last
                        .find(created)
                        .is_some_and(|at| !last.entries[at].is_granted)
                {
                    next.remove(created);
                }
                true
            }
        }
    }
}

/// The same to be watched from now on, whatever became of it meanwhile.
fn now_of(state: &QueueModelState, seen: ModelLook) -> ModelLook {
    let contender = seen.contender.map(|(created, was)| {
        (
            created,
            state
                .find(created)
                .map_or(was, |at| state.entries[at].is_granted),
        )
    });
    let contender = contender.filter(|(created, _)| state.find(*created).is_some());
    ModelLook {
        contender,
        taken: state.taken,
        returned: state.returned,
        ..seen
    }
}

impl Model for QueueModel {
    type State = QueueModelState;
    type Action = QueueStep;

    fn init_states(&self) -> Vec<QueueModelState> {
        let of = |scope| QueueModelState {
            scope,
            entries: Vec::new(),
            clients: vec![ModelClient::Out; CLIENTS],
            arrived: 0,
            taken: 0,
            returned: 0,
            released: None,
            judged: None,
            deaths: 1,
            losses: 1,
            mistakes: 1,
            is_one_too_many: false,
        };
        (0..SCOPES.len()).map(of).collect()
    }

    fn actions(&self, state: &QueueModelState, actions: &mut Vec<QueueStep>) {
        use QueueStep::{Ask, Die, Expire, Join, Judge, Leave, Look, LookAgain, Lose, Watch};
        for client in 0..state.clients.len() {
            actions.extend(
                [
                    Join, Look, Ask, Watch, Lose, LookAgain, Leave, Die, Expire, Judge,
                ]
                .map(|of| of(client)),
            );
        }
        actions.push(QueueStep::Remove);
    }

    fn next_state(&self, last: &QueueModelState, action: QueueStep) -> Option<QueueModelState> {
        let mut next = last.clone();
        self.apply(last, &mut next, action).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("holds go together", |_, state: &QueueModelState| {
                state.go_together()
            }),
            Property::always(
                "a grant is a hold by the rules",
                |_, state: &QueueModelState| {
                    let contenders = state.contenders();
                    (0..state.entries.len())
                        .all(|at| !state.entries[at].is_granted || contenders.holds(at))
                },
            ),
            Property::always("none is stuck", |queue, state: &QueueModelState| {
                let is_over = |client: &ModelClient| {
                    matches!(client, ModelClient::Done | ModelClient::Dead(_))
                };
                state.clients.iter().all(is_over) || !queue.next_states(state).is_empty()
            }),
            Property::sometimes(
                "one died as holder and one was removed by mistake",
                |_, state: &QueueModelState| {
                    state.deaths == 0
                        && state.mistakes == 0
                        && state
                            .clients
                            .iter()
                            .filter(|client| **client == ModelClient::Done)
                            .count()
                            == 2
                },
            ),
        ]
    }
}
