//! Completion values from the store, within a short time limit.

use std::time::Duration;

use super::{Context, block_on, similar};
use crate::{
    lease::{BootClock, Clock as _, bounded},
    lock::Key,
};

/// How long a completion waits for the store.
const LIMIT: Duration = Duration::from_millis(300);

/// Returns the keys that the store knows, or the fences of one lock; nothing if the store does not answer
/// in time.
pub fn values(context: &Context, key: Option<&Key>) -> Vec<String> {
    let mut backend = context.target.store.backend();
    let work = async {
        let Some(key) = key else {
            let known = similar::known_keys(&mut *backend).await.unwrap_or_default();
            return Ok(known.iter().map(Key::to_string).collect());
        };
        let until = BootClock.now().plus(LIMIT);
        let lock = bounded(&BootClock, until, backend.inspect(key)).await;
        let holders = lock.and_then(Result::ok).map(|lock| lock.holders);
        Ok(holders
            .unwrap_or_default()
            .iter()
            .filter_map(|holder| Some(holder.fence?.to_string()))
            .collect())
    };
    block_on(work).unwrap_or_default()
}
