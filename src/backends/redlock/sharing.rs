//! Which lock libraries share a lock with a majority of Redis servers.

use super::RedlockOptions;
use crate::{
    backends::redis::{names::RedisNames, sharing::OF_STRINGS},
    lock::{Key, Result, Sharing},
};

/// What each library is given for a lock.
///
/// # Errors
/// For a key that has no name there.
pub fn sharing(options: &RedlockOptions, key: &Key) -> Result<Sharing> {
    Ok(Sharing::new(RedisNames::new(&options.namespace, key)?.lock, &OF_STRINGS, &[]))
}
