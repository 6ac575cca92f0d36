//! Completion values from the store, within a short time limit.

use std::time::Duration;

use super::{Context, block_on};
use crate::{
    lease::{BootClock, Clock as _, bounded},
    lock::{Key, Progress},
};

/// How long a completion waits for the store.
const LIMIT: Duration = Duration::from_millis(300);

/// Returns the keys of held locks, or the fences of one lock; nothing if the store does not answer
/// in time.
pub fn values(context: &Context, key: Option<&Key>) -> Vec<String> {
    let mut backend = context.target.store.backend();
    let work = async {
        let until = BootClock.now().plus(LIMIT);
        let answer = bounded(&BootClock, until, async {
            match key {
                None => backend
                    .list("", &Progress::default())
                    .await
                    .map(|locks| locks.iter().map(|lock| lock.key.to_string()).collect()),
                Some(key) => backend.inspect(key).await.map(|lock| {
                    lock.holders
                        .iter()
                        .filter_map(|holder| Some(holder.fence?.to_string()))
                        .collect()
                }),
            }
        });
        Ok(answer.await.and_then(Result::ok).unwrap_or_default())
    };
    block_on(work).unwrap_or_default()
}
