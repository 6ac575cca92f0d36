//! Which lock libraries share a lock with a majority of Redis servers.

use super::Options;
use crate::{
    backends::redis::{names::Names, sharing::OF_STRINGS},
    lock::{Key, Result, Sharing},
};

/// What each library is given for a lock.
///
/// # Errors
/// For a key that has no name there.
pub fn sharing(options: &Options, key: &Key) -> Result<Sharing> {
    Ok(Sharing::new(Names::new(&options.namespace, key)?.lock, &OF_STRINGS, &[]))
}
