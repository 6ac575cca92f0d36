//! `dlock release`: release a lock that was acquired.

use super::{Context, KeyArg, TokenArg, breaking::BreakArgs};
use crate::{
    exit,
    lease::{BootClock, Released, release, wall_ms},
    lock::{Error, Key, Kind, ReleaseInfo, Result, Scope, Token},
    output::json,
};

/// The arguments of `dlock release`.
#[derive(clap::Args, Debug)]
#[command(
    override_usage = "dlock release KEY --token T [OPTIONS]",
    after_help = "Without KEY and --token, both are taken from DLOCK_KEY and DLOCK_TOKEN.\nExample:  dlock release deploy --token \"$token\""
)]
pub struct Args {
    /// The key.
    #[command(flatten)]
    pub key: KeyArg,
    /// The token.
    #[command(flatten)]
    pub token: TokenArg,
    /// Break the lock, as dlock break does
    #[arg(long, conflicts_with = "token")]
    pub force: bool,
    /// How.
    #[command(flatten)]
    pub how: BreakArgs,
}

/// The validated settings of `dlock release`.
#[derive(Clone, Debug)]
pub struct ReleaseSettings {
    /// The lock's key.
    pub key: Key,
    /// The token that holds the lock.
    pub token: Token,
}

/// Releases the lock.
///
/// # Errors
/// The token of a run, and the store's error. "Not held" after an attempt whose answer was lost is
/// such an error too: that attempt may have released the lock.
pub async fn run(settings: ReleaseSettings, context: &Context) -> Result<u8> {
    if settings.token.kept_by_run {
        return Err(Error::new(
            Kind::Usage,
            "this is the lock of a run: it ends with the run's command",
        )
        .key(&settings.key)
        .hint("end the command; dlock release is for locks that dlock acquire took"));
    }
    let mut backend = super::open(context);
    let out = &context.out;
    let info = ReleaseInfo {
        at_ms: Some(wall_ms()),
        ..Scope::Hold.into()
    };
    let holds = match release(
        &mut *backend,
        &BootClock,
        &settings.key,
        &settings.token,
        &info,
        context.limits(),
    )
    .await
    {
        Released::Free => 0,
        Released::StillHeld(holds) => holds,
        Released::NotHeld => return Ok(out.not_held(&settings.key, &backend.identity().url)),
        Released::Unknown(error) | Released::Untold(error) => return Err(error),
    };
    if out.is_json() {
        return Ok(out.finish(
            out.json(&json::Released::new(
                &settings.key,
                &backend.identity().url,
                holds,
            )),
            exit::OK,
        ));
    }
    if holds > 0 {
        out.notice(&format!(
            "{}: released, but {holds} more of the same owner's holds keep the lock",
            settings.key.escaped()
        ));
    }
    Ok(exit::OK)
}
