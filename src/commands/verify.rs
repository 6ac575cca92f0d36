//! `dlock verify`: whether a token still holds a lock, and for how long.

use super::{Context, KeyArg, TokenArg};
use crate::{
    exit,
    lease::{BootClock, Held, ask},
    lock::{Backend, Intent, Key, Renewal, Result, Token},
    output::{age, json},
};

/// The arguments of `dlock verify`.
#[derive(clap::Args, Debug)]
#[command(
    override_usage = "dlock verify KEY [--token T] [OPTIONS]",
    after_help = "Without --token: whether a `dlock run` that this process runs under holds KEY.\nWithout both, they are taken from DLOCK_KEY and DLOCK_TOKEN. The status is 0 if\nit is held, else 77.\nExample:\n  dlock verify -qk deploy || exec dlock run -k deploy -w 10m -- \"$0\" \"$@\""
)]
pub struct Args {
    /// The key.
    #[command(flatten)]
    pub key: KeyArg,
    /// The token.
    #[command(flatten)]
    pub token: TokenArg,
}

/// The validated settings of `dlock verify`.
#[derive(Clone, Debug)]
pub struct VerifySettings {
    /// The lock's key.
    pub key: Key,
    /// The token to check; `None` for the token of the innermost `dlock run` of the key around this
    /// process.
    pub token: Option<Token>,
    /// The holds of this process's ancestors.
    pub held: Held,
}

/// Asks the store whether the token holds the lock.
///
/// # Errors
/// The store's error: then it is unknown whether the lock is held.
pub async fn run(settings: VerifySettings, context: &Context) -> Result<u8> {
    let mut backend = super::open(context);
    let (out, key) = (&context.out, &settings.key);
    let Some(token) = settings
        .token
        .or_else(|| settings.held.find(backend.identity().fingerprint, key))
    else {
        return Ok(out.not_verified(
            key,
            &backend.identity().url,
            "no dlock run around this process holds this lock",
        ));
    };
    let question =
        async |backend: &mut dyn Backend| backend.renew(key, &token, Intent::Probe).await;
    let answer = ask(
        &mut *backend,
        &BootClock,
        context.limits(),
        ("verify", Some(key)),
        question,
    )
    .await?;
    context.tell(&mut *backend);
    match answer {
        Renewal::Kept { expires_in } if out.is_json() => Ok(out.finish(
            out.json(&json::Verified::new(
                key,
                &backend.identity().url,
                expires_in,
            )),
            exit::OK,
        )),
        Renewal::Kept { expires_in } => {
            if out.attended() {
                let left = expires_in
                    .map(|left| format!(", expires in {} unless it is renewed", age(left)))
                    .unwrap_or_default();
                out.notice(&format!("{}: held{left}", key.escaped()));
            }
            Ok(exit::OK)
        }
        _ => Ok(out.not_verified(
            key,
            &backend.identity().url,
            "the token does not hold this lock",
        )),
    }
}
