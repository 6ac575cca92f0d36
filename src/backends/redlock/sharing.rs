//! Lock libraries that can share a lock with dlock on a majority of Redis servers.

use super::Options;
use crate::{
    backends::redis::{names::Names, sharing::OF_STRINGS},
    lock::{Key, Result, Sharing},
};

/// Returns each library's name and settings for the lock.
///
/// # Errors
/// If the key has no name in the store.
pub fn sharing(options: &Options, key: &Key) -> Result<Sharing> {
    Ok(Sharing::new(Names::new(&options.namespace, key)?.lock, &OF_STRINGS, &[]))
}
