//! `dlock gc`: remove records that no lock has used for a long time.

use std::time::Duration;

use super::Context;
use crate::{
    exit,
    lease::{BootClock, ask_long},
    lock::{Backend, Progress, Result},
    output::json,
};

/// The arguments of `dlock gc`.
#[derive(clap::Args, Debug)]
#[command(
    override_usage = "dlock gc --older-than D [OPTIONS]",
    after_help = "A store keeps a record and a history for each key that was ever locked. Keys\nthat are made anew for each run, such as order numbers, need a gc now and then.\nFences stay strictly increasing. On Redis, Redlock and Tair records end by\nthemselves after 100 days; about 90 bytes per key stay, for its fences.\nOn etcd, which has no clock, unused records go after another D of disuse, and\ntheir history with the gc after that. A ShedLock node remembers which rows\nexist: with ?table= or an empty namespace nothing is removed from SQL tables,\nunless ?shedlock=no says that no ShedLock shares them.\nExample:  dlock gc --older-than 90d"
)]
pub struct Args {
    /// Remove records that were last used longer ago than D
    #[arg(long, value_name = "D", allow_negative_numbers = true)]
    pub older_than: Option<String>,
}

/// The validated settings of `dlock gc`.
#[derive(Clone, Debug)]
pub struct GcSettings {
    /// The minimum age since the last use, by the store's clock.
    pub older_than: Duration,
}

/// Removes the unused records.
///
/// # Errors
/// The store's error.
pub async fn run(settings: GcSettings, context: &Context) -> Result<u8> {
    let mut backend = super::open(context);
    let question = async |backend: &mut dyn Backend, progress: &Progress| {
        backend.collect(settings.older_than, progress).await
    };
    let removed = ask_long(
        &mut *backend,
        &BootClock,
        context.limits(),
        ("gc", None),
        question,
    )
    .await?;
    context.tell(&mut *backend);
    let out = &context.out;
    if out.is_json() {
        return Ok(out.finish(
            out.json(&json::Collected::new(
                removed.unwrap_or_default(),
                &backend.identity().url,
            )),
            exit::OK,
        ));
    }
    let Some(removed) = removed else {
        let url = backend.identity().url;
        out.notice(&format!("{url}: nothing to remove: records end by themselves, and about 90 bytes per key stay for its fences"));
        return Ok(exit::OK);
    };
    let locks = if removed == 1 { "lock" } else { "locks" };
    out.notice(&format!(
        "{}: removed {removed} unused {locks}",
        backend.identity().url
    ));
    Ok(exit::OK)
}
