//! Which lock libraries share a lock on Tair.

use super::{TairMode, TairOptions};
use crate::{
    backends::redis::{names::RedisNames, sharing::OF_STRINGS},
    lock::{Key, Result, Sharing},
};

/// What each library is given for a lock. No library is known to have strings with a version.
///
/// # Errors
/// For a key that has no name there.
pub fn sharing(options: &TairOptions, key: &Key) -> Result<Sharing> {
    let libraries = if options.mode == TairMode::Plain { &OF_STRINGS[..] } else { &[] };
    Ok(Sharing::new(RedisNames::new(&options.namespace, key)?.lock, libraries, &[]))
}
