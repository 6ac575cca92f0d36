//! `dlock list`: every held lock.

mod reading;

use std::{future::pending, io::IsTerminal as _, time::Duration};

use clap::builder::PossibleValuesParser;

use self::reading::{Found, read_locks};

use super::{
    Context, interrupted,
    overview::{self, Choice, ChoiceArgs, KnownKey},
};
use crate::{
    exit,
    lease::{BootClock, Clock as _},
    lock::{Backend, Error, Kind, Result},
    output::{self, LockView, Now, json, list, overview::Summary},
    supervise::{Signal, Signals, reraise, stop_self},
};

/// The arguments of `dlock list`.
#[derive(clap::Args, Debug)]
#[command(
    override_usage = "dlock list [START] [OPTIONS]",
    after_help = "--host NAME: of one host. --failed and --since imply --all, which marks as late\nwhat has not run for twice its usual time.\nExample:  dlock list --all --failed --since 1d"
)]
pub struct Args {
    /// Only locks whose names start with this, literally
    #[arg(value_name = "START")]
    pub start: Option<String>,
    /// Order by key, since, expires or wait [key]
    #[arg(long, value_name = "BY", value_parser = PossibleValuesParser::new(["key", "since", "expires", "wait"]), hide_possible_values = true, hide_short_help = true)]
    pub sort: Option<String>,
    /// Only locks that are held for longer than this
    #[arg(long, value_name = "D")]
    pub held_longer_than: Option<String>,
    /// Every key that the store knows, with its last run
    #[arg(short, long, conflicts_with_all = ["watch", "held_longer_than", "sort"])]
    pub all: bool,
    /// Which runs.
    #[command(flatten)]
    pub choice: ChoiceArgs,
    /// Again every D [2s]; as JSON off a terminal
    #[arg(long, value_name = "D", num_args = 0..=1, require_equals = true, default_missing_value = "2s")]
    pub watch: Option<String>,
}

/// The sort order of the list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SortBy {
    /// By name.
    #[default]
    Key,
    /// Longest hold first.
    Since,
    /// Earliest expiry first.
    Expires,
    /// Most waiters first.
    Wait,
}

/// The validated settings of `dlock list`.
#[derive(Clone, Debug)]
pub struct ListSettings {
    /// The prefix of the keys to show; empty for all.
    pub start: String,
    /// The sort order.
    pub order: SortBy,
    /// Show only locks that have been held for longer.
    pub held_longer_than: Option<Duration>,
    /// The polling interval; `None` to list once.
    pub watch: Option<Duration>,
    /// Whether to show every key that the store knows, held or not.
    pub all: bool,
    /// The filter for locks and last runs.
    pub choice: Choice,
}

/// Shows the held locks of the namespace.
///
/// # Errors
/// The store's error; with `watch`, only the error of the first query.
pub async fn run(settings: ListSettings, context: &Context) -> Result<u8> {
    // Before the store's client starts a thread, which would receive the signals.
    let signals = settings.watch.map(|_| Signals::new()).transpose();
    let mut signals = signals
        .map_err(|error| Error::new(Kind::Internal, "signals can't be watched").source(error))?;
    let mut backend = super::open(context);
    if settings.all {
        return all(&settings, &mut *backend, context).await;
    }
    let Found {
        locks,
        unknown,
        no_such_host,
    } = match read_locks_or_signal(signals.as_mut(), &settings, &mut *backend, context).await {
        Ok(found) => found?,
        Err(signal) => return Ok(ended_by(signal)),
    };
    context.tell(&mut *backend);
    if unknown > 0 {
        let which = if unknown == 1 {
            "1 lock is".to_owned()
        } else {
            format!("{unknown} locks are")
        };
        context.out.notice(&format!(
            "{which} left out: the store does not know since when they are held"
        ));
    }
    match settings.watch.zip(signals) {
        None => Ok(once(&locks, no_such_host, &backend.identity().url, context)),
        Some((pause, signals)) => {
            watch(&settings, locks, (pause, signals), &mut *backend, context).await
        }
    }
}

