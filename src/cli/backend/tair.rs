//! `tair://` and `tairs://`: a server that compares and writes in one command.

use super::{Url, extra, namespace, redis, redlock};
use crate::{
    cli::{args::Globals, layers::Layers},
    commands::{TairMode, TairOptions},
    lock::{Error, Result},
};

/// The parameters that these URLs have and plain ones don't.
pub(super) const ONLY: &[&str] = &["mode", "retry_delay"];

pub(super) fn resolve(globals: &Globals, url: Url, wrong: &dyn Fn(&str) -> Error, layers: &Layers<'_>) -> Result<TairOptions> {
    let mode = match extra(layers, "mode") {
        None => TairMode::Plain,
        Some(setting) => match setting.text.as_str() {
            "plain" => TairMode::Plain,
            "version" => TairMode::Version,
            _ => return Err(setting.refuse("mode is plain or version")),
        },
    };
    let scheme = if url.scheme == "tairs" { "rediss" } else { "redis" };
    let server = redis(globals, Url { scheme: scheme.into(), ..url }, wrong, layers)?;
    let retry_delay = redlock::length(layers, "retry_delay", TairOptions::RETRY_DELAY)?;
    Ok(TairOptions { server, mode, retry_delay, namespace: namespace(globals, layers)? })
}
