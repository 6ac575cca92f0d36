//! Adding a note to a lock's history, if the store supports that.

use std::time::Duration;

use super::{BootClock, Limits, ask, wall_ms};
use crate::lock::{Amendment, Backend, Fence, HistoryEntry, Key, Metadata, Note};

/// How long a note of a skip may take: nothing depends on the note, and a person may wait for the
/// prompt.
const SKIP: Limits<'static> = Limits::of(Duration::from_secs(1));

/// Writes the note. Never fails: a gap in the history is better than a job that fails for its
/// history.
///
/// The note may be written twice if an answer was lost.
pub async fn note(backend: &mut dyn Backend, key: &Key, note: &Note, limits: Limits<'_>) {
    let change = Amendment::Note(note);
    let _ = ask(
        backend,
        &BootClock,
        limits,
        ("note", Some(key)),
        async |backend: &mut dyn Backend| backend.amend(key, change).await,
    )
    .await;
}

/// Returns what the history knows of the hold with this fence; `None` also if the store doesn't say.
pub async fn entry(
    backend: &mut dyn Backend,
    key: &Key,
    fence: Fence,
    limits: Limits<'_>,
) -> Option<HistoryEntry> {
    let history = ask(
        backend,
        &BootClock,
        limits,
        ("history", Some(key)),
        async |backend: &mut dyn Backend| backend.history(key).await,
    );
    let found = history.await.ok()?.past;
    found.into_iter().find(|entry| entry.fence == Some(fence))
}

/// Whether this process should warn that the hold with this fence has lasted for `held`. People
/// want such warnings after `after`, twice that, four times that, and so on. Returns false if the
/// store doesn't say so.
pub async fn may_warn(
    backend: &mut dyn Backend,
    key: &Key,
    fence: Fence,
    held: Duration,
    after: Duration,
) -> bool {
    let Some(times) = held
        .as_millis()
        .checked_div(after.as_millis())
        .filter(|times| *times > 0)
    else {
        return false;
    };
    let level = times.ilog2() + 1;
    let change = Amendment::Warn(fence, level);
    let claimed = ask(
        backend,
        &BootClock,
        SKIP,
        ("warn", Some(key)),
        async |backend: &mut dyn Backend| backend.amend(key, change).await,
    );
    claimed.await.unwrap_or_default()
}

/// Records that this host skipped a run, and why, unless the configuration hides the host.
pub async fn note_skip(backend: &mut dyn Backend, key: &Key, who: Option<&Metadata>, reason: &str) {
    if let Some(host) = who.and_then(|who| who.host.clone()) {
        note(
            backend,
            key,
            &Note::Skipped {
                host,
                reason: reason.to_owned(),
                at_ms: wall_ms(),
            },
            SKIP,
        )
        .await;
    }
}
