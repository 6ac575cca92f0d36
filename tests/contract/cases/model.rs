//! Random operations of three clients on two keys, compared with the in-memory store as the
//! reference.

use std::{collections::HashMap, env, fmt::Write as _};

use dlock::{
    backends::memory::{Memory, MemoryStore},
    lock::{
        Attempt, Entry, Fence, Namespace, Release, Renewal, Request, Scope, StoreSession, Token,
    },
};

use super::{Case, cases};
use crate::{
    lab::{Client, LONG, Lab, key, nested, request, ttl, waiting},
    targets::Kind,
};

pub fn all() -> Vec<Case> {
    cases![|kind| !kind.clock_is_ours() => random_operations_match_the_reference]
}

const ROUNDS: u64 = 6;
const STEPS: usize = 120;

/// Random numbers that are reproducible from a seed (splitmix64).
pub(super) struct Dice(pub(super) u64);

impl Dice {
    pub(super) fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((z ^ (z >> 31)) % sides as u64).expect("small")
    }
}

/// Numbers fences in order of appearance, since each store has its own fences.
#[derive(Default)]
pub(super) struct Fences(HashMap<(String, Fence), usize>);

impl Fences {
    pub(super) fn index(&mut self, key: &str, fence: Fence) -> usize {
        let next = self.0.keys().filter(|(of, _)| of == key).count();
        *self.0.entry((key.to_owned(), fence)).or_insert(next)
    }
}

/// One of the two stores, and its clients.
struct Side {
    clients: Vec<Client>,
    fences: Fences,
    /// The sessions of detached holds, by hold.
    sessions: HashMap<String, StoreSession>,
}

#[derive(Clone, Debug)]
enum Operation {
    Acquire(Request),
    Renew(Request, Option<u32>),
    Release(Request, Scope),
    Leave(Request),
    Inspect(&'static str),
    List,
}

const KEYS: [&str; 2] = ["job", "a{b}/%"];

impl Side {
    fn new(clients: Vec<Client>) -> Self {
        Self {
            clients,
            fences: Fences::default(),
            sessions: HashMap::new(),
        }
    }

