//! dlock's side of supervision: starts the guardian, gives it orders, and takes over when it doesn't answer.
//!
//! It knows no lock: whoever uses it renews the lease and says how far it reaches.

use std::{
    collections::VecDeque,
    ffi::CString,
    io,
    os::{fd::OwnedFd, unix::ffi::OsStringExt},
    time::Duration,
};

use rustix::{
    io::Errno,
    net::{AddressFamily, SocketFlags, SocketType, socketpair},
    process::{Pid, Signal as Signo, WaitOptions, getpid, kill_process, kill_process_group, set_child_subreaper, wait, waitpid},
    time::{TimerfdClockId, TimerfdFlags, timerfd_create},
};
use tokio::io::unix::AsyncFd;

use super::{
    Deadlines, Ended, Event, OnLost, Plan, Signal, Why, cgroup,
    guardian::{Setup, arm, live},
    hunt::News,
    message::{Order, Received, Report, decode, encode, receive, transmit},
    signals,
    sys::{self, Fork, SignalSet},
    takeover::Takeover,
    tree::{self, Process},
};
use crate::{
    lease::BootClock,
    lock::{BootTime, LastResort},
};

/// An answer of the guardian that takes longer than this is missed, but acted on only when a deadline comes.
const PATIENCE: Duration = Duration::from_millis(150);
/// The same for a guardian that answered since it was time to kill: it is at work.
const MORE_PATIENCE: Duration = Duration::from_secs(1);

/// The guardian, forked and waiting.
#[derive(Debug)]
pub struct Guardian {
    pid: Pid,
    socket: OwnedFd,
    plan: Plan,
    cgroup: String,
    spared: Vec<Process>,
}

/// Makes this process a subreaper, blocks its signals and forks the guardian.
///
/// To be called before any thread or runtime exists. Descriptors that are open and not close-on-exec reach guardian
/// and command: a file lock taken through one of them lasts as long as the last of the tree.
///
/// # Errors
/// When processes, descriptors or memory ran out; `InvalidInput` for a command with a NUL in it.
pub fn fork_guardian(plan: Plan, last_resort: Option<LastResort>) -> io::Result<Guardian> {
    let argv: Vec<CString> = plan.command.iter().map(|word| CString::new(word.clone().into_vec())).collect::<Result<_, _>>()?;
    if argv.is_empty() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "there is no command"));
    }
    // Before the guardian is one of them. Nearly always the kernel says at once that there are none.
    let spared = if matches!(wait(WaitOptions::NOHANG), Err(Errno::CHILD)) { Vec::new() } else { tree::children(&[]).unwrap_or_default() };
    let mask = signals::block();
    set_child_subreaper(Some(getpid()))?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (socket, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    let cgroup = cgroup::name("run");
    match sys::fork()? {
        Fork::Child => {
            drop(socket);
            live(Setup { plan, last_resort, argv, socket: theirs, mask, group: sys::own_group(), cgroup })
        }
        Fork::Parent(pid) => Ok(Guardian { pid, socket, plan, cgroup, spared }),
    }
}

impl Guardian {
    /// Its process.
    pub fn pid(&self) -> i32 {
        self.pid.as_raw_pid()
    }

    /// Makes it usable inside the runtime.
    ///
    /// # Errors
    /// When the system has no descriptors left. The guardian ends then by itself.
    pub fn attach(self) -> io::Result<Supervisor> {
        let timer = timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
        let children = sys::signalfd(&SignalSet::of(&[libc::SIGCHLD]))?;
        Ok(Supervisor {
            socket: sys::watch(self.socket)?,
            timer: sys::watch(timer)?,
            children: sys::watch(children)?,
            guardian: self.pid,
            reaped: false,
            plan: self.plan,
            cgroup: self.cgroup,
            spared: self.spared,
            sent: 0,
            unanswered: VecDeque::new(),
            heard: BootClock::read(),
            acknowledged: None,
            stopping: None,
            time_up: None,
            told_to_kill: None,
            termed: false,
            lapsed: false,
            command: None,
            joined: false,
            closed: false,
            over: false,
            takeover: None,
            events: VecDeque::new(),
        })
    }

    /// Ends the guardian because the lock was not taken, and reaps it.
    pub fn give_up(self) {
        end_idle(self.pid);
    }
}

/// A guardian without a command has nothing to look after, or nothing any more.
fn end_idle(guardian: Pid) {
    let _ = kill_process(guardian, Signo::KILL);
    reap_one(guardian);
}

