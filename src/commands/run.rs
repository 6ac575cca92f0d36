//! `dlock run`: take a lock, run a command under it, keep renewing, release.

mod ends;
mod events;
mod job;
mod outcome;
mod policy;
mod releasing;
mod unstartable;
mod watch;

use std::{ffi::OsString, io, iter, time::Duration};

pub use self::policy::{Frequency, PolicyArgs, PolicySettings, RepeatRule};
use clap::builder::PossibleValuesParser;

use self::{
    events::Events,
    job::{FinishedRun, Job},
};
use super::{Context, TakingArgs};
use crate::{
    exit,
    lease::{Budget, Claim, Held, WaitPolicy, in_order},
    lock::{
        Backend, Capabilities, Entry, Error, Key, Kind, LastResort, Metadata, Mode, Request,
        Result, Token, Ttl, length, plain,
    },
    output::{MetricsFile, Output, RunResult, StatusFile, Syslog, SyslogPolicy, Verdict},
    supervise::{self, CapturedOutput, Contain, Leftover, OnLost, Plan, Signals, fork_guardian},
};

/// The arguments of `dlock run`.
#[derive(clap::Args, Debug)]
#[command(
    override_usage = "dlock run -k KEY [OPTIONS] -- COMMAND [ARG]...",
    after_help = "--once: a job that runs only once. -E N: the status of a skip [75].\nExample:  dlock run -k deploy -w 5m --ttl 2m -- ./deploy.sh"
)]
#[allow(clippy::struct_excessive_bools)] // flags
pub struct Args {
    /// The lock's name; -k again for more, all or none
    #[arg(short, long, value_name = "KEY")]
    pub key: Vec<OsString>,
    /// How it is taken.
    #[command(flatten)]
    pub taking: TakingArgs,
    /// The TTL of the lease; dlock renews it [60s]
    #[arg(long, value_name = "D", allow_negative_numbers = true)]
    pub ttl: Option<String>,
    /// Time between TERM and KILL [10s]
    #[arg(
        long,
        value_name = "D",
        allow_negative_numbers = true,
        hide_short_help = true
    )]
    pub grace: Option<String>,
    /// Stop the command after D; status 124
    #[arg(long, value_name = "D", allow_negative_numbers = true)]
    pub max_runtime: Option<String>,
    /// What cron needs.
    #[command(flatten)]
    pub policy: PolicyArgs,
    /// A line for /bin/sh to run instead of COMMAND
    #[arg(short = 'c', value_name = "STRING", allow_hyphen_values = true)]
    pub shell: Option<OsString>,
    /// A note that inspect and list show
    #[arg(long, value_name = "TEXT", hide_short_help = true)]
    pub describe: Option<String>,
    /// Write how it ended to a file, as JSON
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub status_file: Option<String>,
    /// Count this run in a file for Prometheus' textfile collector (*.prom)
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub metrics_file: Option<String>,
    /// A line for /bin/sh, run for each event of the run with a JSON object on its stdin
    #[arg(long, value_name = "CMD", hide_short_help = true)]
    pub on_event: Option<String>,
    /// If the lock is lost: kill, signal:SIG before the KILL, or continue [kill]
    #[arg(long, value_name = "ACTION", hide_short_help = true)]
    pub on_lost: Option<String>,
    /// Processes that outlive the command: wait for them, kill them, or leave them [wait]
    #[arg(long, value_name = "HOW", value_parser = PossibleValuesParser::new(["wait", "kill", "leave"]), hide_short_help = true)]
    pub leftover: Option<String>,
    /// How the command's processes are kept together [auto]
    #[arg(long, value_name = "HOW", value_parser = PossibleValuesParser::new(["auto", "group", "cgroup"]), hide_short_help = true)]
    pub contain: Option<String>,
    /// Store no host, user or command
    #[arg(long, hide_short_help = true)]
    pub no_metadata: bool,
    /// Refuse to enter the lock of a `dlock run` of the same key around this one
    #[arg(long, hide_short_help = true)]
    pub no_reentrant: bool,
    /// Lines for syslog; auto: only if stderr is no terminal [auto]
    #[arg(long, value_name = "WHEN", value_parser = PossibleValuesParser::new(["auto", "off", "json"]), hide_short_help = true)]
    pub log: Option<String>,
    /// The command and its arguments, untouched
    #[arg(
        value_name = "COMMAND",
        trailing_var_arg = true,
        hide_short_help = true
    )]
    pub command: Vec<OsString>,
}

