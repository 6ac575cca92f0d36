//! `dlock inspect`: the holders of a lock, since when and until when, and its waiters.

use super::{Context, KeyArg, breaking::listens, similar};
use crate::{
    exit,
    lease::{BootClock, ask},
    lock::{Backend, History, Key, LockState, Result, RunRecord},
    output::{LockView, Now, fence as fence_of, history, inspect, json, shell, usual::EarlierRuns},
};

/// The arguments of `dlock inspect`.
#[derive(clap::Args, Debug)]
#[command(
    override_usage = "dlock inspect KEY [OPTIONS]",
    after_help = "stored as: the lock's name in the store. dlock names KEY: how programs share it.\nExample:  dlock inspect nightly --json | jq .holders"
)]
pub struct Args {
    /// The key.
    #[command(flatten)]
    pub key: KeyArg,
}

/// The validated settings of `dlock inspect`.
#[derive(Clone, Debug)]
pub struct InspectSettings {
    /// The lock's key.
    pub key: Key,
}

/// Shows the lock, held or free.
///
/// # Errors
/// The store's error.
pub async fn run(settings: InspectSettings, context: &Context) -> Result<u8> {
    let mut backend = super::open(context);
    let question = async |backend: &mut dyn Backend| backend.inspect(&settings.key).await;
    let state = ask(
        &mut *backend,
        &BootClock,
        context.limits(),
        ("inspect", Some(&settings.key)),
        question,
    )
    .await?
    .in_order();
    let past = past(&mut *backend, &settings.key, context).await?;
    context.tell(&mut *backend);
    let out = &context.out;
    let now = Now::read();
    let earlier = EarlierRuns::of(&history::runs(&state, past.past, &now));
    let lock = LockView::with_record(state, past.record, &now);
    let written = if out.is_json() {
        out.json(&json::InspectReport::new(
            &lock,
            &earlier,
            &backend.identity().url,
            &now,
        ))
    } else {
        out.data(&inspect::view(
            &lock,
            &earlier,
            context.target.name.as_deref(),
            &backend.identity().url,
            &now,
            out.table_style(),
        ))
    };
    if let ([holder], true) = (&*lock.state.holders, written.is_ok())
        && let Some(fence) = holder
            .fence
            .filter(|_| holder.broken.is_none() && !holder.foreign)
    {
        let (key, fence) = (shell(&settings.key), fence_of(fence, std::iter::empty()));
        let fence = fence.trim_start_matches('…');
        out.tip(&if inspect::is_late(holder) {
            format!("if its host is dead, dlock break {key} --fence {fence} --now frees the lock at once")
        } else if listens(holder) {
            format!("dlock break {key} --fence {fence} asks its holder to stop")
        } else {
            format!(
                "dlock break {key} --fence {fence} --now takes it away; what uses its token runs on"
            )
        });
    }
    if similar::is_blank(&lock.state) {
        similar::tell_of_unknown(&settings.key, &mut *backend, context).await;
    }
    if lock.denial.is_some() {
        let key = shell(&settings.key);
        out.tip(&format!("dlock run --anyway --reason TEXT -k {key} ... runs past that; dlock forget {key} removes it"));
    }
    Ok(out.finish(written, exit::OK))
}

/// Returns the run records of a free lock, which may deny new runs.
///
/// # Errors
/// The store's error.
pub async fn record(
    backend: &mut dyn Backend,
    state: &LockState,
    context: &Context,
) -> Result<RunRecord> {
    if !state.holders.is_empty() {
        return Ok(RunRecord::default());
    }
    Ok(past(backend, &state.key, context).await?.record)
}

/// Returns the history of a lock; an empty one if the store keeps none.
async fn past(backend: &mut dyn Backend, key: &Key, context: &Context) -> Result<History> {
    if !backend.identity().capabilities.history {
        return Ok(History::default());
    }
    let question = async |backend: &mut dyn Backend| backend.history(key).await;
    let about = ("inspect", Some(key));
    ask(backend, &BootClock, context.limits(), about, question).await
}
