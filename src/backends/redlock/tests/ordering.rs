//! Every interleaving of a few attempts on a few nodes, to see that fences rise; and that they don't without what makes them.
//!
//! **The model.** An attempt is one client's: ids are never sent twice, so a client that tries again is another attempt. Its requests
//! reach nodes in any order, at any time or never; so a node that crashes and comes back with its data is one that some requests
//! don't reach. Of the answers to phase 1, any majority or more is heard. With clocks that do what they like, a node may forget a
//! holder at any moment; with honest ones, only once that holder counts on nothing any more. Some clients may be readers: those share a
//! node, whose committed fences it knows until the last of them is gone. What is *not* in it: counters that are lost.
//!
//! **What keeps it small.** Nodes are alike and so are clients: states that differ by a permutation are one. A holder that is forgotten
//! matters only to the node's next taker and to a commit that finds another there, so forgetting is part of the taking. A refused
//! commit, and one that didn't arrive, are one. Which commits are heard of is not told apart: those that count were applied, and
//! publishing waits for as long as it likes.

use std::collections::HashSet;

use super::super::{acquire::fence_of, nodes::majority};

const CLIENTS: usize = 3;

/// What is left out of the algorithm.
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
    /// A lease may end at any moment, as nodes' clocks jump and clients sleep.
    Any,
    /// A node's lease outlasts what its holder counts on.
    Honest,
}

