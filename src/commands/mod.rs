//! One file per subcommand: its arguments and one function.
//!
//! The commands parse no values: `cli` passes validated settings.

pub mod acquire;
pub mod breaking;
pub mod complete;
pub mod completions;
mod consent;
pub mod doctor;
mod error_context;
pub mod explain;
pub mod forget;
pub mod gc;
pub mod history;
pub mod hold;
pub mod init;
pub mod inspect;
mod key;
pub mod list;
pub mod man;
mod metadata;
pub mod names;
pub mod overview;
pub mod release;
pub mod renew;
pub mod report;
pub mod run;
mod similar;
mod take;
mod target;
pub mod verify;

use std::{
    future::Future,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

pub use key::{KeyArg, KeysArg, ModeArgs, TakingArgs, TokenArg, WantedArgs};
pub use metadata::{collect as collect_metadata, user as user_name};
pub use take::WantedLocks;
pub use target::Target;

use crate::{
    lease::{BootClock, Limits, Silence, WaitPolicy},
    lock::{Backend, Error, Key, Kind, Notice, Result, plain},
    output::{Output, Waiting, drain},
    supervise::{Signal, Signals, reraise, stop_self, unblock_signals},
};

/// How long the remaining output may take before a signal ends it.
const PROMPT: Duration = Duration::from_secs(2);
/// How much longer it may take until it is given up: who waits for dlock needs its status more than
/// the last lines.
const PATIENCE: Duration = Duration::from_secs(3);

/// The validated settings that all commands share.
#[derive(Debug)]
pub struct Context {
    /// The store.
    pub target: Target,
    /// How long the store may take to answer a request.
    pub answer: Duration,
    /// Whether the store currently leaves a request unanswered.
    pub silence: Silence,
    /// This host's name in leases, if it overrides the real one.
    pub host: Option<String>,
    /// The output of all messages and results.
    pub out: Output,
}

impl Context {
    /// Returns the time limit of the store, with [`Context::silence`] to record its silence.
    pub const fn limits(&self) -> Limits<'_> {
        Limits {
            answer: self.answer,
            silence: Some(&self.silence),
            answered: false,
        }
    }

    /// Prints the notices of a store's backend.
    pub fn tell(&self, backend: &mut dyn Backend) {
        for Notice {
            warning,
            text,
            hint,
        } in backend.notices()
        {
            if !warning && !self.out.is_verbose() {
                continue;
            }
            let text = format!("{}: {text}", backend.identity().url);
            match hint {
                Some(hint) => self.out.warn_with_hint(&text, &hint),
                None => self.out.warn(&text),
            }
        }
    }
}

/// The command to carry out, validated.
#[derive(Clone, Debug)]
pub enum Work {
    /// `dlock run`
    Run(Box<run::RunSettings>),
    /// `dlock acquire`
    Acquire(Box<acquire::AcquireSettings>),
    /// `dlock renew`
    Renew(renew::RenewSettings),
    /// `dlock verify`
    Verify(verify::VerifySettings),
    /// `dlock release`
    Release(release::ReleaseSettings),
    /// `dlock hold`
    Hold(Box<hold::HoldSettings>),
    /// `dlock inspect`
    Inspect(inspect::InspectSettings),
    /// `dlock names`
    Names(names::NamesSettings),
    /// `dlock list`
    List(list::ListSettings),
    /// `dlock history`
    History(history::HistorySettings),
    /// `dlock report`
    Report(report::ReportSettings),
    /// `dlock break`
    Break(breaking::BreakSettings),
    /// `dlock break --host`
    BreakHost(breaking::host::HostSettings),
    /// `dlock explain`
    Explain(Box<explain::ExplainSettings>),
    /// `dlock forget`
    Forget(forget::ForgetSettings),
    /// `dlock init`
    Init(init::InitSettings),
    /// `dlock gc`
    Gc(gc::GcSettings),
    /// `dlock doctor`
    Doctor(Box<doctor::DoctorSettings>),
}

