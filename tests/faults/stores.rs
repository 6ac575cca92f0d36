//! The stores that the faults are injected into, one per test.

use std::time::Duration;

pub use crate::support::stores::Store;
use crate::support::{
    self, dlock,
    stores::{Kind, Need},
};

/// Starts the store of a test; `None` if it can't run here. No fault hits the servers of Sentinel
/// and Cluster, which tests share: `failover` has servers of its own.
pub fn start(name: &str, test: &str) -> Option<Box<dyn Store>> {
    let kind = Kind::named(name).expect("a store");
    let need = if kind.can().forgets {
        Need::Shared
    } else {
        Need::Durable
    };
    kind.start_for(&format!("{name}::{test}"), need)
}

/// Makes one test per function and store with one server.
macro_rules! on_one_server {
    ($($name:ident),* $(,)?) => {
        $crate::stores::on_store!(redis: $($name),*);
        $crate::stores::on_store!(tair: $($name),*);
        $crate::stores::on_store!(etcd: $($name),*);
        $crate::stores::on_store!(postgres: $($name),*);
        $crate::stores::on_store!(mariadb: $($name),*);
        $crate::stores::on_store!(mysql: $($name),*);
        $crate::stores::on_store!(zookeeper: $($name),*);
    };
}
pub(crate) use on_one_server;

/// The same, for cases that depend on how a lock is stored.
macro_rules! on_every_server {
    ($($name:ident),* $(,)?) => {
        $crate::stores::on_one_server!($($name),*);
        $crate::stores::on_store!(tair_version: $($name),*);
    };
}
pub(crate) use on_every_server;

/// Makes one test per function and store that has readers, permits and fair waiters.
macro_rules! on_stores_with_shares {
    ($($name:ident),* $(,)?) => {
        $crate::stores::on_every_server!($($name),*);
        $crate::stores::on_store!(sqlite: $($name),*);
        $crate::stores::on_store!(sentinel: $($name),*);
        $crate::stores::on_store!(cluster: $($name),*);
    };
}
pub(crate) use on_stores_with_shares;

/// Makes one test per function and store.
macro_rules! on_every_store {
    ($($name:ident),* $(,)?) => {
        $crate::stores::on_one_server!($($name),*);
        $crate::stores::on_store!(sqlite: $($name),*);
        $crate::stores::on_store!(sentinel: $($name),*);
        $crate::stores::on_store!(cluster: $($name),*);
        $crate::stores::on_store!(redlock: $($name),*);
    };
}
pub(crate) use on_every_store;

macro_rules! on_store {
    ($store:ident: $($name:ident),*) => {
        mod $store {
            $(#[test]
            fn $name() {
                if let Some(mut store) = $crate::stores::start(stringify!($store), stringify!($name)) {
                    super::$name(&mut *store);
                }
            })*
        }
    };
}
pub(crate) use on_store;

/// Runs a short command many times on servers one of which doesn't answer.
pub fn run_with_one_silent_server(url: &str) {
    let runs = support::long_or(200, 24);
    let mut took = Vec::new();
    for nth in 0..runs {
        let key = format!("job-{nth}");
        let ended = dlock::run(url, &["run", "-k", &key, "--skew-guard", "0", "--", "true"]);
        assert_eq!((ended.code(), ended.stderr.as_str()), (0, ""), "run {nth}");
        took.push(ended.took);
    }
    took.sort_unstable();
    let (usual, longest) = (took[0], took[took.len() - 1]);
    assert!(
        longest < usual + Duration::from_millis(1500) * support::slowness(),
        "{took:?}"
    );
    assert!(
        dlock::run(url, &["list"]).stdout.is_empty(),
        "a lock is left over"
    );
}