fn reap_one(pid: Pid) {
    while matches!(waitpid(Some(pid), WaitOptions::empty()), Err(Errno::INTR)) {}
}

/// An order that the guardian hasn't acknowledged.
#[derive(Debug)]
struct Unanswered {
    number: u64,
    since: BootTime,
    deadlines: Option<Deadlines>,
}

/// The command's supervision, as dlock sees it.
#[derive(Debug)]
#[allow(clippy::struct_excessive_bools)] // independent facts, not one state
pub struct Supervisor {
    socket: AsyncFd<OwnedFd>,
    timer: AsyncFd<OwnedFd>,
    children: AsyncFd<OwnedFd>,
    guardian: Pid,
    reaped: bool,
    plan: Plan,
    cgroup: String,
    spared: Vec<Process>,
    sent: u64,
    unanswered: VecDeque<Unanswered>,
    heard: BootTime,
    /// The deadlines that the guardian is known to know; `None` before the start.
    acknowledged: Option<Deadlines>,
    /// An orderly stop: when it was asked for, and when KILL comes.
    stopping: Option<Deadlines>,
    /// When the command will have run for as long as it may, and when KILL comes then.
    time_up: Option<Deadlines>,
    told_to_kill: Option<BootTime>,
    termed: bool,
    lapsed: bool,
    command: Option<Pid>,
    joined: bool,
    closed: bool,
    over: bool,
    takeover: Option<Takeover>,
    events: VecDeque<Event>,
}

impl Supervisor {
    /// Has the command executed, unless the guardian gets to it only after `start_by`.
    ///
    /// [`Event::Started`] or [`Event::CannotStart`] follows. The guardian keeps `lifelines` open until the tree is dead, and shuts
    /// them down if the lease runs out while dlock is stopped.
    ///
    /// # Errors
    /// If the environment is longer than a message can be; nothing was started then.
    pub fn start(
        &mut self,
        environment: &[(String, String)],
        start_by: BootTime,
        deadlines: Deadlines,
        lifelines: &[OwnedFd],
    ) -> io::Result<()> {
        let order = Order::Start { start_by, deadlines, environment: environment.to_vec() };
        match self.order_with(&order, Some(deadlines), lifelines) {
            // The guardian is gone; that is told by the next event.
            Err(error) if error.kind() != io::ErrorKind::InvalidInput => {}
            other => other?,
        }
        self.acknowledged = Some(deadlines);
        self.time_up = self.time_up_from(start_by);
        Ok(())
    }

    /// Passes on that a renewal was confirmed. Of no use once [`Event::DeadlineTerm`] came.
    pub fn extend(&mut self, deadlines: Deadlines) {
        if !self.lapsed {
            let _ = self.order(&Order::Extend(deadlines), Some(deadlines));
        }
    }

    /// The lock is somebody else's: KILL at once (nothing with [`OnLost::Continue`]).
    pub fn lost(&mut self) {
        if self.plan.on_lost != OnLost::Continue {
            let now = BootClock::read();
            self.told_to_kill = Some(now);
            if let Some(takeover) = &mut self.takeover {
                takeover.hurry(now);
            }
            let _ = self.order(&Order::Lost, None);
        }
    }

    /// Stops the command in order: TERM to the tree, `grace`, KILL. Go on renewing and extending meanwhile.
    ///
    /// Asked for again, it counts if it brings KILL forward.
    pub fn stop(&mut self, grace: Duration) {
        let now = BootClock::read();
        let kill_at = now.plus(grace);
        if self.stopping.is_none_or(|before| kill_at < before.kill_at) {
            self.stopping = Some(Deadlines { term_at: self.stopping.map_or(now, |before| before.term_at), kill_at });
            if let Some(takeover) = &mut self.takeover {
                takeover.hurry(kill_at);
            }
            let _ = self.order(&Order::Stop(grace), None);
        }
    }

    /// Stops dlock as `signal` would have, together with its command, and returns when it was continued.
    ///
    /// The guardian continues it when the command is no longer stopped. Check the deadline before anything else then: any time
    /// may have passed.
    pub fn stop_with_command(&mut self, signal: i32) {
        // Without a guardian nothing would continue it.
        if self.order(&Order::Pause(true), None).is_ok() {
            signals::stop_self(signal);
            let _ = self.order(&Order::Pause(false), None);
        }
    }

