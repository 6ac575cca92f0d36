//! dlock's side of supervision: starts the guardian, gives it orders, and takes over when it doesn't answer.
//!
//! It knows no lock: its caller renews the lease and says how far it reaches.

mod watching;

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
    pipe::{PipeFlags, pipe_with},
    process::{Pid, Signal as Signo, WaitOptions, getpid, kill_process, set_child_subreaper, wait, waitpid},
    time::{TimerfdClockId, TimerfdFlags, timerfd_create},
};
use tokio::io::unix::AsyncFd;

use super::{
    Deadlines, Event, OnLost, Plan, Printed, Signal,
    capture::Capture,
    cgroup,
    guardian::{Setup, live},
    message::{Order, Received, Report, decode, encode, receive, transmit},
    signals,
    sys::{self, Fork, SignalSet, arm},
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
    output: Option<OwnedFd>,
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
    let pipe = plan.capture.then(|| pipe_with(PipeFlags::CLOEXEC)).transpose()?;
    if let Some((read, _)) = &pipe {
        rustix::io::ioctl_fionbio(read, true)?;
    }
    let (output, theirs_too) = pipe.unzip();
    match sys::fork()? {
        Fork::Child => {
            drop((socket, output));
            live(Setup { plan, last_resort, argv, output: theirs_too, socket: theirs, mask, group: sys::own_group(), cgroup })
        }
        Fork::Parent(pid) => Ok(Guardian { pid, socket, plan, cgroup, spared, output }),
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
            output: self.output.map(Capture::start).transpose()?,
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
    output: Option<Capture>,
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

    /// Another process has the lock: KILL at once (nothing with [`OnLost::Continue`]).
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

    /// Passes a signal on to the command, unless the terminal or the guardian has sent it there already.
    pub fn forward(&mut self, signal: Signal) {
        if !(signal.from_terminal && self.joined) && signal.sender != self.guardian() {
            let _ = self.order(&Order::Forward(signal.number), None);
        }
    }

    /// Takes what the command printed, if that was to be kept ([`Plan::capture`]). Call it after the last event.
    pub fn printed(&mut self) -> Option<Printed> {
        self.output.take().map(Capture::finish)
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

    /// Collects children that are neither the command nor its tree: the guardian, and as PID 1 all orphans.
    fn reap(&mut self) {
        while sys::read_signal(self.children.get_ref()).is_some() {}
        if self.takeover.is_some() {
            return;
        }
        while let Ok(Some((pid, _))) = wait(WaitOptions::NOHANG) {
            self.reaped |= pid == self.guardian;
        }
    }
}
