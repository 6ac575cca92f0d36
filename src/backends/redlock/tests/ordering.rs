//! A model of every interleaving of a few attempts on a few nodes: fences rise, and they don't if a
//! part of the algorithm is missing.
//!
//! **The model.** An attempt belongs to one client: ids are never reused, so a retry is another
//! attempt. Requests reach nodes in any order, at any time or never; a node that crashes and keeps
//! its data is one that misses some requests. The client hears any majority (or more) of the
//! answers to phase 1. With arbitrary clocks, a node may drop a holder at any moment; with honest
//! clocks, only once that holder no longer relies on its lease. Some clients may be readers: they
//! share a node, which keeps their committed fences until the last reader is gone. The model does
//! *not* cover lost counters.
//!
//! **Reductions.** Nodes are symmetric, and so are clients: states that differ by a permutation are
//! one. A dropped holder matters only to the node's next taker and to a late commit, so dropping is
//! part of taking. A refused commit and a lost one are the same. The model doesn't track which
//! commits are confirmed: those that count were applied, and publishing may wait for any time.

use std::collections::HashSet;

use super::super::{acquire::fence_of, nodes::majority};

const CLIENTS: usize = 3;

/// The parts of the algorithm to leave out.
#[derive(Clone, Copy, Default)]
#[allow(clippy::struct_excessive_bools)] // independent omissions
struct Without {
    second_phase: bool,
    owner_check: bool,
    counted_only: bool,
    distinct: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Clocks {
    /// A lease may end at any moment, because nodes' clocks jump and clients sleep.
    Any,
    /// A node's lease outlasts the time for which its holder relies on it.
    Honest,
}

/// The state of a client's requests at a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum ClientView {
    /// Phase 1 has not arrived.
    #[default]
    Ahead,
    /// Phase 1 took the node with this count.
    Taken(u8),
    /// The commit is on its way.
    Due,
    /// The commit was applied.
    Committed,
    /// No more requests will come.
    Finished,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct OrderingNode {
    owner: Option<u8>,
    /// Instead of an owner: the readers as bits, and in `fences` what was committed since they hold
    /// the node.
    readers: u8,
    fences: u32,
    counter: u8,
    views: [ClientView; CLIENTS],
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum OrderingClient {
    /// Not started.
    #[default]
    Idle,
    /// In phase 1, with the highest fence that was published before the start.
    Counting(u8),
    /// In phase 2, with its fence and the highest fence that was published before the start.
    Committing(u8, u8),
    Published(u8),
    Over,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct OrderingState {
    nodes: Vec<OrderingNode>,
    clients: [OrderingClient; CLIENTS],
    reads: [bool; CLIENTS],
    /// Each published fence, and whether a reader has it.
    published: Vec<(u8, bool)>,
}

impl OrderingState {
    /// Returns the representative of all equivalent states.
    fn canonical(&self) -> Self {
        const ORDERS: [[usize; CLIENTS]; 6] = [
            [0, 1, 2],
            [0, 2, 1],
            [1, 0, 2],
            [1, 2, 0],
            [2, 0, 1],
            [2, 1, 0],
        ];
        let renamed = ORDERS.into_iter().map(|order| {
            let name = |old: u8| {
                u8::try_from(order.iter().position(|o| *o == usize::from(old)).unwrap()).unwrap()
            };
            let readers = |old: u8| {
                (0..CLIENTS)
                    .filter(|new| old >> order[*new] & 1 == 1)
                    .map(|new| 1 << new)
                    .sum()
            };
            let node = |node: &OrderingNode| OrderingNode {
                owner: node.owner.map(name),
                readers: readers(node.readers),
                views: order.map(|old| node.views[old]),
                ..*node
            };
            let mut nodes: Vec<OrderingNode> = self.nodes.iter().map(node).collect();
            nodes.sort_unstable();
            let (clients, reads) = (
                order.map(|old| self.clients[old]),
                order.map(|old| self.reads[old]),
            );
            Self {
                nodes,
                clients,
                reads,
                published: self.published.clone(),
            }
        });
        renamed.min().unwrap()
    }

    fn end(mut self, client: usize) -> Self {
        self.clients[client] = OrderingClient::Over;
        for node in &mut self.nodes {
            node.views[client] = ClientView::Finished;
            if node.owner == Some(u8::try_from(client).unwrap()) {
                node.owner = None;
            }
            node.readers &= !(1 << client);
            if node.readers == 0 {
                node.fences = 0;
            }
        }
        self
    }

    fn last(&self) -> u8 {
        self.published
            .iter()
            .map(|(fence, _)| *fence)
            .max()
            .unwrap_or(0)
    }

    /// Publishes a fence, and returns an error if that breaks the order.
    fn publish(&mut self, i: usize, fence: u8, before: u8, clocks: Clocks) -> Result<(), String> {
        // Overlapping readers have no order.
        let excluded = self
            .published
            .iter()
            .filter(|(_, reads)| !(*reads && self.reads[i]))
            .map(|(fence, _)| *fence);
        let last = excluded.max().unwrap_or(0);
        // If leases may end at any moment, a holder can publish after its successor. But its fence
        // is never its successor's, and is above all fences published before its start.
        if self.published.iter().any(|(known, _)| *known == fence)
            || fence <= before
            || (clocks == Clocks::Honest && fence <= last)
        {
            return Err(format!(
                "{fence} is published after {:?}, {before} before it began",
                self.published
            ));
        }
        self.published.push((fence, self.reads[i]));
        self.published.sort_unstable();
        Ok(())
    }

    fn next(&self, clocks: Clocks, without: Without, found: &mut Vec<Self>) -> Result<(), String> {
        for i in 0..CLIENTS {
            match self.clients[i] {
                OrderingClient::Over => continue,
                OrderingClient::Idle => {}
                _ if clocks == Clocks::Any => {}
                _ => found.push(self.clone().end(i)),
            }
            self.decide(i, clocks, without, found)?;
            self.conclude(i, clocks, found)?;
            for n in 0..self.nodes.len() {
                // One of several equal nodes suffices.
                if !self.nodes[..n].contains(&self.nodes[n]) {
                    self.arrive(i, n, clocks, without, found);
                }
            }
        }
        Ok(())
    }

    /// The client has heard a majority or more of the nodes that it took.
    fn decide(
        &self,
        i: usize,
        clocks: Clocks,
        without: Without,
        found: &mut Vec<Self>,
    ) -> Result<(), String> {
        let OrderingClient::Counting(before) = self.clients[i] else {
            return Ok(());
        };
        for heard in 0..1_u32 << self.nodes.len() {
            let counts = |n: usize| match self.nodes[n].views[i] {
                ClientView::Taken(count) if heard & 1 << n != 0 => Some((n, u64::from(count))),
                _ => None,
            };
            let counted: Vec<_> = (0..self.nodes.len()).filter_map(counts).collect();
            if counted.len() != heard.count_ones() as usize
                || counted.len() < majority(self.nodes.len())
            {
                continue;
            }
            let fence = u8::try_from(fence_of(&counted).unwrap()).unwrap();
            let mut next = self.clone();
            next.clients[i] = OrderingClient::Committing(fence, before);
            for (n, node) in next.nodes.iter_mut().enumerate() {
                if let ClientView::Taken(_) = node.views[i] {
                    let due =
                        without.counted_only || counted.iter().any(|(counted, _)| *counted == n);
                    node.views[i] = if due {
                        ClientView::Due
                    } else {
                        ClientView::Finished
                    };
                }
            }
            if without.second_phase {
                next.publish(i, fence, before, clocks)?;
                next.clients[i] = OrderingClient::Published(fence);
            }
            found.push(next);
        }
        Ok(())
    }

    /// A majority has committed.
    fn conclude(&self, i: usize, clocks: Clocks, found: &mut Vec<Self>) -> Result<(), String> {
        let OrderingClient::Committing(fence, before) = self.clients[i] else {
            return Ok(());
        };
        if self
            .nodes
            .iter()
            .filter(|node| node.views[i] == ClientView::Committed)
            .count()
            >= majority(self.nodes.len())
        {
            let mut next = self.clone();
            next.publish(i, fence, before, clocks)?;
            next.clients[i] = OrderingClient::Published(fence);
            for node in &mut next.nodes {
                if node.views[i] == ClientView::Committed {
                    node.views[i] = ClientView::Finished;
                }
            }
            found.push(next);
        }
        Ok(())
    }

    /// The client's next request arrives at a node.
    fn arrive(&self, i: usize, n: usize, clocks: Clocks, without: Without, found: &mut Vec<Self>) {
        let me = u8::try_from(i).unwrap();
        let old = self.nodes[n];
        match (self.clients[i], old.views[i]) {
            (client, ClientView::Ahead) => {
                let is_free = clocks == Clocks::Any || (old.owner.is_none() && old.readers == 0);
                let alone = OrderingNode {
                    owner: Some(me),
                    readers: 0,
                    fences: 0,
                    ..old
                };
                let first = OrderingNode {
                    owner: None,
                    readers: 1 << i,
                    fences: 0,
                    ..old
                };
                let joined = OrderingNode {
                    readers: old.readers | 1 << i,
                    ..old
                };
                let may_join = self.reads[i] && old.owner.is_none() && old.readers != 0;
                let taken = [
                    (is_free, if self.reads[i] { first } else { alone }),
                    (may_join, joined),
                ];
                for (_, mut node) in taken.into_iter().filter(|(may, _)| *may) {
                    let mut next = self.clone();
                    node.counter += 1;
                    node.views[i] = match client {
                        OrderingClient::Idle | OrderingClient::Counting(_) => {
                            ClientView::Taken(node.counter)
                        }
                        // An answer after the decision doesn't count.
                        _ if without.counted_only => ClientView::Due,
                        _ => ClientView::Finished,
                    };
                    if client == OrderingClient::Idle {
                        next.clients[i] = OrderingClient::Counting(self.last());
                    }
                    next.nodes[n] = node;
                    found.push(next);
                }
            }
            (
                client @ (OrderingClient::Committing(fence, _) | OrderingClient::Published(fence)),
                ClientView::Due,
            ) => {
                let has = old.owner == Some(me) || old.readers >> i & 1 == 1 || without.owner_check;
                let known = self.reads[i] && old.fences >> fence & 1 == 1 && !without.distinct;
                if !has || known {
                    return;
                }
                let mut next = self.clone();
                let node = &mut next.nodes[n];
                node.counter = node.counter.max(fence);
                node.fences |= u32::from(self.reads[i]) << fence;
                node.views[i] = if matches!(client, OrderingClient::Published(_)) {
                    ClientView::Finished
                } else {
                    ClientView::Committed
                };
                found.push(next);
            }
            _ => {}
        }
    }
}

fn start(nodes: usize, readers: usize) -> OrderingState {
    let reads = std::array::from_fn(|i| i < readers);
    OrderingState {
        nodes: vec![OrderingNode::default(); nodes],
        clients: Default::default(),
        reads,
        published: Vec::new(),
    }
}

/// Returns the number of states, or the violation in one of them.
fn explore(
    nodes: usize,
    clients: usize,
    readers: usize,
    clocks: Clocks,
    without: Without,
) -> Result<usize, String> {
    let mut first = start(nodes, readers);
    first.clients[clients..].fill(OrderingClient::Over);
    let mut known = HashSet::from([first.clone()]);
    let mut open = vec![first];
    let mut found = Vec::new();
    while let Some(state) = open.pop() {
        state
            .next(clocks, without, &mut found)
            .map_err(|why| format!("{why}: {state:?}"))?;
        for next in found.drain(..) {
            let next = next.canonical();
            if known.insert(next.clone()) {
                open.push(next);
            }
        }
    }
    Ok(known.len())
}

/// Follows one random path, and returns how many fences it published.
fn wander(nodes: usize, readers: usize, clocks: Clocks, without: Without) -> Result<usize, String> {
    let mut state = start(nodes, readers);
    let mut found = Vec::new();
    loop {
        state
            .next(clocks, without, &mut found)
            .map_err(|why| format!("{why}: {state:?}"))?;
        if found.is_empty() {
            return Ok(state.published.len());
        }
        let at = usize::try_from(crate::lock::random() % found.len() as u64).unwrap();
        state = found.swap_remove(at);
        found.clear();
    }
}

const WHOLE: Without = Without {
    second_phase: false,
    owner_check: false,
    counted_only: false,
    distinct: false,
};

#[test]
fn fences_rise_on_three_nodes_whatever_the_clocks_do() {
    let states = explore(3, CLIENTS, 0, Clocks::Any, WHOLE).unwrap();
    assert!(states > 100_000, "{states}");
}

#[test]
fn fences_rise_on_five_nodes_with_honest_clocks() {
    let states = explore(5, CLIENTS, 0, Clocks::Honest, WHOLE).unwrap();
    assert!(states > 5_000, "{states}");
}

/// All interleavings of two attempts on five nodes, and random ones of three.
#[test]
fn fences_rise_on_five_nodes_whatever_the_clocks_do() {
    let states = explore(5, 2, 0, Clocks::Any, WHOLE).unwrap();
    assert!(states > 20_000, "{states}");
    let published: usize = (0..1500)
        .map(|_| wander(5, 0, Clocks::Any, WHOLE).unwrap())
        .sum();
    assert!(published > 100, "only {published} fences were published");
}

#[test]
fn without_any_one_of_its_parts_the_algorithm_repeats_a_fence() {
    let second_phase = Without {
        second_phase: true,
        ..WHOLE
    };
    let owner_check = Without {
        owner_check: true,
        ..WHOLE
    };
    let counted_only = Without {
        counted_only: true,
        ..WHOLE
    };
    for nodes in [3, 5] {
        assert!(
            explore(nodes, CLIENTS, 0, Clocks::Honest, second_phase).is_err(),
            "even with honest clocks"
        );
        assert!(explore(nodes, CLIENTS, 0, Clocks::Any, second_phase).is_err());
        assert!(explore(nodes, CLIENTS, 0, Clocks::Any, counted_only).is_err());
    }
    assert!(explore(3, CLIENTS, 0, Clocks::Any, owner_check).is_err());
}

/// All interleavings of three clients with honest clocks and of two with any clocks, one or two of
/// them readers; random ones of three.
#[test]
fn fences_rise_over_readers_and_writers() {
    for (readers, least) in [(1, 2_000), (2, 20_000)] {
        let states = explore(3, CLIENTS, readers, Clocks::Honest, WHOLE).unwrap();
        assert!(states > least, "{states}");
        explore(3, 2, readers, Clocks::Any, WHOLE).unwrap();
    }
    for (nodes, readers) in [(3, 1), (3, 2), (3, 3), (5, 1), (5, 2), (5, 3)] {
        let published: usize = (0..1000)
            .map(|_| wander(nodes, readers, Clocks::Any, WHOLE).unwrap())
            .sum();
        assert!(published > 100, "only {published} fences were published");
    }
}

#[test]
fn two_readers_that_ignore_fences_get_the_same_one() {
    let distinct = Without {
        distinct: true,
        ..WHOLE
    };
    for clocks in [Clocks::Honest, Clocks::Any] {
        assert!(explore(3, 2, 2, clocks, distinct).is_err());
    }
}
