//! `dlock gc`: remove what no lock has used for long.

use std::time::Duration;

use super::Context;
use crate::{
    exit,
    lease::{BootClock, ask},
    lock::Result,
    output::json,
};

/// The arguments of `dlock gc`.
#[derive(clap::Args, Debug)]
#[command(
    override_usage = "dlock gc --older-than D [OPTIONS]",
    after_help = "Only SQL stores keep anything. Fences stay strictly increasing.\nExample:  dlock gc --older-than 90d"
)]
pub struct Args {
    /// Remove what was last used longer ago than this
    #[arg(long, value_name = "D", allow_negative_numbers = true)]
    pub older_than: Option<String>,
}

/// What `dlock gc` is to do, checked.
#[derive(Clone, Debug)]
pub struct GcSettings {
    /// How long it must have been unused, by the store's clock.
    pub older_than: Duration,
}

/// Removes it.
///
/// # Errors
/// What kept the store from doing so, and stores that keep nothing.
pub async fn run(settings: GcSettings, context: &Context) -> Result<u8> {
    let mut backend = super::open(context);
    let removed = ask(&mut *backend, &BootClock, context.limits, async |b| b.collect(settings.older_than).await)
        .await
        .map_err(|error| error.during("gc"))?;
    context.tell(&mut *backend);
    let out = &context.out;
    if out.is_json() {
        return Ok(out.finish(out.json(&json::Collected::new(removed, &backend.describe())), exit::OK));
    }
    let locks = if removed == 1 { "lock" } else { "locks" };
    out.notice(&format!("{}: removed {removed} unused {locks}", backend.describe()));
    Ok(exit::OK)
}
