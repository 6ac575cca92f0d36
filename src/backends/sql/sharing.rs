//! ShedLock, which shares tables of leases.

use super::{Names, SqlOptions};
use crate::lock::{Key, Library, Sharing};

pub(in crate::backends) const SHEDLOCK: [Library; 2] = [
    Library::shares(
        "ShedLock, JdbcTemplateLockProvider",
        "Configuration.builder().withTableName({table}).usingDbTime(); @SchedulerLock(name = {string})",
        "-s and --permits keep it out as well",
    ),
    Library::strange(
        "ShedLock without usingDbTime()",
        "it compares the lock's end with its own local time: a held lock is granted, or a free one stays busy, by the difference of the \
         time zones",
    ),
];

/// Returns the lock's name for ShedLock.
pub(in crate::backends) fn sharing(options: &SqlOptions, key: &Key) -> Sharing {
    let table = format!("\"{}\"", options.table);
    Sharing::new(
        Names::new(&options.namespace).of(key),
        &SHEDLOCK,
        &[("table", &table)],
    )
}
