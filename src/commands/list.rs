//! `dlock list`: every held lock.

use super::Context;
use crate::{
    exit,
    lease::{BootClock, ask},
    lock::Result,
    output::{Now, json, list},
};

/// The arguments of `dlock list`.
#[derive(clap::Args, Debug)]
#[command(override_usage = "dlock list [START] [OPTIONS]", after_help = "Example:  dlock list nightly-")]
pub struct Args {
    /// Only locks whose names start with this, literally
    #[arg(value_name = "START")]
    pub start: Option<String>,
}

/// What `dlock list` is to do, checked.
#[derive(Clone, Debug)]
pub struct ListSettings {
    /// The start of the keys to be shown; empty for all.
    pub start: String,
}

/// Shows the held locks of the namespace, by key.
///
/// # Errors
/// What kept the store from answering.
pub async fn run(settings: ListSettings, context: &Context) -> Result<u8> {
    let mut backend = super::open(context);
    let locks = ask(&mut *backend, &BootClock, context.limits, async |b| b.list(&settings.start).await)
        .await
        .map_err(|error| error.during("list"))?;
    let out = &context.out;
    if out.is_json() {
        let written = out.json(&json::Listed::new(&locks, &backend.describe(), &Now::read()));
        return Ok(out.finish(written, exit::OK));
    }
    if locks.is_empty() {
        if out.attended() {
            out.notice("no lock is held");
        }
        return Ok(exit::OK);
    }
    Ok(out.finish(out.data(&list::view(&locks, out.look())), exit::OK))
}