    /// Passes a signal on to the command, unless the terminal has sent it there already, or the guardian is who sent it.
    pub fn forward(&mut self, signal: Signal) {
        if !(signal.from_terminal && self.joined) && signal.sender != self.guardian() {
            let _ = self.order(&Order::Forward(signal.number), None);
        }
    }

    /// The guardian's process.
    pub fn guardian(&self) -> i32 {
        self.guardian.as_raw_pid()
    }

    /// Ends the guardian because the lock was not taken, and reaps it. To be called instead of [`Supervisor::start`].
    pub fn give_up(self) {
        if self.acknowledged.is_none() && !self.reaped {
            end_idle(self.guardian);
        }
    }

    /// Reaps the guardian after the last event. Best done after the lock was released: it takes a moment to end.
    pub fn finish(self) {
        if self.over && !self.reaped {
            // It has said its last word. Where it is stopped, its end must not be waited for.
            end_idle(self.guardian);
        }
    }

    /// What happens next. Cancel safe. Never returns again after the last event.
    ///
    /// It also reaps what is reparented to dlock (as PID 1: everything), so keep it polled, also before the start.
    pub async fn next(&mut self) -> Event {
        loop {
            self.receive();
            self.reap();
            self.judge(BootClock::read());
            if let Some(event) = self.events.pop_front() {
                return event;
            }
            arm(self.timer.get_ref(), self.wake_at());
            tokio::select! {
                Ok(mut ready) = self.socket.readable(), if !self.closed => ready.clear_ready(),
                Ok(mut ready) = self.children.readable() => ready.clear_ready(),
                Ok(mut ready) = self.timer.readable() => ready.clear_ready(),
                else => std::future::pending().await,
            }
        }
    }

    fn order(&mut self, order: &Order, deadlines: Option<Deadlines>) -> io::Result<()> {
        self.order_with(order, deadlines, &[])
    }

    fn order_with(&mut self, order: &Order, deadlines: Option<Deadlines>, descriptors: &[OwnedFd]) -> io::Result<()> {
        self.sent += 1;
        let sent = transmit(self.socket.get_ref(), &encode(&(self.sent, order)), descriptors);
        if !matches!(&sent, Err(error) if error.kind() == io::ErrorKind::InvalidInput) {
            // Also when it couldn't be sent: a full socket is a guardian that doesn't read.
            self.unanswered.push_back(Unanswered { number: self.sent, since: BootClock::read(), deadlines });
        }
        sent
    }

    fn receive(&mut self) {
        while !self.closed {
            match receive(self.socket.get_ref()) {
                Received::Nothing => return,
                Received::Closed => self.closed = true,
                Received::Datagram(datagram, _) => {
                    self.heard = BootClock::read();
                    if let Some(report) = decode(&datagram) {
                        self.take_in(report);
                    }
                }
            }
        }
        if !self.over && self.takeover.is_none() {
            self.take_over(false);
        }
    }

    fn take_in(&mut self, report: Report) {
        let event = match report {
            Report::Ack(number) => {
                while let Some(done) = self.unanswered.front().filter(|order| order.number <= number) {
                    self.acknowledged = done.deadlines.or(self.acknowledged);
                    self.unanswered.pop_front();
                }
                return;
            }
            Report::Started { pid, joined } => {
                self.command = Pid::from_raw(pid);
                self.joined = joined;
                self.time_up = self.time_up_from(self.heard);
                Event::Started { pid }
            }
            Report::CannotStart(why) => {
                self.over = true;
                Event::CannotStart(why)
            }
            Report::TimeUp => Event::TimeUp,
            Report::Stopped(signal) => Event::Stopped { signal },
            Report::Continued => Event::Continued,
            Report::Leftover(pids) => Event::Leftover { pids },
            Report::DeadlineTerm => {
                if self.lapsed {
                    return;
                }
                self.lapsed = true;
                Event::DeadlineTerm
            }
            Report::Unkillable(pid, why) => Event::Unkillable { pid, why },
            Report::Gone(pid) => Event::Gone { pid },
            Report::Ended(ended) => {
                self.over = true;
                Event::Ended(ended)
            }
        };
        self.events.push_back(event);
    }

    /// Collects children that are neither the command nor its tree: the guardian, and as PID 1 everybody's orphans.
    fn reap(&mut self) {
        while sys::read_signal(self.children.get_ref()).is_some() {}
        if self.takeover.is_some() {
            return;
        }
        while let Ok(Some((pid, _))) = wait(WaitOptions::NOHANG) {
            self.reaped |= pid == self.guardian;
        }
    }

