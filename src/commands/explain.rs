//! `dlock explain`: the expected outcome of a run, and the source of each of its settings.

use std::{ffi::OsStr, path::Path};

use super::{Context, collect_metadata, inspect, run, similar};
use crate::{
    exit,
    lease::{BootClock, WaitPolicy, ask},
    lock::{Backend, Intent, Key, LockState, Obstacle, Renewal, Result, Token},
    output::{
        Now,
        doctor::Source,
        explain::{self, Prediction},
        json,
    },
};

/// The arguments of `dlock explain`: those of `dlock run`.
#[derive(clap::Args, Debug)]
#[group(skip)]
#[command(
    override_usage = "dlock explain KEY [OPTIONS]\n       dlock explain -k KEY [OPTIONS OF RUN] -- COMMAND [ARG]...",
    after_help = "In a crontab, explain can stand in the place of run: it runs and takes nothing.\nExample:  dlock explain nightly"
)]
pub struct Args {
    /// Show the settings that are at their defaults too
    #[arg(long, hide_short_help = true)]
    pub all: bool,
    /// What the run would be given.
    #[command(flatten)]
    pub run: run::Args,
}

/// The validated settings of `dlock explain`.
#[derive(Clone, Debug)]
pub struct ExplainSettings {
    /// The run.
    pub run: run::RunSettings,
    /// The run's settings, with their sources.
    pub sources: Vec<Source>,
    /// Whether the text has the settings that are at their defaults.
    pub all: bool,
}

/// Shows the settings and the expected outcome.
///
/// # Errors
/// The store's error.
pub async fn run(settings: ExplainSettings, context: &Context) -> Result<u8> {
    let mut backend = super::open(context);
    let run = &settings.run;
    let mut would = Prediction::Run;
    let (mut stored_as, mut blank) = (String::new(), false);
    for key in std::iter::once(&run.key).chain(&run.also) {
        let question = async |b: &mut dyn Backend| b.inspect(key).await;
        let state = ask(
            &mut *backend,
            &BootClock,
            context.limits(),
            ("explain", Some(key)),
            question,
        )
        .await?
        .in_order();
        if *key == run.key {
            stored_as.clone_from(&state.stored_as);
            blank = similar::is_blank(&state);
        }
        if matches!(would, Prediction::Run) {
            would = judge(run, key, state, &mut *backend, context).await?;
        }
    }
    context.tell(&mut *backend);
    let (out, now, store) = (&context.out, Now::read(), backend.identity().url);
    let explained = explain::Explained {
        key: &run.key,
        name: context.target.name.as_deref(),
        store: &store,
        stored_as: &stored_as,
        would: &would,
        waits: run.wait_policy != WaitPolicy::Try,
        settings: &settings.sources,
        all: settings.all,
    };
    let written = if out.is_json() {
        out.json(&json::ExplainedReport::new(&explained, &now))
    } else {
        out.data(&explain::view(&explained, out.table_style()))
    };
    let status = out.finish(written, exit::OK);
    if blank && matches!(would, Prediction::Run) {
        similar::tell_of_unknown(&run.key, &mut *backend, context).await;
    }
    if let Some(program) = run
        .command
        .first()
        .and_then(|program| works_elsewhere(program))
    {
        let text = format!(
            "{}: {program} hands its work to another process, which goes on when the lock is lost",
            run.key.escaped()
        );
        out.warn_with_hint(
            &text,
            "man dlock-cron (WORK THAT RUNS ELSEWHERE) has a recipe for it",
        );
    }
    Ok(status)
}

/// Programs that let a daemon, a server or another host do their work.
const ELSEWHERE: [&str; 12] = [
    "ssh",
    "docker",
    "podman",
    "nerdctl",
    "kubectl",
    "systemd-run",
    "at",
    "batch",
    "psql",
    "mysql",
    "mariadb",
    "sqlcmd",
];

/// Returns the name of a program that dlock can't stop the work of.
pub(super) fn works_elsewhere(program: &OsStr) -> Option<&'static str> {
    let name = Path::new(program).file_name()?;
    ELSEWHERE.into_iter().find(|known| name == *known)
}

/// Returns the run's expected outcome for one of its locks. It uses the host's clock; the store
/// uses its own.
async fn judge(
    run: &run::RunSettings,
    key: &Key,
    state: LockState,
    backend: &mut dyn Backend,
    context: &Context,
) -> Result<Prediction> {
    let identity = backend.identity();
    let outer = run::held().find(identity.fingerprint, key);
    let ttl = run::ttl(run, identity.capabilities)?;
    let request = run::request(run, key, outer, ttl)?;
    identity.capabilities.check(&request)?;
    if let Some(token) = outer {
        let question =
            async |backend: &mut dyn Backend| backend.renew(key, &token, Intent::Probe).await;
        let asked = ("explain", Some(key));
        let answer = ask(backend, &BootClock, context.limits(), asked, question).await?;
        if let (Renewal::Kept { .. }, Some(own)) = (answer, state.holders.first()) {
            own.mode
                .check_nested(run.mode)
                .map_err(|error| error.key(key))?;
            return Ok(Prediction::Run);
        }
    }
    match state.obstacle(run.mode) {
        Some(Obstacle::Holders) => return Ok(Prediction::Held(key.clone(), state.holders)),
        Some(Obstacle::Waiter(waiter)) => {
            return Ok(Prediction::After(key.clone(), waiter.clone()));
        }
        None => {}
    }
    let record = inspect::record(backend, &state, context).await?;
    let place = collect_metadata(context.host.as_deref(), None, None).place();
    let mut run_policy = run.policy.run_policy(place).filter(|_| *key == run.key);
    if let Some(run_policy) = run_policy
        .as_mut()
        .filter(|_| run.wait_policy != WaitPolicy::Try)
    {
        run_policy.skew_guard = None;
    }
    let denial = record.judge(run_policy.as_ref(), &Token::random(), Now::read().unix_ms());
    Ok(denial.map_or(Prediction::Run, |denial| {
        let option = run.policy.option(denial.rule);
        Prediction::Denied(key.clone(), Box::new(denial), option)
    }))
}
