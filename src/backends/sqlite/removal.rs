//! Noticing that the store was removed under a holder: by a cleaner of temporary files, a
//! deployment, `rm -rf`.
//!
//! The next process finds another database and another lock file, in which nothing is held.

use std::time::Duration;

use tokio::time::timeout;

use super::{client::SqliteClient, slot::OwnHolds, watch::PathWatch};
use crate::lock::{Key, Token};

/// How long a hold must last to be watched: closing a watch takes the kernel some milliseconds,
/// which would delay a short command.
const SHORT: Duration = Duration::from_millis(50);
/// How often to look where no more watches are available.
const DEAF: Duration = Duration::from_secs(1);

impl SqliteClient {
    /// Returns once nothing keeps other processes out any more, or counts this hold.
    pub(super) async fn await_removal(&mut self, key: &Key, token: &Token) {
        let path = self.options.path.clone();
        let pause = async |length| {
            let _ = timeout(length, std::future::pending::<()>()).await;
        };
        if self.watch.is_none() {
            pause(SHORT).await;
            self.watch = PathWatch::new(&path).ok();
        }
        // From here on nothing is missed.
        while !self.is_removed(key, token) {
            let heard = match &self.watch {
                Some(watch) => watch.stirred().await.is_ok(),
                None => false,
            };
            if !heard {
                self.watch = None;
                pause(DEAF).await;
            }
        }
    }

    /// Whether nothing keeps other processes out any more, or counts this hold.
    pub(super) fn is_removed(&self, key: &Key, token: &Token) -> bool {
        let database = self
            .database
            .as_ref()
            .is_some_and(|database| !database.is_current(&self.options.path));
        let guarded = self
            .slots
            .get(key)
            .filter(|slot| slot.ours(token).is_some_and(OwnHolds::is_guarded));
        database && guarded.is_none_or(|slot| !slot.file.is_current())
    }
}
