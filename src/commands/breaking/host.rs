//! `dlock break --host`: take all locks away from a host, usually a dead one.

use std::future::pending;

use futures_util::stream::{self, StreamExt as _};

use super::super::{Context, consent, interrupted, open, similar};
use crate::{
    exit,
    lease::{self, BootClock, BreakOutcome, BreakRequest, ask_long},
    lock::{Break, Error, Fence, Holder, Key, Kind, Result},
    output::{Output, described, fence, json},
    supervise::{Signals, reraise},
};

/// The most holds that are broken at the same time, each by a separate client.
const TOGETHER: usize = 16;

/// A hold, and the result of breaking it, once known.
pub type HoldOutcome<'a> = (&'a Key, Fence, Option<Result<&'static str>>);

/// The validated settings of `dlock break --host`.
#[derive(Clone, Debug)]
pub struct HostSettings {
    /// The host whose holds are broken.
    pub host: String,
    /// The operator's reason.
    pub reason: Option<String>,
    /// Whether to skip the confirmation.
    pub yes: bool,
    /// Whether to break without waiting for the holders.
    pub now: bool,
}

/// Breaks all holds of the host.
///
/// # Errors
/// The store's error, and an incomplete decision.
pub async fn run(settings: HostSettings, context: &Context) -> Result<u8> {
    let out = &context.out;
    let host = crate::lock::printable(&settings.host).into_owned();
    let to_ask = consent::check_for(
        (settings.yes, settings.reason.as_deref()),
        "break them",
        context,
    )
    .map_err(|error| match error.hint {
        None => error.hint("--yes --reason TEXT breaks them without asking"),
        Some(_) => error,
    })?;
    let mut signals = Signals::new()
        .map_err(|error| Error::new(Kind::Internal, "signals can't be watched").source(error))?;
    let mut backend = open(context);
    let states = ask_long(
        &mut *backend,
        &BootClock,
        context.limits(),
        ("break", None),
        async |b, progress| b.list("", progress).await,
    )
    .await?;
    context.tell(&mut *backend);
    let of_host = |holder: &Holder| {
        holder
            .metadata
            .as_ref()
            .and_then(|metadata| metadata.host.as_ref())
            == Some(&settings.host)
    };
    let no_hold = similar::no_hold_of(&settings.host, &states);
    let mut holds: Vec<(Key, Holder, Fence)> = Vec::new();
    for state in states {
        let ours = state.holders.into_iter().filter(of_host);
        holds.extend(
            ours.filter_map(|holder| Some((state.key.clone(), holder.fence?, holder)))
                .map(|(key, fence, holder)| (key, holder, fence)),
        );
    }
    let no_hold = Some(no_hold).filter(|_| holds.is_empty());
    let store = backend.identity().url;
    match no_hold {
        _ if out.is_json() => {}
        Some((text, hint)) => out.warn_with_hint(&text, &hint),
        None => show(&host, &holds, out),
    }
    if to_ask && !holds.is_empty() {
        let them = if holds.len() == 1 {
            "it"
        } else {
            "all of them"
        };
        let consequence = if settings.now {
            " Commands of theirs may still run, next to those of the next holders."
        } else {
            ""
        };
        if !consent::agreed(&format!("break {them}?{consequence}"))? {
            out.notice("not broken");
            return Ok(exit::NOT_HELD);
        }
    }
    let mark = Break::new(consent::here(), settings.reason.clone());
    let mut outcomes: Vec<HoldOutcome<'_>> = holds
        .iter()
        .map(|(key, _, number)| (key, *number, None))
        .collect();
    let mut status = if holds.is_empty() {
        exit::NOT_HELD
    } else {
        exit::OK
    };
    let signal = {
        let work = holds
            .iter()
            .enumerate()
            .map(async |(at, hold)| (at, break_one(hold, &mark, settings.now, context).await));
        let mut work = stream::iter(work).buffer_unordered(TOGETHER);
        let stop = interrupted(&mut signals);
        tokio::pin!(stop);
        loop {
            let (at, broken) = tokio::select! {
                biased;
                signal = &mut stop => break Some(signal),
                done = work.next() => match done {
                    Some(done) => done,
                    None => break None,
                },
            };
            if let Err(error) = &broken {
                status = exit::of(error);
            }
            tell(&holds[at].0, &broken, context);
            outcomes[at].2 = Some(broken);
        }
    };
    if let Some(signal) = signal {
        status = exit::signalled(signal.number);
        out.notice("the request to stop stays; dlock list tells which holders have not stopped");
    }
    let done = if out.is_json() {
        out.finish(
            out.json(&json::HostBroken::new(
                &settings.host,
                &store,
                &outcomes,
                status,
                signal.is_some(),
            )),
            status,
        )
    } else {
        status
    };
    if let Some(signal) = signal.filter(|signal| signal.from_terminal) {
        reraise(signal.number);
    }
    Ok(done)
}

/// Shows the holds of the host.
fn show(host: &str, holds: &[(Key, Holder, Fence)], out: &Output) {
    let what = if holds.len() == 1 {
        "1 hold".to_owned()
    } else {
        format!("{} holds", holds.len())
    };
    out.notice(&format!("{host} has {what}"));
    for (key, holder, number) in holds {
        out.notice(&format!(
            "  {}, fence {}: {}",
            key.escaped(),
            fence(*number, std::iter::empty()),
            described(holder)
        ));
    }
}

/// Reports the result for one hold.
fn tell(key: &Key, broken: &Result<&'static str>, context: &Context) {
    let out = &context.out;
    match broken {
        _ if out.is_json() => {}
        Ok("changed") => out.notice(&format!(
            "{}: the holder changed meanwhile: nothing was done",
            key.escaped()
        )),
        Ok(_) => out.notice(&format!("{}: broken", key.escaped())),
        Err(error) => out.error_lines(error),
    }
}

/// Breaks one hold with a separate client. Returns the result: `given_back`, `evicted` or
/// `changed`.
async fn break_one(
    (key, seen, fence): &(Key, Holder, Fence),
    mark: &Break,
    at_once: bool,
    context: &Context,
) -> Result<&'static str> {
    let mut backend = context.target.store.backend();
    let request = BreakRequest {
        key,
        seen,
        fence: *fence,
        mark,
        at_once,
    };
    let broken = lease::break_hold(
        &mut *backend,
        &BootClock,
        request,
        context.limits(),
        pending::<()>(),
        |_| {},
    )
    .await?;
    Ok(match broken {
        BreakOutcome::Over(_) => "given_back",
        BreakOutcome::Evicted => "evicted",
        BreakOutcome::Changed | BreakOutcome::Stopped(()) => "changed",
    })
}
