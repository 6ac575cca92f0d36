//! The lock libraries that share a lock on ZooKeeper.

use super::{ZooKeeperOptions, names::ZkNames};
use crate::lock::{Key, Library, Sharing};

pub(in crate::backends) const LIBRARIES: [Library; 6] = [
    Library::shares(
        "Curator InterProcessMutex",
        "new InterProcessMutex(client, {string}).acquire();",
        "",
    ),
    Library::shares(
        "Curator InterProcessReadWriteLock",
        "new InterProcessReadWriteLock(client, {string}).readLock().acquire();",
        "its readers and dlock's (-s) go together, its writers wait for them",
    ),
    Library::shares(
        "kazoo Lock and WriteLock",
        "client.Lock({string}, extra_lock_patterns=[\"-lock-\"]).acquire()",
        "only with this argument",
    ),
    Library::shares(
        "kazoo ReadLock",
        "client.ReadLock({string}, extra_lock_patterns=[\"-__WRIT__\"]).acquire()",
        "only with this argument; its readers and dlock's (-s) go together",
    ),
    Library::one_way(
        "kazoo's locks without extra_lock_patterns",
        "pass the argument",
    ),
    Library::strange(
        "semaphores of Curator and kazoo, InterProcessSemaphoreMutex too",
        "dlock exits with 65 while one of them is held, and Curator's are granted while dlock holds the lock: use InterProcessMutex",
    ),
];

/// Returns each library's argument for a lock.
pub fn sharing(options: &ZooKeeperOptions, key: &Key) -> Sharing {
    Sharing::new(
        ZkNames::new(&options.chroot, &options.namespace, key).lock,
        &LIBRARIES,
        &[],
    )
}
