//! `dlock report`: a page of all jobs for a browser.

use std::path::PathBuf;

use super::{
    Context,
    consent::operator,
    overview::{self, KnownKey},
};
use crate::{
    exit,
    lock::{Result, plain},
    output::{
        Access, Now, json, replace,
        report::{self, Job},
    },
};

/// The arguments of `dlock report`.
#[derive(clap::Args, Debug)]
#[command(
    override_usage = "dlock report [START] [OPTIONS]",
    after_help = "One HTML file without scripts: of every key the last run, its usual length, the\nlast 20 runs and the skips. What failed, is late or is held comes first.\nExample:  */5 * * * *  dlock report --to /var/www/html/jobs.html"
)]
pub struct Args {
    /// Only keys that start with this, literally
    #[arg(value_name = "START")]
    pub start: Option<String>,
    /// Replace this file in one step, instead of printing the page
    #[arg(long, value_name = "FILE")]
    pub to: Option<PathBuf>,
}

/// The validated settings of `dlock report`.
#[derive(Clone, Debug)]
pub struct ReportSettings {
    /// The prefix of the keys to show; empty for all.
    pub start: String,
    /// The file to replace; `None` to print the page.
    pub to: Option<PathBuf>,
}

/// Writes the page.
///
/// # Errors
/// The store's error; the old file is unchanged then.
pub async fn run(settings: ReportSettings, context: &Context) -> Result<u8> {
    let mut backend = super::open(context);
    let job = |KnownKey {
                   key, runs, skips, ..
               }: KnownKey,
               now: &Now| Some(Job::new(key, &runs, skips, now));
    let jobs = overview::each(&mut *backend, &settings.start, context, job).await?;
    context.tell(&mut *backend);
    let url = &backend.identity().url;
    let page = report::page(jobs, url, &operator(context), &Now::read());
    let out = &context.out;
    let Some(file) = settings.to else {
        let written = if out.is_json() {
            out.data(&json::line(&json::Printed::new(&page)))
        } else {
            out.data(&page)
        };
        return Ok(out.finish(written, exit::OK));
    };
    Ok(match replace(&file, Access::Public, &page) {
        Ok(()) => exit::OK,
        Err(error) => {
            let text = format!("{} can't be written: {}", file.display(), plain(&error));
            out.warn_with_hint(
                &text,
                "its folder must exist, and this user must be able to write to it",
            );
            exit::OUTPUT
        }
    })
}
