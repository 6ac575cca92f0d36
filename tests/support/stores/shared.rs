//! Servers that several tests use at once, each for its own locks and without faults.

use std::{
    any::Any,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use super::Store;

/// The place of a server that tests share.
pub type Slot<S> = Mutex<Weak<S>>;

/// Servers that outlast their last test; none unless the suite asks for it.
static KEPT: Mutex<Option<Vec<Arc<dyn Any + Send + Sync>>>> = Mutex::new(None);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps shared servers running until [`end`]. Otherwise the last test that uses one ends it.
pub fn keep_running() {
    lock(&KEPT).get_or_insert_default();
}

/// Ends the servers that were kept running.
pub fn end() {
    drop(lock(&KEPT).take());
}

/// Returns the server in this place, which is started if it doesn't run.
pub fn get<S: Any + Send + Sync>(slot: &Slot<S>, start: impl FnOnce() -> S) -> Arc<S> {
    let mut slot = lock(slot);
    slot.upgrade().unwrap_or_else(|| {
        let server = Arc::new(start());
        *slot = Arc::downgrade(&server);
        if let Some(kept) = &mut *lock(&KEPT) {
            kept.push(Arc::<S>::clone(&server));
        }
        server
    })
}

/// A store that tests share.
pub struct Shared<S>(pub Arc<S>);

impl<S: Store> Store for Shared<S> {
    fn url_at(&self, host: &str, ports: &[u16]) -> String {
        self.0.url_at(host, ports)
    }

    fn ports(&self) -> Vec<u16> {
        self.0.ports()
    }

    fn servers(&self) -> &dyn Any {
        self.0.servers()
    }

    fn lose_data(&self, part: &str) {
        self.0.lose_data(part);
    }
}
