//! `dlock verify`: whether a token, or a host, still holds a lock, and for how long.

use std::time::Duration;

use super::{Context, KeyArg, TokenArg};
use crate::{
    exit,
    lease::{BootClock, Held, ask},
    lock::{Backend, Holder, Intent, Key, Renewal, Result, Token, printable},
    output::{Output, age, json},
};

/// The arguments of `dlock verify`.
#[derive(clap::Args, Debug)]
#[command(
    override_usage = "dlock verify KEY [--token T | --host NAME] [OPTIONS]",
    after_help = "Without --token: whether a `dlock run` that this process runs under holds KEY.\nWithout both, they are taken from DLOCK_KEY and DLOCK_TOKEN. The status is 0 if\nit is held, else 77. --host NAME: whether a holder has this name.\nExample:\n  dlock verify -qk deploy || exec dlock run -k deploy -w 10m -- \"$0\" \"$@\""
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
    /// The host that holds the lock, in place of a token.
    pub host: Option<String>,
}

/// Asks the store whether the token holds the lock.
///
/// # Errors
/// The store's error: then it is unknown whether the lock is held.
pub async fn run(settings: VerifySettings, context: &Context) -> Result<u8> {
    let mut backend = super::open(context);
    let (out, key) = (&context.out, &settings.key);
    if let Some(host) = &settings.host {
        return by_host(&mut *backend, key, host, context).await;
    }
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
        Renewal::Kept { expires_in } => Ok(held(key, &*backend, expires_in, out)),
        _ => Ok(out.not_verified(
            key,
            &backend.identity().url,
            "the token does not hold this lock",
        )),
    }
}

/// Asks the store whether a holder has this name.
async fn by_host(
    backend: &mut dyn Backend,
    key: &Key,
    host: &str,
    context: &Context,
) -> Result<u8> {
    let question = async |backend: &mut dyn Backend| backend.inspect(key).await;
    let about = ("verify", Some(key));
    let state = ask(backend, &BootClock, context.limits(), about, question).await?;
    context.tell(backend);
    let name = |holder: &Holder| holder.metadata.as_ref()?.host.clone();
    let found = state
        .holders
        .iter()
        .find(|holder| name(holder).as_deref() == Some(host));
    Ok(if let Some(holder) = found {
        held(key, backend, holder.expires_in, &context.out)
    } else {
        let why = format!("no holder is on {}", printable(host));
        let url = backend.identity().url;
        context.out.not_verified(key, &url, &why)
    })
}

/// Reports that the lock is held, and returns the exit status.
fn held(key: &Key, backend: &dyn Backend, expires_in: Option<Duration>, out: &Output) -> u8 {
    if out.is_json() {
        let url = backend.identity().url;
        let written = out.json(&json::Verified::new(key, &url, expires_in));
        return out.finish(written, exit::OK);
    }
    if out.attended() {
        let left = expires_in
            .map(|left| format!(", expires in {} unless it is renewed", age(left)))
            .unwrap_or_default();
        out.notice(&format!("{}: held{left}", key.escaped()));
    }
    exit::OK
}
