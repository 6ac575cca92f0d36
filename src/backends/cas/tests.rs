//! What the steps rely on. The contract's clients take turns in one thread, where no other client
//! comes between a read and a swap of a synchronous store.

use super::{CasBackend, Change, ReadFor, Store};
use crate::lock::{Fence, Key};

/// Asserts that only the first of two swaps of one reading is done, of the lock that the hold with
/// this fence has.
pub async fn a_reading_is_swapped_once<S: Store>(
    CasBackend { store, .. }: &mut CasBackend<S>,
    key: &Key,
    fence: Fence,
) {
    for level in 1..3 {
        let one = store.read(key, ReadFor::Warn).await.unwrap();
        let other = store.read(key, ReadFor::Warn).await.unwrap();
        let mut swapped = Vec::new();
        for was in [one, other] {
            let mut document = was.document.clone();
            assert!(document.claim_warning(fence, level));
            let change = Change {
                document: &document,
                granted: None,
                ended: Vec::new(),
                wake: Vec::new(),
                request: None,
                must: true,
            };
            swapped.push(store.swap(key, was, change).await.unwrap());
        }
        assert_eq!(swapped, [true, false]);
    }
}

#[tokio::test]
async fn memory_swaps_a_reading_once() {
    use crate::{
        backends::memory::{Memory, MemoryStore},
        lock::{Attempt, Backend as _, Namespace, Request, Ttl},
    };
    let mut memory = Memory::new(MemoryStore::default(), Namespace::default());
    let request = Request::new(Key::new("job").unwrap(), Ttl::DEFAULT);
    let Attempt::Granted(grant) = memory.try_acquire(&request).await.unwrap() else {
        panic!("the lock is new");
    };
    a_reading_is_swapped_once(&mut memory, &request.key, grant.fence).await;
}

/// Many waiters are woken at once, and another one writes first.
#[tokio::test(start_paused = true)]
async fn a_late_sign_of_life_is_not_repeated_at_once() {
    use std::time::Duration;

    use crate::{
        backends::memory::{Memory, MemoryStore},
        lock::{Attempt, Backend as _, Namespace, Request, Token, Ttl},
    };
    let mut memory = Memory::new(MemoryStore::default(), Namespace::default());
    let held = Request::new(Key::new("job").unwrap(), Ttl::DEFAULT);
    let [one, other] = [(); 2].map(|()| Request {
        token: Token::random(),
        waiting: true,
        fair: true,
        ..held.clone()
    });
    for request in [&held, &one, &other] {
        memory.try_acquire(request).await.unwrap();
    }
    let read = ReadFor::Acquire {
        request: &other,
        claims: false,
    };
    // Soon after the last sign of life, and then when the waiter is nearly taken for dead.
    for (seconds, repeats) in [(3, false), (8, true)] {
        tokio::time::advance(Duration::from_secs(seconds)).await;
        let snapshot = memory.store.read(&held.key, read).await.unwrap();
        memory.try_acquire(&one).await.unwrap();
        let attempt = memory.decide(&other, snapshot).await.unwrap();
        assert_eq!(attempt.is_none(), repeats, "{attempt:?}");
        assert!(attempt.is_none_or(|attempt| matches!(attempt, Attempt::Busy(_))));
    }
}
