//! The guardian: the small process between dlock and the command that kills the tree when its time
//! is up.
//!
//! One thread, one poll loop, no runtime. It blocks every signal but KILL and STOP, has a process
//! group of its own and is a subreaper. The guardian never talks to a store and never prints: dlock
//! does both.

mod foreground;
mod sleeping;
mod stopping;

use std::{ffi::CString, os::fd::OwnedFd, time::Duration};

use rustix::{
    event::{PollFd, PollFlags, poll},
    fs::{Mode, OFlags},
    process::{Pid, Signal, WaitOptions, WaitStatus, getpid, getppid, nice, wait},
    time::{TimerfdClockId, TimerfdFlags, timerfd_create},
};

use super::{
    CannotStart, Contain, Deadlines, Ended, OnLost, Plan, ProcessEnd, StopReason, Usage,
    cgroup::{Cgroup, Parent},
    command::{Launch, Launched, environment},
    hunt::Hunt,
    message::{Order, Received, Report, decode, encode, receive, transmit},
    sys::{self, SignalSet},
    terminal,
    tree::Process,
};
use crate::{
    lease::BootClock,
    lock::{BootTime, LastResort},
};

/// How long the kernel may take to report a cgroup as empty, and the polling interval after that.
const CGROUP_LAG: Duration = Duration::from_millis(50);
/// The interval at which the guardian sends CONT to dlock until dlock reports that it continues.
const WAKE: Duration = Duration::from_millis(20);
/// After a lifeline closed, how long dlock has for an order, which comes with the reason. The next
/// holder waits longer than this.
const DLOCK_FIRST: Duration = Duration::from_millis(50);
/// The guardian's nice increment relative to the command, where the kernel allows it.
const NICER: i32 = -10;

/// The values that the guardian has from the fork.
pub struct Setup {
    pub plan: Plan,
    /// The release that the guardian performs where dlock is stopped and can't release anything
    /// itself.
    pub last_resort: Option<LastResort>,
    pub argv: Vec<CString>,
    /// The pipe for the command's stdout and stderr, if they are captured.
    pub output: Option<OwnedFd>,
    /// The guardian's end of the socket pair with dlock.
    pub socket: OwnedFd,
    /// The signal mask that dlock was started with.
    pub mask: SignalSet,
    /// dlock's process group, if its leader is in the guardian's PID namespace.
    pub group: Option<Pid>,
    /// The name of the command's cgroup, if it gets one.
    pub cgroup: String,
}

/// Runs the guardian from just after the fork to the end of the process.
pub fn live(setup: Setup) -> ! {
    // A panic must not unwind into dlock's own code; when the guardian ends, dlock takes over.
    let lived = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let mut guardian = GuardianLoop::new(setup)?;
        guardian.run();
        Ok::<(), std::io::Error>(())
    }));
    sys::exit_now(if matches!(lived, Ok(Ok(()))) { 0 } else { 70 })
}

#[derive(Debug)]
enum Phase {
    /// No command yet.
    Idle,
    /// The command is forked and perhaps not yet executed, or it runs, or only its descendants run.
    Running,
    /// TERM was sent; KILL follows at this time.
    Stopping(BootTime),
    Killing(Hunt),
}

#[allow(clippy::struct_excessive_bools)] // independent facts; the state is `phase`
struct GuardianLoop {
    setup: Setup,
    children: OwnedFd,
    timer: OwnedFd,
    /// The parent of the command's future cgroup.
    parent: Option<Parent>,
    cgroup: Option<Cgroup>,
    phase: Phase,
    deadlines: Deadlines,
    /// When the command reaches its maximum runtime.
    time_up_at: Option<BootTime>,
    /// The deadline has passed: no later order from dlock can revive the hold.
    lapsed: bool,
    /// dlock is gone.
    orphaned: bool,
    /// Whether the deadlines count.
    bound: bool,
    why: Option<StopReason>,
    command: Option<Launched>,
    /// Whether the command was executed; `None` until that is known.
    verdict: Option<Result<(), CannotStart>>,
    joined: bool,
    terminal: Option<OwnedFd>,
    /// The terminal's foreground was handed from dlock's group to the command's.
    lent: bool,
    outcome: Option<ProcessEnd>,
    /// The command ended before the first signal that was to stop it.
    by_itself: bool,
    /// The command is stopped; `stop_told`: dlock was notified of the stop.
    stopped: bool,
    stop_told: bool,
    /// dlock stopped itself because the command was stopped.
    paused: bool,
    dlock: Option<Pid>,
    /// The processes that got the signal before KILL.
    termed: Vec<Process>,
    /// No child is left to wait for.
    empty: bool,
    emptied: Option<BootTime>,
    leftover_told: bool,
    /// Connections on which the lock depends: the lock ends when they close.
    lifelines: Vec<OwnedFd>,
    /// When the guardian saw that a lifeline was closed.
    severed: Option<BootTime>,
}