    /// When the guardian has to have acted on the end of the command's time, if it started then.
    fn time_up_from(&self, started: BootTime) -> Option<Deadlines> {
        let term_at = started.plus(self.plan.max_runtime?);
        Some(Deadlines { term_at, kill_at: term_at.plus(self.plan.grace) })
    }

    /// When the guardian has to have acted: TERM, KILL.
    fn due(&self) -> Option<Deadlines> {
        let bound = self.acknowledged.filter(|_| self.plan.on_lost != OnLost::Continue);
        let lost = self.told_to_kill.map(|at| Deadlines { term_at: at, kill_at: at });
        let earliest = |one: Deadlines, other: Deadlines| Deadlines {
            term_at: one.term_at.min(other.term_at),
            kill_at: one.kill_at.min(other.kill_at),
        };
        [bound, lost, self.stopping, self.time_up].into_iter().flatten().reduce(earliest)
    }

    fn judge(&mut self, now: BootTime) {
        if let Some(takeover) = &mut self.takeover {
            if !self.over {
                self.events.extend(takeover.step(now).into_iter().map(|news| match news {
                    News::Stuck(pid, why) => Event::Unkillable { pid, why },
                    News::Gone(pid) => Event::Gone { pid },
                }));
                if takeover.is_done() {
                    self.over = true;
                    self.reaped = true;
                    let ended = Ended { outcome: takeover.outcome, stopped: Some(Why::Guardian), leftover_left: false };
                    self.events.push_back(Event::Ended(ended));
                }
            }
            return;
        }
        let Some(due) = self.due().filter(|due| !self.over && self.acknowledged.is_some() && now >= due.term_at) else { return };
        let patience = self.patience(due);
        let late = self.unanswered.front().is_some_and(|order| now.since(order.since) >= patience);
        if self.unanswered.is_empty() && now.since(self.heard) >= PATIENCE {
            let _ = self.order(&Order::Ping, None);
        } else if late && now >= due.kill_at {
            self.take_over(true);
        } else if late && !self.termed {
            // It may only be slow, so it gets its chance to reap; the command gets all of its grace.
            self.termed = true;
            let group = self.command.and_then(|command| tree::led_group(command, self.guardian));
            if let Some(group) = group {
                let _ = kill_process_group(group, Signo::TERM);
                let _ = kill_process_group(group, Signo::CONT);
            }
            let _ = tree::signal_all(self.guardian.as_raw_pid(), &[], group, Signo::TERM);
            if self.acknowledged.is_some_and(|deadlines| now >= deadlines.term_at) && !self.lapsed {
                self.lapsed = true;
                self.events.push_back(Event::DeadlineTerm);
            }
        }
    }

    fn patience(&self, due: Deadlines) -> Duration {
        if self.heard >= due.kill_at { MORE_PATIENCE } else { PATIENCE }
    }

    fn wake_at(&self) -> Option<BootTime> {
        if self.over {
            return None;
        }
        if let Some(takeover) = &self.takeover {
            return Some(takeover.next_at());
        }
        let due = self.due().filter(|_| self.acknowledged.is_some())?;
        let answer_by = self.unanswered.front().map_or(self.heard.plus(PATIENCE), |order| order.since.plus(self.patience(due)));
        Some(if self.termed && !self.unanswered.is_empty() { due.kill_at.max(answer_by) } else { due.term_at.max(answer_by) })
    }

    /// The guardian is dead, or as good as dead.
    fn take_over(&mut self, frozen: bool) {
        let now = BootClock::read();
        self.events.push_back(Event::GuardianLost { frozen });
        if self.acknowledged.is_none() {
            // It died idle: there is no tree.
            self.over = true;
            self.events.push_back(Event::Ended(Ended { outcome: None, stopped: Some(Why::Guardian), leftover_left: false }));
            return;
        }
        let kill_at = if frozen {
            if let Some(group) = self.command.and_then(|command| tree::led_group(command, self.guardian)) {
                let _ = kill_process_group(group, Signo::KILL);
            }
            let _ = kill_process(self.guardian, Signo::KILL);
            now
        } else {
            let deadline = self.due().map(|due| due.kill_at);
            deadline.into_iter().fold(now.plus(self.plan.grace), BootTime::min)
        };
        self.takeover = Some(Takeover::begin(std::mem::take(&mut self.spared), self.command, &self.cgroup, kill_at, now));
        self.judge(now);
    }
}
