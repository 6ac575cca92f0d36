//! `dlock history`: who had a lock, when, and how it ended.

use super::{Context, KeyArg};
use crate::{
    exit,
    lease::{BootClock, ask},
    lock::{Key, Result},
    output::{Now, history, json},
};

/// The arguments of `dlock history`.
#[derive(clap::Args, Debug)]
#[command(
    override_usage = "dlock history KEY [OPTIONS]",
    after_help = "The store remembers the last 100 runs, the last 100 that ended badly, and how\noften each host skipped.\nExample:  dlock history nightly --timeline"
)]
pub struct Args {
    /// The key.
    #[command(flatten)]
    pub key: KeyArg,
    /// Show so many runs at most [20; all with --json]
    #[arg(short = 'n', long, value_name = "N")]
    pub last: Option<u32>,
    /// Draw hosts against time
    #[arg(long)]
    pub timeline: bool,
}

/// What `dlock history` is to do, checked.
#[derive(Clone, Debug)]
pub struct HistorySettings {
    /// Which lock.
    pub key: Key,
    /// How many runs at most; `None` for the usual number.
    pub last: Option<u32>,
    /// Drawn.
    pub timeline: bool,
}

/// How many runs people want to see.
const USUAL: usize = 20;

/// Shows the history, with the hold that goes on as its latest run.
///
/// # Errors
/// What kept the store from answering.
pub async fn run(settings: HistorySettings, context: &Context) -> Result<u8> {
    let mut backend = super::open(context);
    let about = ("history", Some(&settings.key));
    // The history last: what is over by then is told by it alone.
    let state = ask(&mut *backend, &BootClock, context.limits, about, async |b| b.inspect(&settings.key).await).await?;
    let past = ask(&mut *backend, &BootClock, context.limits, about, async |b| b.history(&settings.key).await).await?;
    context.tell(&mut *backend);
    let out = &context.out;
    let now = Now::read();
    let last = settings.last.map(|last| usize::try_from(last).unwrap_or(usize::MAX));
    let (runs, record) = (history::runs(&state, past.past, &now), past.record);
    let written = if out.is_json() {
        let shown = &runs[..runs.len().min(last.unwrap_or(usize::MAX))];
        out.json(&json::Remembered::new(&settings.key, &backend.identity().url, shown, &record, &past.skips))
    } else if settings.timeline {
        out.data(&history::timeline(&runs, last.unwrap_or(usize::MAX), &now, out.look()))
    } else {
        out.data(&history::view(&runs, last.unwrap_or(USUAL), &record, &past.skips, &now, out.look()))
    };
    Ok(out.finish(written, exit::OK))
}