impl GuardianLoop {
    fn new(setup: Setup) -> std::io::Result<Self> {
        sys::block_all();
        let dlock = getppid();
        rustix::process::setpgid(None, None)?;
        rustix::process::set_child_subreaper(Some(getpid()))?;
        // `pkill dlock` is meant for dlock: the guardian kills the tree when dlock is gone, so it
        // must survive.
        let _ = rustix::thread::set_name(c"lock-guard");
        let parent = match setup.plan.contain {
            Contain::Group => None,
            Contain::Auto => Parent::find().ok().filter(Parent::is_delegated),
            Contain::Cgroup => Some(Parent::find()?),
        };
        let bound = setup.plan.on_lost != OnLost::Continue;
        let never = BootTime::from_boot(Duration::MAX);
        Ok(Self {
            children: sys::signalfd(&SignalSet::of(&[libc::SIGCHLD]))?,
            timer: timerfd_create(
                TimerfdClockId::Boottime,
                TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK,
            )?,
            setup,
            parent,
            cgroup: None,
            phase: Phase::Idle,
            deadlines: Deadlines {
                term_at: never,
                kill_at: never,
            },
            time_up_at: None,
            lapsed: false,
            orphaned: false,
            bound,
            why: None,
            command: None,
            verdict: None,
            joined: false,
            terminal: None,
            lent: false,
            outcome: None,
            by_itself: false,
            stopped: false,
            stop_told: false,
            paused: false,
            dlock,
            termed: Vec::new(),
            empty: true,
            emptied: None,
            leftover_told: false,
            lifelines: Vec::new(),
            severed: None,
        })
    }

    fn run(&mut self) {
        loop {
            // Extensions that arrived while the guardian was stopped are valid, since their times
            // are absolute. The guardian applies them before it checks the deadline.
            while !self.orphaned && self.take_order() {}
            if self.orphaned && matches!(self.phase, Phase::Idle) {
                return;
            }
            self.learn_verdict();
            self.reap();
            self.judge(BootClock::read());
            self.wake_dlock();
            if self.is_done() && !self.wakes_dlock() {
                self.report_end();
                return;
            }
            self.sleep();
        }
    }

    /// Carries out one order. Returns whether there may be more.
    fn take_order(&mut self) -> bool {
        match receive(&self.setup.socket) {
            Received::Nothing => false,
            Received::Closed => {
                self.orphaned = true;
                // A reader of the command's output must not wait for this process.
                if let Ok(null) =
                    rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
                {
                    let _ = rustix::stdio::dup2_stdin(&null);
                    let _ = rustix::stdio::dup2_stdout(&null);
                    let _ = rustix::stdio::dup2_stderr(&null);
                }
                let now = BootClock::read();
                // No process renews any more. A lease that was given up earlier (`continue`) still
                // sets no deadline.
                self.bound |= now < self.deadlines.term_at;
                self.stop(
                    StopReason::Orphaned,
                    now.plus(self.setup.plan.grace),
                    Signal::TERM,
                );
                false
            }
            Received::Datagram(datagram, descriptors) => {
                self.lifelines.extend(descriptors);
                if let Some((number, order)) = decode(&datagram) {
                    self.execute_order(order);
                    self.report(&Report::Ack(number));
                }
                true
            }
        }
    }

    fn execute_order(&mut self, order: Order) {
        match order {
            Order::Start {
                start_by,
                deadlines,
                environment,
            } if matches!(self.phase, Phase::Idle) => {
                self.deadlines = deadlines;
                self.start(start_by, &environment);
            }
            Order::Extend(deadlines) if !self.lapsed => self.deadlines = deadlines,
            Order::Lost if self.setup.plan.on_lost != OnLost::Continue => {
                self.kill(StopReason::Lost);
            }
            Order::Stop(grace) => self.stop(
                StopReason::Stop,
                BootClock::read().plus(grace),
                Signal::TERM,
            ),
            Order::Forward(number) => self.forward(number),
            Order::Pause(begins) => self.paused = begins,
            Order::Start { .. } | Order::Extend(_) | Order::Lost | Order::Ping => {}
        }
    }

    fn start(&mut self, start_by: BootTime, given: &[(String, String)]) {
        self.phase = Phase::Running;
        let environment = environment(&self.setup.plan.kept_variables, given);
        let terminal = terminal::controlling();
        let foreground = |group: &Pid| {
            terminal
                .as_ref()
                .is_some_and(|terminal| terminal::is_foreground(terminal, *group))
        };
        let join = self.setup.group.filter(foreground);
        self.terminal = terminal;
        self.joined = join.is_some();
        let system =
            |error: std::io::Error| CannotStart::System(error.raw_os_error().unwrap_or(libc::EIO));
        let created = self
            .parent
            .as_ref()
            .map(|parent| parent.create(&self.setup.cgroup))
            .transpose();
        self.cgroup = match created {
            Ok(cgroup) => cgroup,
            // `auto` runs without a cgroup.
            Err(_) if self.setup.plan.contain == Contain::Auto => None,
            Err(error) => return self.verdict = Some(Err(system(error))),
        };
        let launch = Launch {
            argv: &self.setup.argv,
            output: self.setup.output.as_ref(),
            environment: &environment,
            join,
            cgroup: self.cgroup.as_ref(),
            must_enter: self.setup.plan.contain == Contain::Cgroup,
            mask: &self.setup.mask,
        };
        let now = BootClock::read();
        if now >= start_by {
            return self.verdict = Some(Err(CannotStart::TooLate));
        }
        let launched = launch.run();
        self.setup.output = None;
        match launched {
            Ok(launched) => {
                self.empty = false;
                self.command = Some(launched);
                self.time_up_at = self.setup.plan.max_runtime.map(|most| now.plus(most));
                // Only after the launch, so that the command doesn't inherit the niceness.
                let _ = nice(NICER);
            }
            Err(error) => self.verdict = Some(Err(system(error))),
        }
    }

