//! `dlock list`: every held lock.

mod reading;

use std::{future::pending, io::IsTerminal as _, time::Duration};

use clap::builder::PossibleValuesParser;

use self::reading::{Found, Listing, read};

use super::{
    Context, interrupted,
    overview::{Choice, ChoiceArgs},
};
use crate::{
    exit,
    lease::{BootClock, Clock as _},
    lock::{Backend, Error, Kind, Result},
    output::{Now, TableStyle, json, list, overview},
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
    /// Order by key, since, expires, wait or failed [key]
    #[arg(long, value_name = "BY", value_parser = PossibleValuesParser::new(["key", "since", "expires", "wait", "failed"]), hide_possible_values = true, hide_short_help = true)]
    pub sort: Option<String>,
    /// Only locks that are held for longer than this
    #[arg(long, value_name = "D")]
    pub held_longer_than: Option<String>,
    /// Every key that the store knows, with its last run
    #[arg(short, long, conflicts_with = "held_longer_than")]
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
    /// Longest hold first; of all keys, the last run first.
    Since,
    /// Earliest expiry first.
    Expires,
    /// Most waiters first.
    Wait,
    /// Of all keys: what failed first, then what is late.
    Failed,
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
    let Found {
        listing,
        unknown,
        no_such_host,
    } = match read_or_signal(signals.as_mut(), &settings, &mut *backend, context).await {
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
        None => Ok(once(
            &listing,
            no_such_host,
            &backend.identity().url,
            context,
        )),
        Some((pause, signals)) => {
            watch(&settings, listing, (pause, signals), &mut *backend, context).await
        }
    }
}

impl Listing {
    fn json(&self, store: &str, now: &Now) -> String {
        match self {
            Self::Held(locks) => json::line(&json::ListReport::new(locks, store, now)),
            Self::Known(keys) => json::line(&json::KnownKeys::new(keys, store)),
        }
    }

    /// Returns the table as the headings and the lines of each row; nothing without rows.
    fn groups(&self, now: &Now, style: TableStyle) -> Vec<Vec<String>> {
        match self {
            Self::Held(locks) => list::groups(locks, now, style),
            Self::Known(keys) => overview::groups(keys, now, style),
        }
    }

    /// Returns how much there is, in words.
    fn count(&self) -> String {
        match self {
            Self::Held(locks) => {
                let held = locks.iter().filter(|lock| lock.denial.is_none()).count();
                format!("{held} held")
            }
            Self::Known(keys) => {
                let failed = keys.iter().filter(|key| key.failed()).count();
                let late = keys.iter().filter(|key| key.late).count();
                format!("{} keys, {failed} failed, {late} late", keys.len())
            }
        }
    }
}

/// Shows the locks again and again, until a signal comes or the reader has left.
async fn watch(
    settings: &ListSettings,
    mut listing: Listing,
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
            let (count, table) = (listing.count(), listing.groups(&now, style));
            let screen = list::screen(&count, &table, &now, pause, height);
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
            out.data(&listing.json(&backend.identity().url, &now))
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
            let found = match read_or_signal(Some(&mut signals), settings, backend, context).await {
                Ok(found) => found,
                Err(signal) => return Ok(ended_by(signal)),
            };
            match found {
                Ok(found) => {
                    (listing, now) = (found.listing, Now::read());
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

/// Returns the result of [`read`], or the signal that came before the store answered.
async fn read_or_signal(
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
        found = read(settings, backend, context) => Ok(found),
    }
}

fn once(
    listing: &Listing,
    no_such_host: Option<(String, String)>,
    store: &str,
    context: &Context,
) -> u8 {
    let (out, now) = (&context.out, Now::read());
    if out.is_json() {
        return out.finish(out.data(&listing.json(store, &now)), exit::OK);
    }
    let table = listing.groups(&now, out.table_style()).concat();
    if !table.is_empty() {
        return out.finish(out.data(&(table.join("\n") + "\n")), exit::OK);
    }
    match (no_such_host, listing) {
        _ if !out.attended() => {}
        (Some((text, hint)), _) => out.notice_with_hint(&text, &hint),
        (None, Listing::Held(_)) => out.notice("no lock is held"),
        (None, Listing::Known(_)) => out.notice("no such key is known"),
    }
    exit::OK
}
