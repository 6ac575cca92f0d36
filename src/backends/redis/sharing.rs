//! Lock libraries that can share a lock with dlock on Redis.

use super::{RedisOptions, names::RedisNames};
use crate::lock::{Key, Library, Result, Sharing};

/// Redisson's locks: hashes, like dlock's on a single Redis, with sentinels and in clusters.
const REDISSON: [Library; 3] = [
    Library::shares(
        "Redisson getLock",
        "redisson.getLock({string}).lock();",
        "a waiter is woken by dlock's release",
    ),
    Library::shares(
        "Redisson getFairLock",
        "redisson.getFairLock({string}).lock();",
        "a waiter is woken by dlock's release",
    ),
    Library::shares(
        "Redisson getReadWriteLock",
        "redisson.getReadWriteLock({string}).readLock().lock();",
        "its readers and dlock's (-s) go together, its writers wait for them; man dlock-interop says which --ttl they need",
    ),
];

/// Libraries whose lock is a string.
const STRINGS: [Library; 6] = [
    Library::shares(
        "redis-py",
        "client.lock({string}, timeout=60).acquire()",
        "without timeout= a crashed holder keeps the lock until the key is deleted",
    ),
    Library::shares(
        "redlock-py",
        "Redlock([{\"host\": \"r1\"}]).lock({string}, 60000)",
        "one host, or all of redlock://",
    ),
    Library::shares(
        "node redlock",
        "await redlock.acquire([{string}], 60000)",
        "one client, or one for each host of redlock://",
    ),
    Library::shares(
        "ioredis",
        "await redis.set({string}, token, \"PX\", 60000, \"NX\")",
        "and any other SET NX with an expiry",
    ),
    Library::shares(
        "pottery",
        "Redlock(key={string}, masters={client}).acquire()",
        "it puts redlock: before the name",
    )
    .with_prefix("redlock:"),
    Library::shares(
        "redis-semaphore Mutex",
        "await new Mutex(client, {string}).acquire()",
        "it puts mutex: before the name",
    )
    .with_prefix("mutex:"),
];

const PYTHON_REDIS_LOCK: Library = Library::shares(
    "python-redis-lock",
    "redis_lock.Lock(client, {string}, expire=60).acquire()",
    "",
)
.with_prefix("lock:");

const SEMAPHORES: Library = Library::strange(
    "semaphores",
    "Redisson's getSemaphore keeps a number, which dlock takes for a lock without an end; redis-semaphore's Semaphore keeps a set, at which \
     dlock exits with 65",
);

const PYTHON_OTHERS: Library = Library::strange(
    "tooz and portalocker (Python)",
    "tooz keeps the lock NAME in the key _tooz_NAME_lock: --namespace '' -k _tooz_NAME_lock takes that one; portalocker's RedisLock is a \
     subscription and no key",
);

/// The libraries for a single Redis, sentinels and clusters.
pub(in crate::backends) const LIBRARIES: [Library; 12] = {
    let [lock, fair, rw] = REDISSON;
    let [py, redlock_py, node, set, pottery, mutex] = STRINGS;
    let about = "it puts lock: before the name; while dlock holds the lock it raises ResponseError (WRONGTYPE) instead of waiting: \
                 redlock://HOST?allow_few=yes keeps a string, for which it waits";
    [
        lock,
        fair,
        rw,
        py,
        redlock_py,
        node,
        set,
        pottery,
        mutex,
        Library {
            about,
            ..PYTHON_REDIS_LOCK
        },
        PYTHON_OTHERS,
        SEMAPHORES,
    ]
};

/// The libraries for Redlock and Tair, where dlock's lock is a string too.
pub(in crate::backends) const OF_STRINGS: [Library; 8] = {
    let [py, redlock_py, node, set, pottery, mutex] = STRINGS;
    let python = Library {
        about: "it puts lock: before the name; a waiter is not woken by dlock's release",
        ..PYTHON_REDIS_LOCK
    };
    let [redisson, ..] = REDISSON;
    let redisson = Library {
        about: "at a string it raises an error (WRONGTYPE) instead of waiting: use redis://",
        ..redisson
    };
    [py, redlock_py, node, set, pottery, mutex, python, redisson]
};

/// Returns each library's name and settings for the lock.
///
/// # Errors
/// If the key has no name in the store.
pub fn sharing(options: &RedisOptions, key: &Key) -> Result<Sharing> {
    Ok(Sharing::new(
        RedisNames::new(&options.namespace, key)?.lock,
        &LIBRARIES,
        &[],
    ))
}
