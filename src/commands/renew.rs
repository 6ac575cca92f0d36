//! `dlock renew`: extend the lease of a lock that was acquired.

use std::time::Duration;

use super::{Context, KeyArg, TokenArg};
use crate::{
    exit,
    lease::{BootClock, ask},
    lock::{Backend, Error, Intent, Key, Kind, Renewal, Result, Token, Ttl},
    output::{age, json},
};

/// The arguments of `dlock renew`.
#[derive(clap::Args, Debug)]
#[command(
    override_usage = "dlock renew KEY --token T [OPTIONS]",
    after_help = "Without KEY and --token, both are taken from DLOCK_KEY and DLOCK_TOKEN.\nExample:  dlock renew deploy --token \"$token\" --ttl 10m"
)]
pub struct Args {
    /// The key.
    #[command(flatten)]
    pub key: KeyArg,
    /// The token.
    #[command(flatten)]
    pub token: TokenArg,
    /// The lease from now on [the TTL that it was taken with]
    #[arg(long, value_name = "D", allow_negative_numbers = true)]
    pub ttl: Option<String>,
}

/// The validated settings of `dlock renew`.
#[derive(Clone, Debug)]
pub struct RenewSettings {
    /// The lock's key.
    pub key: Key,
    /// The token that holds the lock.
    pub token: Token,
    /// The new TTL; `None` for the TTL of the grant.
    pub ttl: Option<Ttl>,
}

/// Extends the lease.
///
/// # Errors
/// The store's error, and a TTL that would shorten the lease.
pub async fn run(settings: RenewSettings, context: &Context) -> Result<u8> {
    let mut backend = super::open(context);
    if let Some(ttl) = settings.ttl {
        backend
            .identity()
            .capabilities
            .check_new_ttl(ttl)
            .map_err(|error| error.key(&settings.key))?;
    }
    let intent = Intent::Extend(settings.ttl);
    let question = async |backend: &mut dyn Backend| {
        backend.renew(&settings.key, &settings.token, intent).await
    };
    let answer = ask(
        &mut *backend,
        &BootClock,
        context.limits(),
        ("renew", Some(&settings.key)),
        question,
    )
    .await?;
    let out = &context.out;
    let (left, fence) = match (answer, settings.ttl) {
        (Renewal::Renewed { ttl, fence }, _) => (ttl.get(), Some(fence)),
        // No TTL was requested, and the lease is already longer.
        (Renewal::Kept { expires_in }, None) => (expires_in.unwrap_or_default(), None),
        (Renewal::Kept { expires_in }, Some(_)) => {
            return Err(would_shorten(&settings.key, expires_in.unwrap_or_default()));
        }
        (Renewal::Broken(mark), _) => {
            return Ok(out.marked_broken(&settings.key, &backend.identity().url, &mark));
        }
        (Renewal::NotHeld, _) => return Ok(out.not_held(&settings.key, &backend.identity().url)),
    };
    if out.is_json() {
        return Ok(out.finish(
            out.json(&json::Renewed::new(
                &settings.key,
                &backend.identity().url,
                left,
                fence,
            )),
            exit::OK,
        ));
    }
    if out.attended() {
        out.notice(&format!(
            "{}: renewed, expires in {}",
            settings.key.escaped(),
            age(left)
        ));
    }
    Ok(exit::OK)
}

fn would_shorten(key: &Key, left: Duration) -> Error {
    Error::new(
        Kind::Usage,
        format!(
            "the lease still lasts {}, and a renewal never shortens it",
            age(left)
        ),
    )
    .during("renew")
    .key(key)
    .hint(format!(
        "--ttl {}s or more, or none; dlock release gives the lock back",
        left.as_secs() + 1
    ))
}
