//! Lock libraries that can share a lock with dlock on Tair.

use super::{TairMode, TairOptions};
use crate::{
    backends::redis::{names::RedisNames, sharing::OF_STRINGS},
    lock::{Key, Result, Sharing},
};

/// Returns each library's name and settings for the lock. No known library uses strings with a
/// version.
///
/// # Errors
/// If the key has no name in the store.
pub fn sharing(options: &TairOptions, key: &Key) -> Result<Sharing> {
    let libraries = if options.mode == TairMode::Plain {
        &OF_STRINGS[..]
    } else {
        &[]
    };
    Ok(Sharing::new(
        RedisNames::new(&options.namespace, key)?.lock,
        libraries,
        &[],
    ))
}
