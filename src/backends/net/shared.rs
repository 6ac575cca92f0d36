//! Work that may block, on a thread of its own: nothing waits for it at the end of the process.

use std::{
    sync::{Mutex, PoisonError},
    thread,
};

use tokio::sync::watch;

/// Work that all callers share while it lasts. A caller that is dropped leaves the result to the
/// next one.
pub(super) struct SharedWork<T>(Mutex<Option<watch::Receiver<Option<T>>>>);

impl<T> Default for SharedWork<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T: Clone + Send + Sync + 'static> SharedWork<T> {
    /// Returns the result of the work that is under way, or else of `work`. Returns `None` if the
    /// system has no thread left.
    pub(super) async fn get(&self, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        let mut result = self.begin(work)?;
        let done = result
            .wait_for(Option::is_some)
            .await
            .ok()
            .and_then(|result| result.clone());
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
        done
    }

    fn begin(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<watch::Receiver<Option<T>>> {
        let mut slot = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(result) = &*slot {
            return Some(result.clone());
        }
        let (tell, result) = watch::channel(None);
        // The caller may be gone by then.
        thread::Builder::new()
            .name("aside".into())
            .spawn(move || drop(tell.send_replace(Some(work()))))
            .ok()?;
        Some(slot.insert(result).clone())
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, time::Duration};

    use super::*;

    #[tokio::test]
    async fn a_dropped_caller_leaves_the_result_to_the_next() {
        let work = SharedWork::default();
        let (go, wait) = mpsc::channel::<()>();
        let first = work.get(move || {
            let _ = wait.recv();
            1
        });
        assert!(
            tokio::time::timeout(Duration::from_millis(20), first)
                .await
                .is_err()
        );
        let (second, ()) = tokio::join!(work.get(|| 2), async { drop(go) });
        assert_eq!(second, Some(1));
        assert_eq!(work.get(|| 3).await, Some(3));
    }
}