/// Where a client's requests to a node are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum ClientView {
    /// Phase 1 has not arrived.
    #[default]
    Ahead,
    /// It took the node, and counted so much.
    Taken(u8),
    /// The commit is on its way.
    Due,
    /// It was applied.
    Committed,
    /// Nothing more will come.
    HistoryEntry,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct OrderingNode {
    owner: Option<u8>,
    /// Instead: the readers, as bits, and what was committed since they have it, likewise.
    readers: u8,
    fences: u32,
    counter: u8,
    views: [ClientView; CLIENTS],
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum OrderingClient {
    /// Not begun.
    #[default]
    Idle,
    /// In phase 1; the highest fence that was published before it began.
    Counting(u8),
    /// In phase 2, with its fence.
    Committing(u8, u8),
    Published(u8),
    Over,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct OrderingState {
    nodes: Vec<OrderingNode>,
    clients: [OrderingClient; CLIENTS],
    reads: [bool; CLIENTS],
    /// Fences, and whether readers have them.
    published: Vec<(u8, bool)>,
}

impl OrderingState {
    /// The one of all states alike that stands for them.
    fn canonical(&self) -> Self {
        const ORDERS: [[usize; CLIENTS]; 6] = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
        let renamed = ORDERS.into_iter().map(|order| {
            let name = |old: u8| u8::try_from(order.iter().position(|o| *o == usize::from(old)).unwrap()).unwrap();
            let readers = |old: u8| (0..CLIENTS).filter(|new| old >> order[*new] & 1 == 1).map(|new| 1 << new).sum();
            let node = |node: &OrderingNode| OrderingNode {
                owner: node.owner.map(name),
                readers: readers(node.readers),
                views: order.map(|old| node.views[old]),
                ..*node
            };
            let mut nodes: Vec<OrderingNode> = self.nodes.iter().map(node).collect();
            nodes.sort_unstable();
            let (clients, reads) = (order.map(|old| self.clients[old]), order.map(|old| self.reads[old]));
            Self { nodes, clients, reads, published: self.published.clone() }
        });
        renamed.min().unwrap()
    }

    fn end(mut self, client: usize) -> Self {
        self.clients[client] = OrderingClient::Over;
        for node in &mut self.nodes {
            node.views[client] = ClientView::HistoryEntry;
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
        self.published.iter().map(|(fence, _)| *fence).max().unwrap_or(0)
    }

    /// A fence is published: what is wrong with that, if anything.
    fn publish(&mut self, i: usize, fence: u8, before: u8, clocks: Clocks) -> Result<(), String> {
        // Readers that overlap have no order.
        let excluded = self.published.iter().filter(|(_, reads)| !(*reads && self.reads[i])).map(|(fence, _)| *fence);
        let last = excluded.max().unwrap_or(0);
        // Where leases end at any moment, a holder can publish after its successor; but never what is its successor's, and what
        // was published before it began is below.
        if self.published.iter().any(|(known, _)| *known == fence) || fence <= before || (clocks == Clocks::Honest && fence <= last) {
            return Err(format!("{fence} is published after {:?}, {before} before it began", self.published));
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
                // Of nodes alike one is enough.
                if !self.nodes[..n].contains(&self.nodes[n]) {
                    self.arrive(i, n, clocks, without, found);
                }
            }
        }
        Ok(())
    }

    /// The client has heard of any majority, or more, of the nodes that it took.
    fn decide(&self, i: usize, clocks: Clocks, without: Without, found: &mut Vec<Self>) -> Result<(), String> {
        let OrderingClient::Counting(before) = self.clients[i] else { return Ok(()) };
        for heard in 0..1_u32 << self.nodes.len() {
            let counts = |n: usize| match self.nodes[n].views[i] {
                ClientView::Taken(count) if heard & 1 << n != 0 => Some((n, u64::from(count))),
                _ => None,
            };
            let counted: Vec<_> = (0..self.nodes.len()).filter_map(counts).collect();
            if counted.len() != heard.count_ones() as usize || counted.len() < majority(self.nodes.len()) {
                continue;
            }
            let fence = u8::try_from(fence_of(&counted).unwrap()).unwrap();
            let mut next = self.clone();
            next.clients[i] = OrderingClient::Committing(fence, before);
            for (n, node) in next.nodes.iter_mut().enumerate() {
                if let ClientView::Taken(_) = node.views[i] {
                    let due = without.counted_only || counted.iter().any(|(counted, _)| *counted == n);
                    node.views[i] = if due { ClientView::Due } else { ClientView::HistoryEntry };
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
        let OrderingClient::Committing(fence, before) = self.clients[i] else { return Ok(()) };
        if self.nodes.iter().filter(|node| node.views[i] == ClientView::Committed).count() >= majority(self.nodes.len()) {
            let mut next = self.clone();
            next.publish(i, fence, before, clocks)?;
            next.clients[i] = OrderingClient::Published(fence);
            for node in &mut next.nodes {
                if node.views[i] == ClientView::Committed {
                    node.views[i] = ClientView::HistoryEntry;
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
                let alone = OrderingNode { owner: Some(me), readers: 0, fences: 0, ..old };
                let first = OrderingNode { owner: None, readers: 1 << i, fences: 0, ..old };
                let joined = OrderingNode { readers: old.readers | 1 << i, ..old };
                let may_join = self.reads[i] && old.owner.is_none() && old.readers != 0;
                let taken = [(is_free, if self.reads[i] { first } else { alone }), (may_join, joined)];
                for (_, mut node) in taken.into_iter().filter(|(may, _)| *may) {
                    let mut next = self.clone();
                    node.counter += 1;
                    node.views[i] = match client {
                        OrderingClient::Idle | OrderingClient::Counting(_) => ClientView::Taken(node.counter),
                        // An answer after the decision counts for nothing.
                        _ if without.counted_only => ClientView::Due,
                        _ => ClientView::HistoryEntry,
                    };
                    if client == OrderingClient::Idle {
                        next.clients[i] = OrderingClient::Counting(self.last());
                    }
                    next.nodes[n] = node;
                    found.push(next);
                }
            }
            (client @ (OrderingClient::Committing(fence, _) | OrderingClient::Published(fence)), ClientView::Due) => {
                let has = old.owner == Some(me) || old.readers >> i & 1 == 1 || without.owner_check;
                let known = self.reads[i] && old.fences >> fence & 1 == 1 && !without.distinct;
                if !has || known {
                    return;
                }
                let mut next = self.clone();
                let node = &mut next.nodes[n];
                node.counter = node.counter.max(fence);
                node.fences |= u32::from(self.reads[i]) << fence;
                node.views[i] =
                    if matches!(client, OrderingClient::Published(_)) { ClientView::HistoryEntry } else { ClientView::Committed };
                found.push(next);
            }
            _ => {}
        }
    }
}

fn start(nodes: usize, readers: usize) -> OrderingState {
    let reads = std::array::from_fn(|i| i < readers);
    OrderingState { nodes: vec![OrderingNode::default(); nodes], clients: Default::default(), reads, published: Vec::new() }
}

/// How many states there are, or what goes wrong in one of them.
fn explore(nodes: usize, clients: usize, readers: usize, clocks: Clocks, without: Without) -> Result<usize, String> {
    let mut first = start(nodes, readers);
    first.clients[clients..].fill(OrderingClient::Over);
    let mut known = HashSet::from([first.clone()]);
    let mut open = vec![first];
    let mut found = Vec::new();
    while let Some(state) = open.pop() {
        state.next(clocks, without, &mut found).map_err(|why| format!("{why}: {state:?}"))?;
        for next in found.drain(..) {
            let next = next.canonical();
            if known.insert(next.clone()) {
                open.push(next);
            }
        }
    }
    Ok(known.len())
}

/// One way through, by chance; how many fences it published.
fn wander(nodes: usize, readers: usize, clocks: Clocks, without: Without) -> Result<usize, String> {
    let mut state = start(nodes, readers);
    let mut found = Vec::new();
    loop {
        state.next(clocks, without, &mut found).map_err(|why| format!("{why}: {state:?}"))?;
        if found.is_empty() {
            return Ok(state.published.len());
        }
        let at = usize::try_from(crate::lock::random() % found.len() as u64).unwrap();
        state = found.swap_remove(at);
        found.clear();
    }
}

const WHOLE: Without = Without { second_phase: false, owner_check: false, counted_only: false, distinct: false };

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

/// All that two attempts can do on five nodes, and some of what three can.
#[test]
fn fences_rise_on_five_nodes_whatever_the_clocks_do() {
    let states = explore(5, 2, 0, Clocks::Any, WHOLE).unwrap();
    assert!(states > 20_000, "{states}");
    let published: usize = (0..1500).map(|_| wander(5, 0, Clocks::Any, WHOLE).unwrap()).sum();
    assert!(published > 100, "{published} were published, too few to tell");
}

#[test]
fn without_any_of_its_parts_the_algorithm_repeats_a_fence() {
    let second_phase = Without { second_phase: true, ..WHOLE };
    let owner_check = Without { owner_check: true, ..WHOLE };
    let counted_only = Without { counted_only: true, ..WHOLE };
    for nodes in [3, 5] {
        assert!(explore(nodes, CLIENTS, 0, Clocks::Honest, second_phase).is_err(), "even with honest clocks");
        assert!(explore(nodes, CLIENTS, 0, Clocks::Any, second_phase).is_err());
        assert!(explore(nodes, CLIENTS, 0, Clocks::Any, counted_only).is_err());
    }
    assert!(explore(3, CLIENTS, 0, Clocks::Any, owner_check).is_err());
}

/// All that three clients can do of which one or two read, with honest clocks; and that two can, and some of what three can, with any.
#[test]
fn fences_rise_over_readers_and_writers() {
    for (readers, least) in [(1, 2_000), (2, 20_000)] {
        let states = explore(3, CLIENTS, readers, Clocks::Honest, WHOLE).unwrap();
        assert!(states > least, "{states}");
        explore(3, 2, readers, Clocks::Any, WHOLE).unwrap();
    }
    for (nodes, readers) in [(3, 1), (3, 2), (3, 3), (5, 1), (5, 2), (5, 3)] {
        let published: usize = (0..1000).map(|_| wander(nodes, readers, Clocks::Any, WHOLE).unwrap()).sum();
        assert!(published > 100, "{published} were published, too few to tell");
    }
}

#[test]
fn two_readers_that_do_not_look_at_fences_have_the_same() {
    let distinct = Without { distinct: true, ..WHOLE };
    for clocks in [Clocks::Honest, Clocks::Any] {
        assert!(explore(3, 2, 2, clocks, distinct).is_err());
    }
}
