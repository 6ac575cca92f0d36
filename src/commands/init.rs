//! `dlock init`: create the schema that a store needs before it can keep locks.

use super::Context;
use crate::{
    exit,
    lease::{BootClock, ask},
    lock::{Init, Result},
    output::json,
};

/// The arguments of `dlock init`.
#[derive(clap::Args, Debug)]
#[command(
    override_usage = "dlock init [OPTIONS]",
    after_help = "May be repeated. Redis, etcd, ZooKeeper need none; SQLite does it on first use.\nExample:  dlock init -b prod"
)]
pub struct Args {
    /// Only show what would be done, in the store's language
    #[arg(long)]
    pub print: bool,
}

/// The validated settings of `dlock init`.
#[derive(Clone, Copy, Debug)]
pub struct InitSettings {
    /// Whether to print the statements without running them.
    pub print: bool,
}

/// Creates or upgrades the schema.
///
/// # Errors
/// The store's error.
pub async fn run(settings: InitSettings, context: &Context) -> Result<u8> {
    let mut backend = super::open(context);
    if settings.print {
        let out = &context.out;
        let (schema, store) = (context.target.store.schema(), backend.identity().url);
        if out.is_json() {
            return Ok(out.finish(out.json(&json::Schema::new(schema, &store)), exit::OK));
        }
        let Some(schema) = schema else {
            out.notice(&format!("{store}: this store needs nothing"));
            return Ok(exit::OK);
        };
        return Ok(out.finish(out.data(&schema), exit::OK));
    }
    let done = ask(
        &mut *backend,
        &BootClock,
        context.limits(),
        ("init", None),
        async |b| b.init().await,
    )
    .await?;
    context.tell(&mut *backend);
    let out = &context.out;
    if out.is_json() {
        return Ok(out.finish(
            out.json(&json::Initialized::new(done, &backend.identity().url)),
            exit::OK,
        ));
    }
    let text = match done {
        Init::NotNeeded => "this store needs nothing",
        Init::UpToDate => "it was there already",
        Init::Created => "created",
    };
    out.notice(&format!("{}: {text}", backend.identity().url));
    Ok(exit::OK)
}
