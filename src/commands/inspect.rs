//! `dlock inspect`: who holds a lock, since when, until when, and who waits.

use super::{Context, KeyArg};
use crate::{
    exit,
    lease::{BootClock, ask},
    lock::{Key, Result},
    output::{Now, inspect, json},
};

/// The arguments of `dlock inspect`.
#[derive(clap::Args, Debug)]
#[command(override_usage = "dlock inspect KEY [OPTIONS]", after_help = "Example:  dlock inspect nightly --json | jq .holders")]
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
    let state = ask(&mut *backend, &BootClock, context.limits, async |b| b.inspect(&settings.key).await)
        .await
        .map_err(|error| error.during("inspect").key(&settings.key))?;
    context.tell(&mut *backend);
    let out = &context.out;
    let now = Now::read();
    let written = if out.is_json() {
        out.json(&json::Inspected::new(&state, &backend.describe(), &now))
    } else {
        out.data(&inspect::view(&state, context.target.name.as_deref(), &backend.describe(), &now, out.look()))
    };
    Ok(out.finish(written, exit::OK))
}
