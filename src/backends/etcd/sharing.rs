//! The lock libraries that share a lock on etcd.

use super::{EtcdOptions, names::EtcdNames};
use crate::lock::{Key, Library, Sharing};

pub(in crate::backends) const LIBRARIES: [Library; 7] = [
    Library::shares(
        "etcdctl",
        "etcdctl lock {word} -- COMMAND",
        "COMMAND goes on running when etcdctl loses the lock",
    ),
    Library::shares(
        "Go concurrency.Mutex",
        "concurrency.NewMutex(session, {string}).Lock(ctx)",
        "and concurrency.NewElection",
    ),
    Library::shares(
        "the server's lock service",
        "v3lock Lock with the name {string}",
        "jetcd's Lock, for one",
    ),
    Library::shares(
        "Go recipe.RWMutex",
        "recipe.NewRWMutex(session, {string}).RLock()",
        "its readers and dlock's (-s) go together, its writers wait for them",
    ),
    Library::strange(
        "etcd3 (Python)",
        "its lock(NAME) is the key /locks/NAME: run etcdctl lock, or call the server's lock service",
    ),
    Library::strange(
        "etcd3-py (Python)",
        "its Lock(client, NAME) is the key _locks/NAME: call client.lock(NAME, lease=ID), the server's lock service",
    ),
    Library::strange(
        "etcd3gw and tooz (Python)",
        "they keep a key of their own: run etcdctl lock, or call the server's lock service",
    ),
];

/// Returns each library's argument for a lock.
pub fn sharing(options: &EtcdOptions, key: &Key) -> Sharing {
    Sharing::new(
        EtcdNames::new(&options.namespace, key).display_name(),
        &LIBRARIES,
        &[],
    )
}