/// Carries out the command, and returns the exit status.
///
/// # Errors
/// The reason of a failure, for the message.
pub fn perform(work: Work, context: &Context) -> Result<u8> {
    match work {
        // Makes its own runtime: the guardian is forked before.
        Work::Run(settings) => Ok(run::run(&settings, context)),
        // May leave a process behind, which is forked before a runtime exists.
        Work::Acquire(settings) => acquire::run(&settings, context),
        Work::Renew(settings) => watched(context, renew::run(settings, context)),
        Work::Verify(settings) => watched(context, verify::run(settings, context)),
        Work::Hold(settings) => block_on(hold::run(&settings, context)),
        Work::Release(settings) => watched(context, release::run(settings, context)),
        Work::Inspect(settings) => watched(context, inspect::run(settings, context)),
        Work::Names(settings) => names::run(&settings, context),
        Work::List(settings) => watched(context, list::run(settings, context)),
        Work::History(settings) => watched(context, history::run(settings, context)),
        Work::Report(settings) => watched(context, report::run(settings, context)),
        Work::Break(settings) => watched(context, breaking::run(settings, context)),
        Work::BreakHost(settings) => watched(context, breaking::host::run(settings, context)),
        Work::Explain(settings) => watched(context, explain::run(*settings, context)),
        Work::Forget(settings) => watched(context, forget::run(settings, context)),
        Work::Init(settings) => watched(context, init::run(settings, context)),
        Work::Gc(settings) => watched(context, gc::run(settings, context)),
        Work::Doctor(settings) => watched(context, doctor::run(*settings, context)),
    }
}

/// Returns the store, not connected yet. Warns if the store is only the embedded default.
pub fn open(context: &Context) -> Box<dyn Backend> {
    let backend = context.target.store.backend();
    if !context.target.asked_for {
        let url = &backend.identity().url;
        let path = url.split_once("://").map_or(&**url, |(_, path)| path);
        context.out.warn_with_hint(
            &format!("no backend is configured: locks in {path} protect this user on this host only"),
            "-b local if that is meant; DLOCK_BACKEND or /etc/dlock/config.toml names the store of a cluster",
        );
    }
    backend
}

/// Waits until all deferred output is printed, or stderr was blocked for [`PROMPT`] and
/// [`PATIENCE`], which is waited for once. dlock holds no lock by then, and a signal ends the wait.
pub fn finish_printing() {
    static GIVEN_UP: AtomicBool = AtomicBool::new(false);
    if GIVEN_UP.load(Ordering::Relaxed) || drain(PROMPT) {
        return;
    }
    unblock_signals();
    GIVEN_UP.store(!drain(PATIENCE), Ordering::Relaxed);
}

/// Ends dlock by the signal, so that a calling script ends too.
fn die_by_signal(signal: Signal) {
    finish_printing();
    reraise(signal.number);
}

/// Runs `work`, and reports on a terminal if the store does not answer.
fn watched<T>(context: &Context, work: impl Future<Output = Result<T>>) -> Result<T> {
    block_on(async {
        let waiting = Waiting::new(&context.out, &context.silence, WaitPolicy::Try, &BootClock);
        let done = waiting.ticking(work).await;
        waiting.clear();
        done
    })
}

fn block_on<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| {
            Error::new(
                Kind::Unavailable,
                format!("the async runtime can't be started: {}", plain(&error)),
            )
            .source(error)
            .hint("ulimit -n may be too low")
        })?;
    let done = runtime.block_on(work);
    // Don't wait for a resolver thread, which may hang for many seconds.
    runtime.shutdown_background();
    done
}

/// Reports the signal that ended the command, and returns the status. A signal from the terminal
/// ends dlock as it ends other programs.
fn stopped_by(signal: Signal, key: &Key, out: &Output) -> u8 {
    let status = out.interrupted(key, signal.number);
    if signal.from_terminal {
        reraise(signal.number);
    }
    status
}

/// Returns the next signal that ends a wait. Ctrl-Z stops dlock as usual.
async fn interrupted(signals: &mut Signals) -> Signal {
    loop {
        let signal = signals.next().await;
        if signal.ends_wait() {
            return signal;
        }
        if signal.is_stop() {
            stop_self(signal.number);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::block_on;
    use crate::lease::BootClock;

    #[test]
    fn the_exit_does_not_wait_for_a_hanging_resolver() {
        let began = BootClock::read();
        let work = async {
            drop(tokio::task::spawn_blocking(|| {
                std::thread::sleep(Duration::from_secs(20));
            }));
            Ok(())
        };
        block_on(work).unwrap();
        let took = BootClock::read().since(began);
        assert!(took < Duration::from_secs(5), "{took:?}");
    }
}