/// The validated settings of `dlock run`.
#[derive(Clone, Debug)]
#[allow(clippy::struct_excessive_bools)] // independent wishes
pub struct RunSettings {
    /// The job's own lock, which identifies the job.
    pub key: Key,
    /// Further locks that the job needs, distinct. dlock acquires all of them with `key`, or none.
    pub also: Vec<Key>,
    /// The mode of all locks.
    pub mode: Mode,
    /// Whether the waiter uses the fair queue.
    pub fair: bool,
    /// The command: a program and its arguments. `-c STRING` is stored as `/bin/sh -c STRING`.
    pub command: Vec<OsString>,
    /// The requested TTL; `None` for the default, which the backend may clamp to its range.
    pub ttl: Option<Ttl>,
    /// The requested grace, which fits the TTL.
    pub grace: Option<Duration>,
    /// How long the command may run.
    pub max_runtime: Option<Duration>,
    /// The policy for successive runs.
    pub policy: PolicySettings,
    /// How long to wait for the locks.
    pub wait_policy: WaitPolicy,
    /// Whether `-n` was given.
    pub nonblock: bool,
    /// The status when the lock is busy.
    pub conflict_status: u8,
    /// The status when another run has done the work.
    pub done_status: u8,
    /// What happens to the command when the lock is lost.
    pub on_lost: OnLost,
    /// What happens to processes that outlive the command.
    pub leftover: Leftover,
    /// How the tree's processes are tracked.
    pub contain: Contain,
    /// The note of the lease.
    pub describe: Option<String>,
    /// Whether the lease stores its holder's host, user and command.
    pub metadata: bool,
    /// Whether dlock may enter an ancestor's hold of the same lock.
    pub reentrant: bool,
    /// The file for the verdict.
    pub status_file: Option<StatusFile>,
    /// The file in which this run is counted.
    pub metrics_file: Option<MetricsFile>,
    /// The shell line that is run for each event.
    pub on_event: Option<String>,
    /// Which lines go to syslog.
    pub log: SyslogPolicy,
    /// The `DLOCK_*` variables that the command inherits: the ones that select the store.
    pub kept_variables: Vec<String>,
}

impl RunSettings {
    /// Returns the option that limits the runtime, as messages and the history name it.
    fn max_runtime(&self) -> String {
        format!(
            "max runtime {}",
            length(self.max_runtime.unwrap_or_default())
        )
    }
}

/// Runs the command under the lock, reports the result, and returns the exit status.
pub fn run(settings: &RunSettings, context: &Context) -> u8 {
    let out = &context.out;
    let backend = super::open(context);
    let store = backend.identity().url;
    let events = Events::new(settings, context, &store);
    let begun = settings
        .status_file
        .as_ref()
        .map_or(Ok(()), |file| file.begin(&events.progress.waiting(None)));
    let begun = begun.map_err(|error| unwritable_status(settings, &error));
    let FinishedRun {
        verdict,
        reraise,
        printed,
    } = begun
        .and_then(|()| attempt(settings, context, backend, &events))
        .unwrap_or_else(|error| {
            let error = context.explain(error);
            let verdict = Verdict::new(RunResult::Error, &settings.key, store, exit::of(&error));
            FinishedRun {
                verdict: Verdict {
                    error: Some(error),
                    ..verdict
                },
                reraise: None,
                printed: None,
            }
        });
    if let (RunResult::Error, Some(error), false) = (verdict.outcome, &verdict.error, out.is_json())
    {
        out.error_lines(error);
    }
    if let Some(file) = &settings.metrics_file
        && let Err(error) = file.ended(&verdict)
    {
        let text = format!(
            "{}: the metrics can't be written: {}",
            file.path().display(),
            plain(&error)
        );
        out.warn_with_hint(&text, &file.hint(&error));
        Syslog::default().warn_of(settings.log, out, &text);
    }
    events.over(&verdict);
    if let Some(printed) = printed.filter(|_| verdict.status != exit::OK) {
        show(&printed, settings, out);
    }
    out.verdict(&verdict);
    Syslog::default().report(settings.log, out, &verdict);
    if let Some(file) = &settings.status_file
        && let Err(error) = file.write(&verdict.json())
    {
        out.warn(&format!(
            "{}: the status can't be written: {}",
            file.path().display(),
            plain(&error)
        ));
    }
    events.finish(out);
    super::finish_printing();
    if let Some(signal) = reraise {
        supervise::reraise(signal);
    }
    verdict.status
}

/// Prints the captured output of a failed run's command. The locks are released already, so a slow
/// reader does no harm.
fn show(printed: &CapturedOutput, settings: &RunSettings, out: &Output) {
    supervise::unblock_signals();
    if printed.left_out > 0 {
        out.warn(&format!(
            "{}: the first {} bytes of the output are left out",
            settings.key.escaped(),
            printed.left_out
        ));
        super::finish_printing();
    }
    // A write error doesn't change the result of the run.
    let _ = out.bytes(&printed.tail);
}

/// Returns the warning that the status file describes an earlier run and can't be updated.
fn unwritable_status(settings: &RunSettings, error: &io::Error) -> Error {
    let path = settings
        .status_file
        .as_ref()
        .map(StatusFile::path)
        .unwrap_or_default();
    Error::new(
        Kind::Config,
        format!(
            "--status-file: {}: the file of an earlier run can't be replaced: {}",
            path.display(),
            plain(error)
        ),
    )
    .key(&settings.key)
    .hint("dlock must be able to write in its folder")
}

