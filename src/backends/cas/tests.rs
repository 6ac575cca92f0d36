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