    fn learn_verdict(&mut self) {
        let Some(command) = self.command.as_ref().filter(|_| self.verdict.is_none()) else {
            return;
        };
        self.verdict = command.verdict();
        if self.verdict == Some(Ok(())) {
            let pid = command.pid.as_raw_pid();
            self.report(&Report::Started {
                pid,
                joined: self.joined,
            });
        }
    }

    /// Collects all children that ended, orphans of the command included.
    fn reap(&mut self) {
        while sys::read_signal(&self.children).is_some() {}
        if self.empty {
            return;
        }
        let ended = self.outcome;
        loop {
            match wait(WaitOptions::NOHANG | WaitOptions::UNTRACED | WaitOptions::CONTINUED) {
                Ok(Some((pid, status))) => {
                    if self
                        .command
                        .as_ref()
                        .is_some_and(|command| command.pid == pid)
                    {
                        self.command_changed(status);
                    }
                }
                Ok(None) => break,
                Err(rustix::io::Errno::INTR) => {}
                // A subreaper without children has no descendants: every orphan would be its child.
                Err(_) => {
                    self.empty = true;
                    self.emptied = Some(BootClock::read());
                    return;
                }
            }
        }
        if let (None, Some(outcome), true) = (ended, self.outcome, self.by_itself) {
            // dlock needs it if the guardian is killed before the others end.
            self.report(&Report::Outlived(outcome));
        }
    }

    fn command_changed(&mut self, status: WaitStatus) {
        self.learn_verdict();
        if let Some(signal) = status.stopping_signal() {
            self.stopped = true;
            // dlock stops with its command only on a terminal, as the shell expects.
            let wants_terminal = [libc::SIGTTIN, libc::SIGTTOU].contains(&signal);
            if wants_terminal && self.lend_terminal() {
                self.forward(libc::SIGCONT);
            } else if self.joined
                || (self.terminal.is_some() && (wants_terminal || signal == libc::SIGTSTP))
            {
                self.stop_told = true;
                self.report(&Report::Stopped(signal));
            }
        } else if status.continued() {
            self.stopped = false;
            if std::mem::take(&mut self.stop_told) {
                self.report(&Report::Continued);
            }
        } else {
            self.outcome = outcome(status);
            self.by_itself = matches!(self.phase, Phase::Running);
            // From now on the terminal's keys go to dlock, not to the command's leftover processes.
            self.return_terminal();
        }
    }

    fn report_end(&mut self) {
        self.return_terminal();
        let leftover_left = self.leaves_leftover() && !self.empty;
        if let Some(cgroup) = self.cgroup.take() {
            if leftover_left {
                cgroup.evict();
            }
            cgroup.remove();
        }
        if self.lapsed && self.empty && !leftover_left {
            if let Some(give_back) = self.setup.last_resort.take() {
                give_back();
            }
            for line in &self.lifelines {
                // Closing the connection here is not enough: a stopped dlock has it open as well.
                let _ = rustix::net::shutdown(line, rustix::net::Shutdown::Both);
            }
        }
        let last = match self.verdict {
            Some(Err(why)) => Report::CannotStart(why),
            _ => Report::Ended(Ended {
                outcome: self.outcome,
                by_itself: self.by_itself,
                stopped: self.why,
                leftover_left,
                usage: self.outcome.and_then(|_| Usage::of_children()),
            }),
        };
        // Other reports may be dropped. dlock's exit status depends on this report, so the guardian
        // waits for a stopped dlock.
        while transmit(&self.setup.socket, &encode(&last), &[])
            .is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
        {
            let _ = poll(&mut [PollFd::new(&self.setup.socket, PollFlags::OUT)], None);
        }
    }

    fn report(&self, report: &Report) {
        // If dlock doesn't read or is gone, the guardian still supervises the tree.
        let _ = transmit(&self.setup.socket, &encode(report), &[]);
    }
}

/// Returns how the process ended, if it did.
pub fn outcome(status: WaitStatus) -> Option<ProcessEnd> {
    let exited = status
        .exit_status()
        .map(|status| ProcessEnd::Exited(u8::try_from(status).unwrap_or(u8::MAX)));
    exited.or_else(|| status.terminating_signal().map(ProcessEnd::Signalled))
}
