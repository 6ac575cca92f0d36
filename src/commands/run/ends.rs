//! The end of the wait for a lock, and the warnings and errors at the end of a run.

use std::time::Duration;

use super::{RunSettings, watch::RunWatch};
use crate::{
    lease::may_warn,
    lock::{Backend, Busy, Denial, Error, Key, Kind, Rule},
    output::{self, Output, Syslog, age},
    supervise::{Signal, Signals, Supervisor, stop_self},
};

/// Returns the error of a run that was lost, broken or stopped at its maximum runtime.
pub(super) fn disturbed(watch: RunWatch<'_>, settings: &RunSettings) -> Option<Error> {
    match (watch.lost, watch.broken) {
        (Some(how), _) => {
            let error = Error::new(Kind::Unavailable, how);
            Some(match watch.trouble {
                Some(trouble) => error.source(trouble),
                None => error,
            })
        }
        (None, Some(mark)) => Some(Error::new(
            Kind::Unavailable,
            format!("broken {}", output::mark(&mark)),
        )),
        (None, None) => watch
            .timed_out
            .then(|| Error::new(Kind::Timeout, settings.max_runtime())),
    }
}

/// Returns when a signal ends the wait; `None` if the guardian is gone.
pub(super) async fn wait_ended(
    signals: &mut Signals,
    supervisor: &mut Supervisor,
) -> Option<Signal> {
    loop {
        tokio::select! {
            // Also reaps processes that are reparented to dlock. Before the start, the guardian's
            // end is the only event.
            _ = supervisor.next() => return None,
            signal = signals.next() => {
                if signal.ends_wait() {
                    return Some(signal);
                }
                if signal.is_stop() {
                    stop_self(signal.number);
                }
            }
        }
    }
}

/// Warns of a start that lies in the future by the store's clock, and so denies runs for longer
/// than they asked for.
pub(super) fn warn_of_future_start(
    settings: &RunSettings,
    key: &Key,
    out: &Output,
    denial: &Denial,
) {
    let (Rule::Once(_), Some(window), Some(left)) = (
        denial.rule,
        settings.policy.frequency.window(),
        denial.again_in,
    ) else {
        return;
    };
    let ahead = left.saturating_sub(window);
    if ahead > window.min(Duration::from_secs(60)) {
        let text = format!(
            "{}: the last start lies {} in the future by the store's clock: no run until then",
            key.escaped(),
            age(ahead)
        );
        let shell = output::shell(key);
        out.warn_with_hint(
            &text,
            &format!(
                "if the store's clock was set back, dlock forget {shell} lets the next run start"
            ),
        );
        Syslog::default().warn_of(settings.log, out, &text);
    }
}

/// Warns of a lock that has been held for too long, unless another process warned already.
pub(super) async fn warn_of_long_hold(
    backend: &mut dyn Backend,
    settings: &RunSettings,
    key: &Key,
    out: &Output,
    busy: &Busy,
) {
    let Some(holder) = busy.holders.first() else {
        return;
    };
    let (Some(after), Some(held), Some(fence)) =
        (settings.policy.warn_held, holder.held_for, holder.fence)
    else {
        return;
    };
    if may_warn(backend, key, fence, held, after).await {
        let text = format!(
            "{}: {} has had the lock for {}: does it hang?",
            key.escaped(),
            output::holder(holder),
            age(held)
        );
        let key = output::shell(key);
        out.warn_with_hint(&text, &format!("dlock inspect {key} shows more, dlock break {key} stops it, --warn-held 0 is silent"));
        Syslog::default().warn_of(settings.log, out, &text);
    }
}
