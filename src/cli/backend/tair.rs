//! `tair://` and `tairs://`: a server with compare-and-swap commands.

use super::{Url, namespace, parameter, redis, redlock};
use crate::{
    cli::{args::Globals, layers::Layers},
    commands::{TairMode, TairOptions},
    lock::{Error, Result},
};

/// The parameters that Tair uses and plain Redis does not.
pub(super) const PARAMETERS: &[&str] = &["mode", "retry_delay"];

pub(super) fn resolve(
    globals: &Globals,
    url: Url,
    wrong: &dyn Fn(&str) -> Error,
    layers: &Layers<'_>,
) -> Result<TairOptions> {
    let mode = match parameter(layers, "mode") {
        None => TairMode::Plain,
        Some(setting) => match setting.text.as_str() {
            "plain" => TairMode::Plain,
            "version" => TairMode::Version,
            _ => return Err(setting.refuse("mode is plain or version")),
        },
    };
    let scheme = if url.scheme == "tairs" {
        "rediss"
    } else {
        "redis"
    };
    let server = redis(
        globals,
        Url {
            scheme: scheme.into(),
            ..url
        },
        wrong,
        layers,
    )?;
    let retry_delay = redlock::duration_parameter(layers, "retry_delay", TairOptions::RETRY_DELAY)?;
    Ok(TairOptions {
        server,
        mode,
        retry_delay,
        namespace: namespace(globals, layers)?,
    })
}
