//! `dlock forget`: remove the run records of a lock that has no holder.
//!
//! dlock acquires the lock past its run policy, with records that deny no run, and releases it as
//! if no run had started. Every store does both steps atomically, so that no run begins between the
//! check and the removal.

use std::time::Duration;

use super::{Context, KeyArg, collect_metadata, consent, interrupted, stopped_by};
use crate::{
    exit,
    lease::{self, BootClock, Outcome, WaitPolicy, ask, wall_ms},
    lock::{
        Backend, End, Error, Key, Kind, Mode, ReleaseInfo, Request, Result, RunOutcome, RunPolicy,
        RunRecord, RunState, Scope, Ttl,
    },
    output::{self, Cause, Now, Skip, json},
    supervise::Signals,
};

/// The arguments of `dlock forget`.
#[derive(clap::Args, Debug)]
#[command(
    override_usage = "dlock forget KEY [OPTIONS]",
    after_help = "Skew guard, at-least, --once-per and --once use the records of earlier runs.\nWithout these records the next run starts as if it were the first. The history\nstays. A lock that has a holder is left alone.\nExample:  dlock forget nightly --yes --reason 'rerun after the fix'"
)]
pub struct Args {
    /// The key.
    #[command(flatten)]
    pub key: KeyArg,
    /// Why, for the history
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
    /// Do not ask
    #[arg(short, long)]
    pub yes: bool,
}

/// The validated settings of `dlock forget`.
#[derive(Clone, Debug)]
pub struct ForgetSettings {
    /// The lock's key.
    pub key: Key,
    /// The operator's reason.
    pub reason: Option<String>,
    /// Whether to skip the confirmation.
    pub yes: bool,
}

/// Removes the run records.
///
/// # Errors
/// The store's error, and an incomplete decision.
pub async fn run(settings: ForgetSettings, context: &Context) -> Result<u8> {
    let out = &context.out;
    let decision = (settings.yes, settings.reason.as_deref());
    let to_ask = consent::check(context, &settings.key, decision, "forget it").map_err(
        |error| match error.hint {
            None => error.hint("--yes --reason TEXT forgets it without asking"),
            Some(_) => error,
        },
    )?;
    let mut signals = Signals::new()
        .map_err(|error| Error::new(Kind::Internal, "signals can't be watched").source(error))?;
    let mut backend = super::open(context);
    let about = ("forget", Some(&settings.key));
    let record = ask(
        &mut *backend,
        &BootClock,
        context.limits(),
        about,
        async |b| b.history(&settings.key).await,
    )
    .await?
    .record;
    context.tell(&mut *backend);
    let store = backend.identity().url;
    if !keeps_any(&record) {
        if out.is_json() {
            return Ok(out.finish(
                out.json(&json::Forgotten::new(
                    &settings.key,
                    &store,
                    &RunRecord::default(),
                )),
                exit::OK,
            ));
        }
        out.notice(&format!(
            "{}: no run record keeps it from other runs",
            settings.key.escaped()
        ));
        return Ok(exit::OK);
    }
    if to_ask && !consent::agreed(&question(&settings.key, &record))? {
        out.notice(&format!("{}: not forgotten", settings.key.escaped()));
        return Ok(exit::NOT_HELD);
    }
    let request = request(&settings.key, &*backend, context);
    let stop = interrupted(&mut signals);
    let outcome = lease::acquire(
        &mut *backend,
        &BootClock,
        request.clone(),
        WaitPolicy::Try,
        context.limits(),
        stop,
        |_| {},
    )
    .await;
    match outcome.map_err(|error| error.during("forget"))? {
        Outcome::Granted(_) => {}
        Outcome::Busy(busy) => {
            return Ok(not_forgotten(
                &settings,
                &store,
                Cause::Busy(&busy),
                context,
            ));
        }
        // Only the record of a shared lock can deny this.
        Outcome::Denied(denial) => {
            let option = denial.rule.to_string();
            return Ok(not_forgotten(
                &settings,
                &store,
                Cause::Denied(&denial, &option),
                context,
            ));
        }
        Outcome::Stopped(signal) => return Ok(stopped_by(signal, &settings.key, out)),
    }
    let outcome = RunOutcome {
        by: Some(consent::operator(context)),
        why: settings.reason.clone(),
        ..RunOutcome::default()
    };
    let info = ReleaseInfo {
        end: Some(End::Forgotten),
        outcome: Some(outcome),
        run_state: Some(RunState::Cancelled),
        at_ms: Some(wall_ms()),
        ..Scope::Tree.into()
    };
    let release = async |b: &mut dyn Backend| b.release(&settings.key, &request.token, &info).await;
    ask(&mut *backend, &BootClock, context.limits(), about, release).await?;
    if out.is_json() {
        return Ok(out.finish(
            out.json(&json::Forgotten::new(&settings.key, &store, &record)),
            exit::OK,
        ));
    }
    out.notice(&format!(
        "{}: forgotten; the next run starts as if it were the first",
        settings.key.escaped()
    ));
    Ok(exit::OK)
}

fn not_forgotten(
    settings: &ForgetSettings,
    store: &str,
    cause: Cause<'_>,
    context: &Context,
) -> u8 {
    let skip = Skip {
        key: &settings.key,
        mode: Mode::Exclusive,
        cause,
        waited: Duration::ZERO,
        outcome: "not forgotten",
    };
    context.out.busy(&skip, store, exit::BUSY)
}

/// Whether the record could deny a run.
fn keeps_any(record: &RunRecord) -> bool {
    let now = Now::read().unix_ms();
    record.current_denial(now).is_some()
        || record
            .start
            .as_ref()
            .is_some_and(|start| start.state != RunState::Cancelled)
}

/// Returns the question for the terminal.
fn question(key: &Key, record: &RunRecord) -> String {
    let metadata = record
        .start
        .as_ref()
        .map(|start| &start.metadata)
        .or(record.cooldown.as_ref().map(|cooldown| &cooldown.metadata));
    let who = metadata
        .and_then(|metadata| output::user_at_host(metadata.as_ref()))
        .map(|who| format!(" of {who}"))
        .unwrap_or_default();
    let at = record
        .start
        .as_ref()
        .map(|start| start.at_ms)
        .or(record.cooldown.as_ref().map(|cooldown| cooldown.at_ms));
    let when = at
        .map(|at| format!(", started {}", Now::read().moment(at)))
        .unwrap_or_default();
    format!(
        "forget the run{who} that keeps {} from others{when}?",
        key.escaped()
    )
}

fn request(key: &Key, backend: &dyn Backend, context: &Context) -> Request {
    let us = collect_metadata(context.host.as_deref(), Some("dlock forget".as_ref()), None);
    let ttl = backend.identity().capabilities.clamp_ttl(Ttl::DEFAULT);
    let run_policy = Some(RunPolicy::forgetting(us.place()));
    Request {
        run_policy,
        metadata: Some(us),
        ttl_asked: false,
        at_ms: Some(wall_ms()),
        ..Request::new(key.clone(), ttl)
    }
}
