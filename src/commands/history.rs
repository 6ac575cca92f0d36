//! `dlock history`: the holders of a lock, when they held it, and how each hold ended.

use std::{cell::RefCell, collections::BTreeSet};

use super::{
    Context, KeyArg,
    overview::{self, Choice, ChoiceArgs, KnownKey},
    similar,
};
use crate::{
    exit,
    lease::{BootClock, ask},
    lock::{Backend, Error, Key, Kind, Result},
    output::{
        self, Now,
        history::{self, RunOf},
        json, timeline,
    },
};

/// The arguments of `dlock history`.
#[derive(clap::Args, Debug)]
#[command(
    override_usage = "dlock history [KEY] [OPTIONS]",
    after_help = "The store remembers the last 100 runs, the last 100 that ended badly, and how\noften each host skipped. Without a key, the runs of all keys are shown.\n--host NAME shows the runs of one host.\nExample:  dlock history nightly --timeline"
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
    /// Which runs.
    #[command(flatten)]
    pub choice: ChoiceArgs,
}

/// The validated settings of `dlock history`.
#[derive(Clone, Debug)]
pub struct HistorySettings {
    /// The lock's key; `None` for all keys.
    pub key: Option<Key>,
    /// The most runs to show; `None` for the default number.
    pub last: Option<u32>,
    /// Whether to draw a timeline.
    pub timeline: bool,
    /// Which runs.
    pub choice: Choice,
}

/// The default number of runs to show.
const USUAL: usize = 20;

/// Shows the history, with the current hold as the latest run.
///
/// # Errors
/// The store's error.
pub async fn run(settings: HistorySettings, context: &Context) -> Result<u8> {
    let mut backend = super::open(context);
    let last = settings
        .last
        .map(|last| usize::try_from(last).unwrap_or(usize::MAX));
    if settings.key.is_none() && settings.timeline {
        return Err(Error::new(Kind::Usage, "--timeline is for one key")
            .hint("dlock history KEY --timeline draws its hosts against time"));
    }
    let Some(key) = &settings.key else {
        return all(&settings.choice, last, &mut *backend, context).await;
    };
    let about = ("history", Some(key));
    // Query the history last: a hold that ends in between then appears in the history.
    let state = ask(
        &mut *backend,
        &BootClock,
        context.limits(),
        about,
        async |b| b.inspect(key).await,
    )
    .await?;
    let past = ask(
        &mut *backend,
        &BootClock,
        context.limits(),
        about,
        async |b| b.history(key).await,
    )
    .await?;
    context.tell(&mut *backend);
    let out = &context.out;
    let now = Now::read();
    let (mut runs, record) = (history::runs(&state, past.past, &now), past.record);
    let hosts: BTreeSet<String> = runs.iter().filter_map(host_of).collect();
    let none = if runs.is_empty() {
        history::NONE
    } else {
        history::NONE_SUCH
    };
    runs.retain(|run| settings.choice.matches_run(run, &now));
    let written = if out.is_json() {
        let shown = &runs[..runs.len().min(last.unwrap_or(usize::MAX))];
        out.json(&json::Remembered::new(
            key,
            &backend.identity().url,
            shown,
            &record,
            &past.skips,
        ))
    } else if settings.timeline {
        out.data(&timeline::view(
            (&runs, none),
            last.unwrap_or(usize::MAX),
            &past.skips,
            &now,
            out.table_style(),
        ))
    } else {
        out.data(&history::view(
            (&runs, none),
            last.unwrap_or(USUAL),
            &record,
            &past.skips,
            &now,
            out.table_style(),
        ))
    };
    if !past.skips.is_empty() && !settings.timeline {
        out.tip("journalctl -t dlock on a host has each of its skips");
    }
    if similar::is_blank(&state) && none == history::NONE && past.skips.is_empty() {
        similar::tell_of_unknown(key, &mut *backend, context).await;
    } else if let Some(host) = &settings.choice.host {
        similar::tell_of_unknown_host(host, &hosts, out);
    }
    Ok(out.finish(written, exit::OK))
}

fn host_of(run: &RunOf) -> Option<String> {
    run.metadata.as_ref()?.host.clone()
}

/// Shows the runs of all keys.
async fn all(
    choice: &Choice,
    last: Option<usize>,
    backend: &mut dyn Backend,
    context: &Context,
) -> Result<u8> {
    let hosts = RefCell::new(BTreeSet::new());
    let chosen = |KnownKey { key, runs, .. }: KnownKey, now: &Now| {
        if choice.host.is_some() {
            hosts.borrow_mut().extend(runs.iter().filter_map(host_of));
        }
        let chosen = runs.into_iter().filter(|run| choice.matches_run(run, now));
        Some(chosen.map(|run| (key.clone(), run)).collect::<Vec<_>>())
    };
    let mut runs: Vec<(Key, RunOf)> = overview::each(backend, "", context, chosen)
        .await?
        .into_iter()
        .flatten()
        .collect();
    context.tell(backend);
    runs.sort_by(|(one, a), (other, b)| {
        b.started_ms
            .cmp(&a.started_ms)
            .then_with(|| one.cmp(other))
            .then_with(|| b.fence.cmp(&a.fence))
    });
    let (out, now) = (&context.out, Now::read());
    let written = if out.is_json() {
        runs.truncate(last.unwrap_or(usize::MAX));
        out.json(&json::AllRuns::new(&runs, &backend.identity().url))
    } else {
        out.data(&output::overview::runs(
            &runs,
            last.unwrap_or(USUAL),
            &now,
            out.table_style(),
        ))
    };
    if let Some(host) = &choice.host {
        similar::tell_of_unknown_host(host, &hosts.borrow(), out);
    }
    Ok(out.finish(written, exit::OK))
}
