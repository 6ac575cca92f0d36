//! A model of nodes that lose their data: all interleavings of two owners, three nodes and a clock
//! while a node restarts empty.
//!
//! **What it shows.** If such a node stays out for the longest lease, two holds never overlap, and
//! fences rise despite the lost counter. If it returns at once, two holds can overlap: a hold on a
//! bare majority is lost with one node. A hold that all nodes confirmed last survives the loss of
//! one node's data.
//!
//! **The model.** Time is a number of ticks, which all nodes and owners see at once. Requests reach
//! nodes in any order, at any time or never. Each owner asks once, and counts its lease from before
//! its request; nothing is released. Nodes are symmetric and kept sorted. A script is one step.
//! `ordering` models the effect of clock jumps on fences.

use stateright::{Checker, HasDiscoveries, Model, Property};

use super::super::{acquire::fence_of, nodes::majority};

const NODES: usize = 3;
const OWNERS: usize = 2;
/// In ticks.
const LEASE: u64 = 2;
/// The last tick.
const END: u64 = 4;
/// The floor of a counter per tick: higher than any count within a tick.
const FLOOR: u64 = 8;

/// The state of an owner's request at a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum OwnerView {
    #[default]
    Ahead,
    /// Phase 1 took the node with this count.
    Counted(u64),
    /// Phase 2 was confirmed.
    Committed,
    /// Later answers don't count.
    Finished,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct NodeEntry {
    owner: usize,
    count: u64,
    is_committed: bool,
    ends: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct ForgettingNode {
    entry: Option<NodeEntry>,
    counter: u64,
    /// The tick from which the node answers again.
    back_at: u64,
    views: [OwnerView; OWNERS],
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
    /// `on` is the number of nodes that confirmed the hold last.
    Holding {
        until: u64,
        extending: Option<u64>,
        on: usize,
    },
    Over,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct ForgettingState {
    now: u64,
    nodes: Vec<ForgettingNode>,
    owners: [Owner; OWNERS],
    /// In the order of the grants.
    fences: Vec<u64>,
    losses: usize,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum ForgettingStep {
    Tick,
    Begin(usize),
    Take(usize, usize),
    Decide(usize),
    Commit(usize, usize),
    Conclude(usize),
    Renew(usize),
    /// A renewal reaches these nodes, and their answers reach the owner.
    Extend(usize, u32),
    LoseData(usize),
}

/// The algorithm, with parts that can be left out.
#[derive(Clone, Copy)]
struct ForgettingModel {
    /// How many nodes lose their data.
    losing: usize,
    /// Whether such a node stays out for the longest lease.
    stays_out: bool,
    /// Whether a counter is never below the time.
    floor: bool,
}

impl ForgettingState {
    fn viewed(&self, owner: usize, view: OwnerView) -> usize {
        self.nodes
            .iter()
            .filter(|node| node.views[owner] == view)
            .count()
    }

    fn counted(&self, owner: usize) -> Vec<(usize, u64)> {
        let count = |(n, node): (usize, &ForgettingNode)| match node.views[owner] {
            OwnerView::Counted(count) => Some((n, count)),
            _ => None,
        };
        self.nodes.iter().enumerate().filter_map(count).collect()
    }

    /// Returns, for each hold that an owner relies on now, how many nodes granted it.
    fn holding(&self) -> Vec<usize> {
        let on = |owner: &Owner| {
            if let Owner::Holding { on, .. } = owner {
                Some(*on)
            } else {
                None
            }
        };
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
            // An answer that comes too late is ignored.
            if since + LEASE <= self.now {
                *owner = Owner::Over;
            }
        }
    }
}

impl ForgettingModel {
    /// The script of phase 1.
    fn take(self, node: &mut ForgettingNode, owner: usize, now: u64, counts: bool) -> bool {
        if node.entry.is_some() {
            return false;
        }
        node.counter += 1;
        if self.floor {
            node.counter = node.counter.max(now * FLOOR);
        }
        node.entry = Some(NodeEntry {
            owner,
            count: node.counter,
            is_committed: false,
            ends: now + LEASE,
        });
        node.views[owner] = if counts {
            OwnerView::Counted(node.counter)
        } else {
            OwnerView::Finished
        };
        true
    }

    /// The script of phase 2.
    fn commit(node: &mut ForgettingNode, owner: usize, fence: u64) -> bool {
        let OwnerView::Counted(count) = node.views[owner] else {
            return false;
        };
        let Some(entry) = node
            .entry
            .as_mut()
            .filter(|entry| (entry.owner, entry.count) == (owner, count))
        else {
            return false;
        };
        entry.is_committed = true;
        node.counter = node.counter.max(fence);
        node.views[owner] = OwnerView::Committed;
        true
    }

    /// The script of a renewal.
    fn extend(node: &mut ForgettingNode, owner: usize, now: u64) -> bool {
        let Some(entry) = node
            .entry
            .as_mut()
            .filter(|entry| entry.owner == owner && entry.is_committed)
        else {
            return false;
        };
        entry.ends = now + LEASE;
        true
    }
}

impl Model for ForgettingModel {
    type State = ForgettingState;
    type Action = ForgettingStep;

    fn init_states(&self) -> Vec<ForgettingState> {
        let nodes = vec![ForgettingNode::default(); NODES];
        vec![ForgettingState {
            now: 1,
            nodes,
            owners: [Owner::Idle; OWNERS],
            fences: Vec::new(),
            losses: 0,
        }]
    }

    fn actions(&self, state: &ForgettingState, actions: &mut Vec<ForgettingStep>) {
        if state.now < END {
            actions.push(ForgettingStep::Tick);
        }
        for owner in 0..OWNERS {
            if let Owner::Holding {
                extending: Some(_), ..
            } = state.owners[owner]
            {
                actions.extend((0..1 << NODES).map(|mask| ForgettingStep::Extend(owner, mask)));
            }
            actions.extend(
                [
                    ForgettingStep::Begin,
                    ForgettingStep::Decide,
                    ForgettingStep::Conclude,
                    ForgettingStep::Renew,
                ]
                .map(|of| of(owner)),
            );
        }
        for n in 0..NODES {
            // One of several equal nodes suffices.
            if state.nodes[..n].contains(&state.nodes[n]) {
                continue;
            }
            actions.push(ForgettingStep::LoseData(n));
            if state.nodes[n].back_at <= state.now {
                for owner in 0..OWNERS {
                    actions.extend(
                        [ForgettingStep::Take, ForgettingStep::Commit].map(|of| of(owner, n)),
                    );
                }
            }
        }
    }

    fn next_state(
        &self,
        last: &ForgettingState,
        action: ForgettingStep,
    ) -> Option<ForgettingState> {
        let mut next = last.clone();
        let (now, enough) = (last.now, majority(NODES));
        let happens = match action {
            ForgettingStep::Tick => {
                next.tick();
                true
            }
            // Owners are symmetric: they begin in order.
            ForgettingStep::Begin(i) => {
                let may = last.owners[i] == Owner::Idle
                    && last.owners[..i].iter().all(|owner| *owner != Owner::Idle);
                next.owners[i] = Owner::Counting { since: now };
                may
            }
            ForgettingStep::Take(i, n) => {
                let is_ahead =
                    last.owners[i] != Owner::Idle && last.nodes[n].views[i] == OwnerView::Ahead;
                is_ahead
                    && self.take(
                        &mut next.nodes[n],
                        i,
                        now,
                        matches!(last.owners[i], Owner::Counting { .. }),
                    )
            }
            ForgettingStep::Decide(i) => match last.owners[i] {
                Owner::Counting { since } if last.counted(i).len() >= enough => {
                    fence_of(&last.counted(i)).is_some_and(|fence| {
                        next.owners[i] = Owner::Committing { since, fence };
                        true
                    })
                }
                _ => false,
            },
            ForgettingStep::Commit(i, n) => {
                matches!(last.owners[i], Owner::Committing { fence, .. } if Self::commit(&mut next.nodes[n], i, fence))
            }
            ForgettingStep::Conclude(i) => match last.owners[i] {
                Owner::Committing { since, fence }
                    if last.viewed(i, OwnerView::Committed) >= enough =>
                {
                    next.owners[i] = Owner::Holding {
                        until: since + LEASE,
                        extending: None,
                        on: last.viewed(i, OwnerView::Committed),
                    };
                    next.fences.push(fence);
                    true
                }
                _ => false,
            },
            ForgettingStep::Renew(i) => match &mut next.owners[i] {
                Owner::Holding {
                    until,
                    extending: extending @ None,
                    ..
                } if *until < now + LEASE => {
                    *extending = Some(now);
                    true
                }
                _ => false,
            },
            ForgettingStep::Extend(i, mask) => match last.owners[i] {
                Owner::Holding {
                    extending: Some(since),
                    until,
                    ..
                } => {
                    let reached = next
                        .nodes
                        .iter_mut()
                        .zip(0..)
                        .filter(|(node, n)| mask >> n & 1 == 1 && node.back_at <= now);
                    let on = reached
                        .map(|(node, _)| usize::from(Self::extend(node, i, now)))
                        .sum();
                    let until = if on >= enough { since + LEASE } else { until };
                    next.owners[i] = Owner::Holding {
                        until,
                        extending: None,
                        on,
                    };
                    true
                }
                _ => false,
            },
            ForgettingStep::LoseData(n) => {
                let back_at = if self.stays_out { now + LEASE } else { now };
                next.nodes[n] = ForgettingNode {
                    back_at,
                    views: last.nodes[n].views,
                    ..ForgettingNode::default()
                };
                next.losses += 1;
                last.losses < self.losing
            }
        };
        for node in &mut next.nodes {
            // That the node was out makes no difference any more.
            if node.back_at <= next.now {
                node.back_at = 0;
            }
            for (view, owner) in node.views.iter_mut().zip(&next.owners) {
                if *owner == Owner::Over && *view != OwnerView::Ahead {
                    *view = OwnerView::Finished;
                }
            }
        }
        next.nodes.sort_unstable();
        (happens && next != *last).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("one hold at a time", |_, state: &ForgettingState| {
                state.holding().len() <= 1
            }),
            Property::always("fences rise", |_, state: &ForgettingState| {
                state.fences.is_sorted_by(|a, b| a < b)
            }),
            Property::always(
                "a hold that all nodes confirmed outlives one that forgets",
                |_, state: &ForgettingState| {
                    let holding = state.holding();
                    state.losses > 1 || holding.len() <= 1 || holding.iter().all(|on| *on < NODES)
                },
            ),
            Property::sometimes("both had it", |_, state: &ForgettingState| {
                state.fences.len() == 2
            }),
        ]
    }
}

const RULE: ForgettingModel = ForgettingModel {
    losing: 2,
    stays_out: true,
    floor: true,
};

impl ForgettingModel {
    /// Asserts that this variant violates the property.
    #[track_caller]
    fn fails(self, property: &'static str) {
        self.checker()
            .finish_when(HasDiscoveries::AllOf([property].into()))
            .spawn_bfs()
            .join()
            .assert_any_discovery(property);
    }
}

#[test]
fn model_of_nodes_that_lose_data_and_stay_out() {
    let checked = RULE.checker().spawn_bfs().join();
    checked.assert_properties();
    assert!(
        checked.unique_state_count() > 10_000,
        "{}",
        checked.unique_state_count()
    );
}

#[test]
fn model_of_a_node_that_loses_data_and_returns_at_once() {
    let checked = ForgettingModel {
        losing: 1,
        stays_out: false,
        ..RULE
    }
    .checker()
    .spawn_bfs()
    .join();
    checked.assert_any_discovery("one hold at a time");
    checked.assert_no_discovery("a hold that all nodes confirmed outlives one that forgets");
}

#[test]
fn model_of_nodes_that_keep_their_data() {
    ForgettingModel {
        losing: 0,
        stays_out: false,
        floor: false,
    }
    .checker()
    .spawn_bfs()
    .join()
    .assert_properties();
}

#[test]
fn model_of_counters_without_a_floor() {
    ForgettingModel {
        floor: false,
        ..RULE
    }
    .fails("fences rise");
}