/// Returns the TTL in this store.
///
/// # Errors
/// As [`Capabilities::check_ttl`].
pub(super) fn ttl(settings: &RunSettings, capabilities: &Capabilities) -> Result<Ttl> {
    match settings.ttl {
        Some(ttl) => capabilities.check_ttl(ttl).map(|()| ttl),
        None => Ok(capabilities.clamp_ttl(Ttl::DEFAULT)),
    }
}

/// Returns the locks that this process runs under.
pub(super) fn held() -> Held {
    std::env::var(Held::VARIABLE)
        .map(|value| Held::parse(&value))
        .unwrap_or_default()
}

/// Returns the request for one of the run's locks; `outer` is the hold around this process.
///
/// # Errors
/// [`Kind::Usage`] if that hold must not be entered.
pub(super) fn request(
    settings: &RunSettings,
    key: &Key,
    outer: Option<Token>,
    ttl: Ttl,
) -> Result<Request> {
    if outer.is_some() && !settings.reentrant {
        let why = "this would deadlock: a `dlock run` around this one holds the lock";
        return Err(Error::new(Kind::Usage, why)
            .key(key)
            .hint("without --no-reentrant the lock is entered"));
    }
    Ok(Request {
        token: outer.map_or_else(Token::random, Token::nested),
        ttl_asked: settings.ttl.is_some(),
        mode: settings.mode,
        fair: settings.fair,
        entry: if outer.is_some() {
            Entry::Reenter
        } else {
            Entry::Fresh
        },
        ..Request::new(key.clone(), ttl)
    })
}

/// Checks first everything that needs no store, then forks the guardian, then runs the rest
/// asynchronously.
fn attempt(
    settings: &RunSettings,
    context: &Context,
    backend: Box<dyn Backend>,
    events: &Events<'_>,
) -> Result<FinishedRun> {
    let ttl = ttl(settings, backend.identity().capabilities)?;
    let budget = Budget::new(ttl, settings.grace, backend.identity().capabilities.pace)?;
    let held = held();
    let mut claims = Vec::new();
    let backends = iter::once(backend).chain(iter::repeat_with(|| context.target.store.backend()));
    for (key, backend) in iter::once(&settings.key)
        .chain(&settings.also)
        .zip(backends)
    {
        let outer = held.find(backend.identity().fingerprint, key);
        let request = request(settings, key, outer, ttl)?;
        backend.identity().capabilities.check(&request)?;
        claims.push(Claim { backend, request });
    }
    let plan = Plan {
        command: settings.command.clone(),
        on_lost: settings.on_lost,
        leftover: settings.leftover,
        contain: settings.contain,
        grace: budget.grace(),
        max_runtime: settings.max_runtime,
        kept_variables: settings.kept_variables.clone(),
        capture: context.out.only_on_failure,
    };
    plan.check()?;
    let resorts = claims
        .iter_mut()
        .map(|claim| prepare(&mut *claim.backend))
        .collect::<Result<Vec<_>>>()?;
    let guardian =
        fork_guardian(plan, all_of(resorts)).map_err(|error| cannot_supervise(&error))?;
    let program = settings.command.first().map(OsString::as_os_str);
    let us = super::collect_metadata(context.host.as_deref(), program, settings.describe.clone());
    let run_policy = settings.policy.run_policy(us.place());
    let anyway = settings.policy.anyway.clone();
    let metadata = match (settings.metadata, &anyway) {
        (true, _) => Some(Metadata { anyway, ..us }),
        (false, Some(_)) => Some(Metadata {
            anyway,
            ..Metadata::default()
        }),
        (false, None) => None,
    };
    for Claim { request, .. } in &mut claims {
        request.metadata.clone_from(&metadata);
        // Only the job's own lock carries the run policy; the other locks are resources.
        request.run_policy = run_policy.clone().filter(|_| request.key == settings.key);
    }
    in_order(&mut claims);
    super::block_on(async {
        let supervisor = guardian
            .attach()
            .map_err(|error| cannot_supervise(&error))?;
        let signals = Signals::new().map_err(|error| cannot_supervise(&error))?;
        events.begin();
        Job {
            settings,
            context,
            events,
            budget,
            held,
            supervisor,
            signals,
            metadata,
        }
        .run(claims)
        .await
    })
}

fn prepare(backend: &mut dyn Backend) -> Result<Option<LastResort>> {
    // Root's command may go on as another user, who could then keep or free any lock of root's.
    let command_keeps = !rustix::process::geteuid().is_root();
    backend
        .prepare(command_keeps)
        .map_err(|error| error.about("prepare", &backend.identity().url, None))
}

/// Combines the last resorts into one.
fn all_of(resorts: Vec<Option<LastResort>>) -> Option<LastResort> {
    let resorts: Vec<_> = resorts.into_iter().flatten().collect();
    (!resorts.is_empty())
        .then(|| Box::new(|| resorts.into_iter().for_each(|resort| resort())) as LastResort)
}

fn cannot_supervise(error: &io::Error) -> Error {
    Error::new(
        Kind::Unavailable,
        format!("the command can't be supervised: {}", plain(error)),
    )
    .hint("processes, descriptors or memory may have run out on this host")
}
