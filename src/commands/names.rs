//! `dlock names`: the stored name of a lock, and the name that other lock libraries need for the
//! same lock.

use super::{Context, KeyArg};
use crate::{
    exit,
    lock::{Key, Result},
    output::{json, names},
};

/// The arguments of `dlock names`.
#[derive(clap::Args, Debug)]
#[command(
    override_usage = "dlock names KEY [OPTIONS]",
    after_help = "The store is not asked. --namespace '' stores the lock under the key itself, as\nother programs do. More: man dlock-interop\nExample:  dlock names sms-job --namespace ''"
)]
pub struct Args {
    /// The key.
    #[command(flatten)]
    pub key: KeyArg,
}

/// The validated settings of `dlock names`.
#[derive(Clone, Debug)]
pub struct NamesSettings {
    /// The lock's key.
    pub key: Key,
}

/// Shows the stored name, the name for each library, and how to test that they exclude each other.
/// Without I/O.
///
/// # Errors
/// If the key has no name in this namespace.
pub fn run(settings: &NamesSettings, context: &Context) -> Result<u8> {
    let (key, out) = (&settings.key, &context.out);
    let sharing = context.target.store.sharing(key)?;
    let url = context.target.store.backend().identity().url;
    let written = if out.is_json() {
        out.json(&json::NamesReport::new(key, &url, &sharing))
    } else {
        out.data(&names::view(
            key,
            context.target.name.as_deref(),
            &url,
            &sharing,
            out.table_style(),
        ))
    };
    Ok(out.finish(written, exit::OK))
}
