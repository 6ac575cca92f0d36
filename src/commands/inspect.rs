//! `dlock inspect`: who holds a lock, since when, until when, and who waits.

use super::{Context, KeyArg};
use crate::{
    exit,
    lease::{BootClock, ask},
    lock::{Backend, Key, Result},
    output::{Now, inspect, json, shell},
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

/// What `dlock inspect` is to do, checked.
#[derive(Clone, Debug)]
pub struct InspectSettings {
    /// Which lock.
    pub key: Key,
}

/// Shows the lock, held or free.
///
/// # Errors
/// What kept the store from answering.
pub async fn run(settings: InspectSettings, context: &Context) -> Result<u8> {
    let mut backend = super::open(context);
    let question = async |backend: &mut dyn Backend| backend.inspect(&settings.key).await;
    let state = ask(&mut *backend, &BootClock, context.limits, ("inspect", Some(&settings.key)), question).await?.in_order();
    context.tell(&mut *backend);
    let out = &context.out;
    let now = Now::read();
    let written = if out.is_json() {
        out.json(&json::Inspected::new(&state, &backend.identity().url, &now))
    } else {
        out.data(&inspect::view(&state, context.target.name.as_deref(), &backend.identity().url, &now, out.look()))
    };
    if let ([holder], true) = (&*state.holders, written.is_ok())
        && let Some(fence) = holder.fence.filter(|_| holder.broken.is_none())
    {
        out.tip(&format!("dlock break {} --fence {fence} asks its holder to stop", shell(&settings.key)));
    }
    Ok(out.finish(written, exit::OK))
}