/// Shows the locks again and again, until a signal comes or the reader has left.
async fn watch(
    settings: &ListSettings,
    mut locks: Vec<LockView>,
    (pause, mut signals): (Duration, Signals),
    backend: &mut dyn Backend,
    context: &Context,
) -> Result<u8> {
    let out = &context.out;
    let drawn = std::io::stdout().is_terminal() && !out.is_json();
    // The lines in the window, and its size at that time. Empty: redraw everything.
    let mut shown = (Vec::new(), (0, 0));
    let (mut now, mut next) = (Now::read(), BootClock.now().plus(pause));
    loop {
        let written = if drawn {
            let (style, height) = (out.table_style(), out.height());
            let screen = list::screen(&locks, &now, pause, style, height);
            let size = (style.width.unwrap_or_default(), height);
            let before = if shown.1 == size {
                std::mem::take(&mut shown.0)
            } else {
                Vec::new()
            };
            let drawn = out.data(&list::redraw(&before, &screen));
            shown = (screen, size);
            drawn
        } else {
            out.data(&json::line(&json::ListReport::new(
                &locks,
                &backend.identity().url,
                &now,
            )))
        };
        if written.is_err() {
            return Ok(out.finish(written, exit::OK));
        }
        loop {
            tokio::select! {
                biased;
                signal = signals.next() => {
                    if signal.ends_wait() {
                        return Ok(ended_by(signal));
                    }
                    if signal.is_stop() {
                        stop_self(signal.number);
                    }
                    if drawn && (signal.is_stop() || signal.is_new_size()) {
                        // A window that was resized, or that other processes wrote to, is redrawn.
                        shown = (Vec::new(), (0, 0));
                        break;
                    }
                    continue;
                }
                () = BootClock.sleep_until(next) => {}
            }
            next = BootClock.now().plus(pause);
            let found =
                match read_locks_or_signal(Some(&mut signals), settings, backend, context).await {
                    Ok(found) => found,
                    Err(signal) => return Ok(ended_by(signal)),
                };
            match found {
                Ok(found) => {
                    (locks, now) = (found.locks, Now::read());
                    break;
                }
                // The store may come back; the last list stays on the screen.
                Err(error) if drawn => {
                    out.error_lines(&error);
                    shown = (Vec::new(), (0, 0));
                }
                Err(error) => {
                    drop(out.data(&json::line(&json::Failed::new(&error, exit::of(&error)))));
                }
            }
        }
    }
}

/// Returns the status after a signal. A signal from the terminal ends dlock as it ends other
/// programs.
fn ended_by(signal: Signal) -> u8 {
    if signal.from_terminal {
        reraise(signal.number);
    }
    exit::signalled(signal.number)
}

/// Returns the result of [`read_locks`], or the signal that came before the store answered.
async fn read_locks_or_signal(
    signals: Option<&mut Signals>,
    settings: &ListSettings,
    backend: &mut dyn Backend,
    context: &Context,
) -> std::result::Result<Result<Found>, Signal> {
    let stop = async {
        match signals {
            Some(signals) => interrupted(signals).await,
            None => pending().await,
        }
    };
    tokio::select! {
        biased;
        signal = stop => Err(signal),
        found = read_locks(settings, backend, context) => Ok(found),
    }
}

/// Shows every key that the store knows.
async fn all(settings: &ListSettings, backend: &mut dyn Backend, context: &Context) -> Result<u8> {
    let summary = |known: KnownKey, now: &Now| {
        let skips = known.skips.iter().map(|skips| skips.count).sum();
        let one = Summary::new(known.key, &known.runs, skips, now);
        let chosen = one
            .last
            .as_ref()
            .map_or(settings.choice == Choice::default(), |run| {
                settings.choice.matches_run(run, now)
            });
        Some(one).filter(|_| chosen)
    };
    let mut keys = overview::each(backend, &settings.start, context, summary).await?;
    keys.sort_by(|a, b| a.key.cmp(&b.key));
    context.tell(backend);
    let (out, now) = (&context.out, Now::read());
    if out.is_json() {
        return Ok(out.finish(
            out.json(&json::KnownKeys::new(&keys, &backend.identity().url)),
            exit::OK,
        ));
    }
    if keys.is_empty() {
        if out.attended() {
            out.notice("no such key is known");
        }
        return Ok(exit::OK);
    }
    Ok(out.finish(
        out.data(&output::overview::view(&keys, &now, out.table_style())),
        exit::OK,
    ))
}

fn once(
    locks: &[LockView],
    no_such_host: Option<(String, String)>,
    store: &str,
    context: &Context,
) -> u8 {
    let out = &context.out;
    if out.is_json() {
        return out.finish(
            out.json(&json::ListReport::new(locks, store, &Now::read())),
            exit::OK,
        );
    }
    if locks.is_empty() {
        match no_such_host {
            _ if !out.attended() => {}
            Some((text, hint)) => out.notice_with_hint(&text, &hint),
            None => out.notice("no lock is held"),
        }
        return exit::OK;
    }
    out.finish(
        out.data(&list::view(locks, &Now::read(), out.table_style())),
        exit::OK,
    )
}
