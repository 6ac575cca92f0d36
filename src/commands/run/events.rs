//! The events that a run reports while it goes on: to the command of `--on-event` each event once,
//! to the status file, to syslog and to the service manager.

mod teller;

use std::{cell::RefCell, time::Duration};

use jiff::Timestamp;

use self::teller::{News, Teller};
use super::RunSettings;
use crate::{
    commands::{Context, collect_metadata},
    lease::WaitPolicy,
    lock::{Busy, Fence, Key, Metadata, plain},
    output::{
        EventReport, Output, Progress, RunEvent, Syslog, Verdict, Waiting, holder as holder_name,
        waiting_for,
    },
    supervise::{HookEvent, Hooks, fork_hooks},
};

/// How long dlock waits for hooks before it exits. The lock is free already.
const AT_END: Duration = Duration::from_secs(5);
/// The variable that is set for a hook. A `dlock run` started by a hook has no hooks, to avoid
/// endless recursion.
const VARIABLE: &str = "DLOCK_EVENT";

/// The events of one run.
pub(super) struct Events<'a> {
    settings: &'a RunSettings,
    out: &'a Output,
    pub progress: Progress,
    store: String,
    us: Option<Metadata>,
    hooks: Option<Hooks>,
    sent: RefCell<Vec<RunEvent>>,
    teller: RefCell<Option<Teller>>,
    /// The lock that the run waits for, and its holders.
    waits_for: RefCell<Option<(Key, Vec<Option<Fence>>)>>,
    failures: RefCell<Vec<String>>,
}

impl<'a> Events<'a> {
    /// Starts the hook process, if there is a hook. Call it before anything is opened.
    pub(super) fn new(settings: &'a RunSettings, context: &'a Context, store: &str) -> Self {
        let line = settings
            .on_event
            .as_deref()
            .filter(|_| std::env::var_os(VARIABLE).is_none());
        let mut failures = Vec::new();
        let hooks = line.and_then(|line| {
            let forked = fork_hooks(line.as_ref(), &settings.kept_variables);
            forked
                .map_err(|error| failures.push(format!("none can be started: {}", plain(&error))))
                .ok()
        });
        let us = hooks
            .is_some()
            .then(|| collect_metadata(context.host.as_deref(), None, None));
        let (sent, failures) = (RefCell::default(), RefCell::new(failures));
        Self {
            settings,
            out: &context.out,
            progress: Progress::new(&settings.key, store),
            store: store.to_owned(),
            us: us.filter(|_| settings.metadata),
            hooks,
            sent,
            teller: RefCell::default(),
            waits_for: RefCell::default(),
            failures,
        }
    }

    /// Tells the service manager that dlock waits. Call it once the guardian is forked.
    pub(super) fn begin(&self) {
        *self.teller.borrow_mut() = Teller::start(self.settings.status_file.clone());
    }

    /// Reports the holders that the run waits for.
    pub(super) fn waiting(&self, waiting: &Waiting<'_>, key: &Key, busy: &Busy) {
        waiting.update(key, busy);
        let holders = busy.holders.iter().map(|holder| holder.fence).collect();
        let waits_for = Some((key.clone(), holders));
        let is_known = *self.waits_for.borrow() == waits_for;
        // Between two holders there may be none: that is no news.
        let between = busy.holders.is_empty() && self.waits_for.borrow().is_some();
        if self.settings.wait_policy == WaitPolicy::Try || is_known || between {
            return;
        }
        *self.waits_for.borrow_mut() = waits_for;
        if let Some(teller) = &*self.teller.borrow() {
            teller.tell(News {
                file: self.progress.waiting(Some((key, busy))),
                manager: waiting_for(key, busy),
                waits: true,
            });
        }
        let holder = busy.holders.first().map(holder_name);
        self.tell(RunEvent::Waiting, None, holder.as_deref(), None);
    }

    /// Reports that dlock holds the lock and is about to start the command.
    pub(super) fn acquired(&self, fence: Option<Fence>, started: Timestamp, waited: Duration) {
        if self.waits_for.borrow().is_some() {
            let line = self.progress.acquired(fence, waited);
            let running = self.progress.running(fence, started);
            Syslog::default().progress(self.settings.log, self.out, &line, &running);
        }
        if let Some(teller) = &*self.teller.borrow() {
            let running = self.progress.running(fence, started);
            let fence = fence.map_or_else(String::new, |fence| format!(", fence {fence}"));
            teller.tell(News {
                file: running,
                manager: format!("has the lock {}{fence}", self.settings.key.escaped()),
                waits: false,
            });
        }
        self.tell(RunEvent::Acquired, fence, None, None);
    }

    /// Reports that the lock was lost.
    pub(super) fn lost(&self, how: &str) {
        self.tell(RunEvent::Lost, None, Some(how), None);
    }

    /// Reports that another user breaks the lock.
    pub(super) fn broken(&self, how: &str) {
        self.tell(RunEvent::Broken, None, Some(how), None);
    }

    /// Reports that the run is over, or did not begin.
    pub(super) fn over(&self, verdict: &Verdict) {
        if let Some(teller) = self.teller.take() {
            teller.finish();
        }
        let event = if self.sent.borrow().contains(&RunEvent::Acquired) {
            RunEvent::Ended
        } else {
            RunEvent::of(verdict)
        };
        self.tell(event, verdict.fence, None, Some(verdict));
    }

    fn tell(
        &self,
        event: RunEvent,
        fence: Option<Fence>,
        reason: Option<&str>,
        verdict: Option<&Verdict>,
    ) {
        let Some(hooks) = &self.hooks else { return };
        if self.sent.borrow().contains(&event) {
            return;
        }
        self.sent.borrow_mut().push(event);
        let key = &self.settings.key;
        let report = EventReport {
            event,
            key,
            backend: &self.store,
            us: self.us.as_ref(),
            fence,
            reason,
            verdict,
        };
        let mut variables = vec![
            (VARIABLE.into(), event.name().into()),
            ("DLOCK_KEY".into(), key.to_string()),
        ];
        variables
            .extend(verdict.map(|verdict| ("DLOCK_STATUS".into(), verdict.status.to_string())));
        if let Err(error) = hooks.tell(&HookEvent {
            name: event.name().into(),
            json: report.json(),
            variables,
        }) {
            self.failures
                .borrow_mut()
                .push(format!("{}: {}", event.name(), plain(&error)));
        }
    }

    /// Waits up to `AT_END` for hooks that still run, and warns of failed hooks.
    pub(super) fn finish(self, out: &Output) {
        let mut failures = self.failures.into_inner();
        failures.extend(
            self.hooks
                .map(|hooks| hooks.finish(AT_END))
                .unwrap_or_default(),
        );
        for failure in failures {
            out.warn(&format!(
                "{}: --on-event: {failure}",
                self.settings.key.escaped()
            ));
        }
    }
}