    /// Runs an operation. Returns the answer as text, which must be equal on both sides.
    async fn ask(&mut self, client: usize, operation: &Operation) -> String {
        let client = &mut self.clients[client];
        let name = |request: &Request| {
            Token {
                session: None,
                ..request.token
            }
            .reveal()
        };
        let mut operation = operation.clone();
        if let Operation::Acquire(request)
        | Operation::Renew(request, _)
        | Operation::Release(request, _) = &mut operation
        {
            request.token.session = self.sessions.get(&name(request)).copied();
        }
        match &operation {
            Operation::Acquire(request) => match client.attempt(request).await {
                Attempt::Granted(grant) => {
                    self.sessions
                        .extend(grant.session.map(|session| (name(request), session)));
                    if request.waiting {
                        // The core leaves the queue on every exit too.
                        client.leave_queue(request).await;
                    }
                    let place = self.fences.index(request.key.as_str(), grant.fence);
                    // The number of holds is compared for nested holds only.
                    let holds = (request.entry == Entry::Reenter).then_some(grant.holds);
                    format!("granted, fence {place}, holds {holds:?}")
                }
                Attempt::Busy(busy) => {
                    let fence = busy.holders[0]
                        .fence
                        .map(|fence| self.fences.index(request.key.as_str(), fence));
                    // Only stores with an ordered queue report a position; the inspection shows the
                    // waiter.
                    format!("busy, fence {fence:?}, holds {}", busy.holders[0].holds)
                }
                Attempt::NotHeld => "not held".into(),
                Attempt::Denied(refusal) => panic!("{refusal:?}"),
            },
            Operation::Renew(request, times) => {
                match client.renew(request, times.map(|times| LONG * times)).await {
                    Renewal::Renewed { ttl, fence } => {
                        format!(
                            "renewed for {:?}, fence {}",
                            ttl.get(),
                            self.fences.index(request.key.as_str(), fence)
                        )
                    }
                    Renewal::Kept { .. } => "would shorten".into(),
                    Renewal::NotHeld => "not held".into(),
                    Renewal::Broken(mark) => format!("broken {mark}"),
                }
            }
            Operation::Release(request, scope) => match client.release(request, *scope).await {
                Release::Released => "released".into(),
                Release::StillHeld(holds) => format!("still held {holds}"),
                Release::NotHeld => "not held".into(),
            },
            Operation::Leave(request) => {
                client.leave_queue(request).await;
                String::new()
            }
            Operation::Inspect(name) => {
                let state = client.inspect(&key(name)).await;
                let mut text = String::new();
                for holder in &state.holders {
                    let fence = holder.fence.map(|fence| self.fences.index(name, fence));
                    let left =
                        holder.expires_in.expect("an expiry").as_secs_f64() / LONG.as_secs_f64();
                    let _ = write!(
                        text,
                        "held {} fence {fence:?} detached {} for {:.0}; ",
                        holder.holds,
                        holder.detached,
                        left.round()
                    );
                }
                let last = state.last_fence.map(|fence| self.fences.index(name, fence));
                format!("{text}{} wait, last fence {last:?}", state.waiters.len())
            }
            Operation::List => format!("{:?}", client.keys("").await),
        }
    }
}

async fn random_operations_match_the_reference(lab: &Lab) {
    let given = env::var("DLOCK_TEST_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok());
    let first = given.unwrap_or_else(dlock::lock::random);
    for round in 0..if given.is_some() { 1 } else { ROUNDS } {
        play(lab, first.wrapping_add(round)).await;
        lab.lose_data().await;
    }
}

async fn play(lab: &Lab, seed: u64) {
    let mut dice = Dice(seed);
    let store = MemoryStore::default();
    let (mut reference, mut tried) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        reference.push(Client(Box::new(Memory::new(
            store.clone(),
            Namespace::default(),
        ))));
        tried.push(lab.client().await);
    }
    let (mut reference, mut tried) = (Side::new(reference), Side::new(tried));
    let mut made: Vec<Made> = Vec::new();
    let mut transcript = String::new();
    for step in 0..STEPS {
        let (client, operation) = next(&mut dice, &mut made, lab.kind);
        let expected = reference.ask(client, &operation).await;
        let answer = tried.ask(client, &operation).await;
        let _ = writeln!(
            transcript,
            "{step}: client {client} {}: {expected}",
            words(&operation)
        );
        assert_eq!(
            answer, expected,
            "DLOCK_TEST_SEED={seed} step {step}; so far, as the reference answered:\n{transcript}"
        );
    }
}

/// A request that was sent, whatever its answer.
struct Made {
    /// The client that sent the request.
    client: usize,
    request: Request,
    /// Whether the hold was released: sending the request again would be a new one.
    over: bool,
}

fn next(dice: &mut Dice, made: &mut Vec<Made>, kind: Kind) -> (usize, Operation) {
    let name = KEYS[dice.roll(KEYS.len())];
    let fresh = made.is_empty() || dice.roll(5) == 0;
    if fresh {
        let client = dice.roll(3);
        // Where a hold can't change its TTL, all holds are taken with the same TTL.
        let lease = LONG
            * if kind.adjusts_ttl() {
                [1, 2, 3][dice.roll(3)]
            } else {
                1
            };
        // A process waits for a lock at most once at a time. Where positions are kept, a released
        // lock belongs to the next waiter at once, unlike in the reference: no client waits there.
        let waits = kind.keeps_positions()
            || made.iter().any(|one| {
                one.client == client && one.request.waiting && one.request.key.as_str() == name
            });
        let request = match dice.roll(4) {
            0 if !waits => waiting(&key(name), lease),
            1 if kind.crosses_processes() => Request {
                detached: true,
                ..request(&key(name), lease)
            },
            _ => request(&key(name), lease),
        };
        made.push(Made {
            client,
            request: request.clone(),
            over: false,
        });
        return (client, Operation::Acquire(request));
    }
    // Mostly the newest requests, some of which hold a lock.
    let back = dice.roll(made.len().min(8));
    let at = made.len() - 1 - back;
    let Made {
        client: owner,
        request,
        over,
    } = &made[at];
    let (owner, request, over) = (*owner, request.clone(), *over);
    // Any process may use the token of a detached hold; other holds are used by their own process.
    let client = if request.detached {
        dice.roll(3)
    } else {
        owner
    };
    match dice.roll(12) {
        0 | 1 if !over => (client, Operation::Acquire(request)),
        2 if kind.crosses_processes() => {
            let times = if kind.adjusts_ttl() {
                [1, 2][dice.roll(2)]
            } else {
                1
            };
            let inner = Request {
                ttl: ttl(LONG * times),
                waiting: false,
                ..nested(&request)
            };
            made.push(Made {
                client,
                request: inner.clone(),
                over: false,
            });
            (client, Operation::Acquire(inner))
        }
        3 => (client, Operation::Renew(request, None)),
        4 | 5 if kind.adjusts_ttl() => (
            client,
            Operation::Renew(request, Some([1, 2, 4][dice.roll(3)])),
        ),
        roll @ 6..=8 => {
            made[at].over = true;
            (
                client,
                Operation::Release(request, if roll == 8 { Scope::Tree } else { Scope::Hold }),
            )
        }
        9 if request.entry == Entry::Fresh => {
            // The request is repeated later without waiting.
            made[at].request.waiting = false;
            (client, Operation::Leave(request))
        }
        10 => (dice.roll(3), Operation::Inspect(name)),
        _ => (dice.roll(3), Operation::List),
    }
}

/// Returns the operation as text, with a shortened hold.
fn words(operation: &Operation) -> String {
    let of = |request: &Request| {
        let hold = request.token.hold_text();
        let owner = request.token.owner.to_string();
        let entry = if request.entry == Entry::Reenter {
            " nested"
        } else {
            ""
        };
        format!(
            "{:?} {}/{}{entry}",
            request.key.as_str(),
            &owner[..4],
            &hold[..4]
        )
    };
    match operation {
        Operation::Acquire(request) => {
            format!(
                "acquire {} for {:?} waiting {} detached {}",
                of(request),
                request.ttl.get(),
                request.waiting,
                request.detached
            )
        }
        Operation::Renew(request, times) => format!("renew {} {times:?}", of(request)),
        Operation::Release(request, scope) => format!("release {} {scope:?}", of(request)),
        Operation::Leave(request) => format!("leave {}", of(request)),
        Operation::Inspect(name) => format!("inspect {name:?}"),
        Operation::List => "list".into(),
    }
}
