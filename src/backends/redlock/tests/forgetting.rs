//! Nodes that forget: every interleaving of two owners, three nodes and a clock while a node restarts without its data.
//!
//! **Results.** If such a node stays out for the longest lease, no two holds overlap, and fences rise over the loss of a counter. If it
//! comes back at once, two holds can overlap: a hold with a bare majority is lost with one node. A hold that all nodes confirmed
//! last outlives one node that forgets.
//!
//! **The model.** Time is whole ticks, which all nodes and owners see at the same moment. Requests reach nodes in any order, at any time or
//! never. Each owner asks once, and relies on its hold until its lease ends, counted from before the request. Nothing is released. Nodes
//! are interchangeable, so they are kept sorted. A script is one step. `ordering` covers fences under jumping clocks.

use stateright::{Checker, HasDiscoveries, Model, Property};

use super::super::{acquire::fence_of, nodes::majority};

const NODES: usize = 3;
const OWNERS: usize = 2;
/// In ticks.
const LEASE: u64 = 2;
/// The last tick.
const END: u64 = 4;
/// The counter's floor per tick: more than one tick can count.
const FLOOR: u64 = 8;

/// The state of an owner's requests to a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum View {
    #[default]
    Ahead,
    /// Phase 1 took the node.
    Counted(u64),
    /// Phase 2 was confirmed.
    Committed,
    /// The owner's attempt no longer counts on this node.
    HistoryEntry,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Entry {
    owner: usize,
    count: u64,
    is_committed: bool,
    ends: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Node {
    entry: Option<Entry>,
    counter: u64,
    /// The tick from which the node answers.
    back_at: u64,
    views: [View; OWNERS],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Owner {
    Idle,
    Counting {
        since: u64,
    },
    Committing {
        since: u64,
        fence: u64,
    },
    /// `on` is the number of nodes that confirmed it last.
    Holding {
        until: u64,
        extending: Option<u64>,
        on: usize,
    },
    Over,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    now: u64,
    nodes: Vec<Node>,
    owners: [Owner; OWNERS],
    /// In the order of their grants.
    fences: Vec<u64>,
    forgot: usize,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Action {
    Tick,
    Begin(usize),
    Take(usize, usize),
    Decide(usize),
    Commit(usize, usize),
    Conclude(usize),
    Renew(usize),
    /// A renewal reaches these nodes, and their answers the owner.
    Extend(usize, u32),
    Forget(usize),
}

/// The model's rules.
#[derive(Clone, Copy)]
struct Redlock {
    /// The number of times that a node forgets.
    forgetful: usize,
    /// A node that forgot stays out for the longest lease.
    stays_out: bool,
    /// A counter is never below the time.
    floor: bool,
}

impl State {
    fn viewed(&self, owner: usize, view: View) -> usize {
        self.nodes.iter().filter(|node| node.views[owner] == view).count()
    }

    fn counted(&self, owner: usize) -> Vec<(usize, u64)> {
        let count = |(n, node): (usize, &Node)| match node.views[owner] {
            View::Counted(count) => Some((n, count)),
            _ => None,
        };
        self.nodes.iter().enumerate().filter_map(count).collect()
    }

    /// Returns, for each current hold, the number of nodes that confirmed it.
    fn holding(&self) -> Vec<usize> {
        let on = |owner: &Owner| if let Owner::Holding { on, .. } = owner { Some(*on) } else { None };
        self.owners.iter().filter_map(on).collect()
    }

    fn tick(&mut self) {
        self.now += 1;
        for node in &mut self.nodes {
            node.entry = node.entry.filter(|entry| entry.ends > self.now);
        }
        for owner in &mut self.owners {
            let (Owner::Counting { since } | Owner::Committing { since, .. }) = *owner else {
                if matches!(*owner, Owner::Holding { until, .. } if until <= self.now) {
                    *owner = Owner::Over;
                }
                continue;
            };
            // An answer that comes too late is refused.
            if since + LEASE <= self.now {
                *owner = Owner::Over;
            }
        }
    }
}

impl Redlock {
    /// The script of phase 1.
    fn take(self, node: &mut Node, owner: usize, now: u64, counts: bool) -> bool {
        if node.entry.is_some() {
            return false;
        }
        node.counter += 1;
        if self.floor {
            node.counter = node.counter.max(now * FLOOR);
        }
        node.entry = Some(Entry { owner, count: node.counter, is_committed: false, ends: now + LEASE });
        node.views[owner] = if counts { View::Counted(node.counter) } else { View::HistoryEntry };
        true
    }

    /// The script of phase 2.
    fn commit(node: &mut Node, owner: usize, fence: u64) -> bool {
        let View::Counted(count) = node.views[owner] else { return false };
        let Some(entry) = node.entry.as_mut().filter(|entry| (entry.owner, entry.count) == (owner, count)) else { return false };
        entry.is_committed = true;
        node.counter = node.counter.max(fence);
        node.views[owner] = View::Committed;
        true
    }

    /// The script of a renewal.
    fn extend(node: &mut Node, owner: usize, now: u64) -> bool {
        let Some(entry) = node.entry.as_mut().filter(|entry| entry.owner == owner && entry.is_committed) else { return false };
        entry.ends = now + LEASE;
        true
    }
}

impl Model for Redlock {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let nodes = vec![Node::default(); NODES];
        vec![State { now: 1, nodes, owners: [Owner::Idle; OWNERS], fences: Vec::new(), forgot: 0 }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.now < END {
            actions.push(Action::Tick);
        }
        for owner in 0..OWNERS {
            if let Owner::Holding { extending: Some(_), .. } = state.owners[owner] {
                actions.extend((0..1 << NODES).map(|mask| Action::Extend(owner, mask)));
            }
            actions.extend([Action::Begin, Action::Decide, Action::Conclude, Action::Renew].map(|of| of(owner)));
        }
        for n in 0..NODES {
            // One of several identical nodes is enough.
            if state.nodes[..n].contains(&state.nodes[n]) {
                continue;
            }
            actions.push(Action::Forget(n));
            if state.nodes[n].back_at <= state.now {
                for owner in 0..OWNERS {
                    actions.extend([Action::Take, Action::Commit].map(|of| of(owner, n)));
                }
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut next = last.clone();
        let (now, enough) = (last.now, majority(NODES));
        let happens = match action {
            Action::Tick => {
                next.tick();
                true
            }
            // Owners are interchangeable, so they begin in order.
            Action::Begin(i) => {
                let may = last.owners[i] == Owner::Idle && last.owners[..i].iter().all(|owner| *owner != Owner::Idle);
                next.owners[i] = Owner::Counting { since: now };
                may
            }
            Action::Take(i, n) => {
                let is_ahead = last.owners[i] != Owner::Idle && last.nodes[n].views[i] == View::Ahead;
                is_ahead && self.take(&mut next.nodes[n], i, now, matches!(last.owners[i], Owner::Counting { .. }))
            }
            Action::Decide(i) => match last.owners[i] {
                Owner::Counting { since } if last.counted(i).len() >= enough => fence_of(&last.counted(i)).is_some_and(|fence| {
                    next.owners[i] = Owner::Committing { since, fence };
                    true
                }),
                _ => false,
            },
            Action::Commit(i, n) => {
                matches!(last.owners[i], Owner::Committing { fence, .. } if Self::commit(&mut next.nodes[n], i, fence))
            }
            Action::Conclude(i) => match last.owners[i] {
                Owner::Committing { since, fence } if last.viewed(i, View::Committed) >= enough => {
                    next.owners[i] = Owner::Holding { until: since + LEASE, extending: None, on: last.viewed(i, View::Committed) };
                    next.fences.push(fence);
                    true
                }
                _ => false,
            },
            Action::Renew(i) => match &mut next.owners[i] {
                Owner::Holding { until, extending: extending @ None, .. } if *until < now + LEASE => {
                    *extending = Some(now);
                    true
                }
                _ => false,
            },
            Action::Extend(i, mask) => match last.owners[i] {
                Owner::Holding { extending: Some(since), until, .. } => {
                    let reached = next.nodes.iter_mut().zip(0..).filter(|(node, n)| mask >> n & 1 == 1 && node.back_at <= now);
                    let on = reached.map(|(node, _)| usize::from(Self::extend(node, i, now))).sum();
                    let until = if on >= enough { since + LEASE } else { until };
                    next.owners[i] = Owner::Holding { until, extending: None, on };
                    true
                }
                _ => false,
            },
            Action::Forget(n) => {
                let back_at = if self.stays_out { now + LEASE } else { now };
                next.nodes[n] = Node { back_at, views: last.nodes[n].views, ..Node::default() };
                next.forgot += 1;
                last.forgot < self.forgetful
            }
        };
        for node in &mut next.nodes {
            // A node that is back equals one that was never out.
            if node.back_at <= next.now {
                node.back_at = 0;
            }
            for (view, owner) in node.views.iter_mut().zip(&next.owners) {
                if *owner == Owner::Over && *view != View::Ahead {
                    *view = View::HistoryEntry;
                }
            }
        }
        next.nodes.sort_unstable();
        (happens && next != *last).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("one hold at a time", |_, state: &State| state.holding().len() <= 1),
            Property::always("fences rise", |_, state: &State| state.fences.is_sorted_by(|a, b| a < b)),
            Property::always("a hold that all nodes confirmed outlives one that forgets", |_, state: &State| {
                let holding = state.holding();
                state.forgot > 1 || holding.len() <= 1 || holding.iter().all(|on| *on < NODES)
            }),
            Property::sometimes("both had it", |_, state: &State| state.fences.len() == 2),
        ]
    }
}

const RULE: Redlock = Redlock { forgetful: 2, stays_out: true, floor: true };

impl Redlock {
    /// Asserts that the model violates the property.
    #[track_caller]
    fn fails(self, property: &'static str) {
        self.checker().finish_when(HasDiscoveries::AllOf([property].into())).spawn_bfs().join().assert_any_discovery(property);
    }
}

#[test]
fn model_of_nodes_that_forget_and_stay_out() {
    let checked = RULE.checker().spawn_bfs().join();
    checked.assert_properties();
    assert!(checked.unique_state_count() > 10_000, "{}", checked.unique_state_count());
}

#[test]
fn model_of_a_node_that_forgets_and_comes_back_at_once() {
    let checked = Redlock { forgetful: 1, stays_out: false, ..RULE }.checker().spawn_bfs().join();
    checked.assert_any_discovery("one hold at a time");
    checked.assert_no_discovery("a hold that all nodes confirmed outlives one that forgets");
}

#[test]
fn model_of_nodes_that_keep_their_data() {
    Redlock { forgetful: 0, stays_out: false, floor: false }.checker().spawn_bfs().join().assert_properties();
}

#[test]
fn model_of_counters_without_a_floor() {
    Redlock { floor: false, ..RULE }.fails("fences rise");
}
