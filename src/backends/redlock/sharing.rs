//! Lock libraries that can share a lock with dlock on a majority of Redis servers.

use super::RedlockOptions;
use crate::{
    backends::redis::{names::RedisNames, sharing::OF_STRINGS},
    lock::{Key, Result, Sharing},
};

/// Returns each library's name and settings for the lock.
///
/// # Errors
/// If the key has no name in the store.
pub fn sharing(options: &RedlockOptions, key: &Key) -> Result<Sharing> {
    Ok(Sharing::new(
        RedisNames::new(&options.namespace, key)?.lock,
        &OF_STRINGS,
        &[],
    ))
}
