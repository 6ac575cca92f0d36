//! dlock's side of supervision: starts the guardian, gives it orders, and takes over when it
//! doesn't answer.
//!
//! The supervisor knows no lock: its caller renews the lease and passes on the deadlines.

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
    process::{
        Pid, Signal as Signo, WaitOptions, getpid, kill_process, set_child_subreaper, wait, waitpid,
    },
    time::{TimerfdClockId, TimerfdFlags, timerfd_create},
};
use tokio::io::unix::AsyncFd;

use super::{
    CapturedOutput, Deadlines, Ended, Event, OnLost, Plan, ProcessEnd, Signal,
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

/// An acknowledgement that takes longer is overdue. The supervisor acts on an overdue one only at a
/// deadline.
const ACK_TIMEOUT: Duration = Duration::from_millis(150);
/// The same limit for a guardian that answered after the time to kill: such a guardian is at work.
const LONG_ACK_TIMEOUT: Duration = Duration::from_secs(1);

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
/// Call it before any thread or runtime exists. The guardian and the command inherit open
/// descriptors that are not close-on-exec. A file lock taken through such a descriptor lasts until
/// the last process of the tree ends.
///
/// # Errors
/// When processes, descriptors or memory ran out; `InvalidInput` for a command with a NUL in it.
pub fn fork_guardian(plan: Plan, last_resort: Option<LastResort>) -> io::Result<Guardian> {
    let argv: Vec<CString> = plan
        .command
        .iter()
        .map(|word| CString::new(word.clone().into_vec()))
        .collect::<Result<_, _>>()?;
    if argv.is_empty() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "there is no command",
        ));
    }
    // Before the fork, so that the guardian isn't listed. Usually dlock has no children, as `wait`
    // reports at once.
    let spared = if matches!(wait(WaitOptions::NOHANG), Err(Errno::CHILD)) {
        Vec::new()
    } else {
        tree::children(&[]).unwrap_or_default()
    };
    let mask = signals::block();
    set_child_subreaper(Some(getpid()))?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (socket, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    let cgroup = cgroup::name("run");
    let pipe = plan
        .capture
        .then(|| pipe_with(PipeFlags::CLOEXEC))
        .transpose()?;
    if let Some((read, _)) = &pipe {
        rustix::io::ioctl_fionbio(read, true)?;
    }
    let (output, theirs_too) = pipe.unzip();
    match sys::fork()? {
        Fork::Child => {
            drop((socket, output));
            live(Setup {
                plan,
                last_resort,
                argv,
                output: theirs_too,
                socket: theirs,
                mask,
                group: sys::own_group(),
                cgroup,
            })
        }
        Fork::Parent(pid) => Ok(Guardian {
            pid,
            socket,
            plan,
            cgroup,
            spared,
            output,
        }),
    }
}

impl Guardian {
    /// Returns the guardian's PID.
    pub fn pid(&self) -> i32 {
        self.pid.as_raw_pid()
    }

    /// Returns a supervisor for use inside the runtime.
    ///
    /// # Errors
    /// When the system has no descriptors left. The guardian then ends by itself.
    pub fn attach(self) -> io::Result<Supervisor> {
        let timer = timerfd_create(
            TimerfdClockId::Boottime,
            TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK,
        )?;
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
            last_report: BootClock::read(),
            acknowledged: None,
            stopping: None,
            time_up: None,
            told_to_kill: None,
            termed: false,
            lapsed: false,
            command: None,
            outlived: None,
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

/// Kills and reaps a guardian that supervises no command, or none any more.
fn end_idle(guardian: Pid) {
    let _ = kill_process(guardian, Signo::KILL);
    reap_one(guardian);
}

fn reap_one(pid: Pid) {
    while matches!(waitpid(Some(pid), WaitOptions::empty()), Err(Errno::INTR)) {}
}

/// An order that the guardian hasn't acknowledged.
#[derive(Debug)]
struct UnackedOrder {
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
    unanswered: VecDeque<UnackedOrder>,
    last_report: BootTime,
    /// The last deadlines that the guardian acknowledged; `None` before the start.
    acknowledged: Option<Deadlines>,
    /// An orderly stop: when it was requested, and when KILL follows.
    stopping: Option<Deadlines>,
    /// When the command reaches its maximum runtime, and when KILL follows.
    time_up: Option<Deadlines>,
    told_to_kill: Option<BootTime>,
    termed: bool,
    lapsed: bool,
    command: Option<Pid>,
    /// How the command ended, if processes that it started outlived it.
    outlived: Option<ProcessEnd>,
    joined: bool,
    closed: bool,
    over: bool,
    takeover: Option<Takeover>,
    events: VecDeque<Event>,
}

impl Supervisor {
    /// Orders the guardian to execute the command, unless `start_by` has passed by then.
    ///
    /// [`Event::Started`] or [`Event::CannotStart`] follows. The guardian keeps `lifelines` open
    /// until the tree is dead, and shuts them down if the lease runs out while dlock is stopped.
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
        let order = Order::Start {
            start_by,
            deadlines,
            environment: environment.to_vec(),
        };
        match self.order_with(&order, Some(deadlines), lifelines) {
            // The guardian is gone; the next event reports its end.
            Err(error) if error.kind() != io::ErrorKind::InvalidInput => {}
            other => other?,
        }
        self.acknowledged = Some(deadlines);
        self.time_up = self.time_up_from(start_by);
        Ok(())
    }

    /// Sends the guardian the deadlines of a confirmed renewal. Has no effect after
    /// [`Event::DeadlineTerm`].
    pub fn extend(&mut self, deadlines: Deadlines) {
        if !self.lapsed {
            let _ = self.order(&Order::Extend(deadlines), Some(deadlines));
        }
    }

    /// Kills the tree at once, since another process has the lock. Does nothing with
    /// [`OnLost::Continue`].
    pub fn lost(&mut self) {
        if self.plan.on_lost != OnLost::Continue {
            let now = BootClock::read();
            self.told_to_kill = Some(now);
            if let Some(takeover) = &mut self.takeover {
                takeover.kill_no_later_than(now);
            }
            let _ = self.order(&Order::Lost, None);
        }
    }

    /// Stops the command in order: TERM to the tree, `grace`, KILL. Keep renewing and extending
    /// meanwhile.
    ///
    /// A repeated call takes effect only if it brings KILL forward.
    pub fn stop(&mut self, grace: Duration) {
        let now = BootClock::read();
        let kill_at = now.plus(grace);
        if self.stopping.is_none_or(|before| kill_at < before.kill_at) {
            self.stopping = Some(Deadlines {
                term_at: self.stopping.map_or(now, |before| before.term_at),
                kill_at,
            });
            if let Some(takeover) = &mut self.takeover {
                takeover.kill_no_later_than(kill_at);
            }
            let _ = self.order(&Order::Stop(grace), None);
        }
    }

    /// Stops dlock as `signal` would have, together with its command. Returns when dlock was
    /// continued.
    ///
    /// The guardian continues dlock when the command is no longer stopped. Check the deadline first
    /// after the return: any amount of time may have passed.
    pub fn stop_with_command(&mut self, signal: i32) {
        // Without a guardian no process would continue dlock.
        if self.order(&Order::Pause(true), None).is_ok() {
            signals::stop_self(signal);
            let _ = self.order(&Order::Pause(false), None);
        }
    }

    /// Forwards a signal to the command, unless the terminal or the guardian already sent the
    /// signal to the command.
    pub fn forward(&mut self, signal: Signal) {
        // The kernel sends a hang-up to the session's leader alone, which may be dlock.
        let from_terminal = signal.from_terminal && signal.number != libc::SIGHUP;
        if !(from_terminal && self.joined) && signal.sender != self.guardian() {
            let _ = self.order(&Order::Forward(signal.number), None);
        }
    }

    /// Takes the command's output, if it was captured ([`Plan::capture`]). Call it after the last
    /// event.
    pub fn printed(&mut self) -> Option<CapturedOutput> {
        self.output.take().map(Capture::finish)
    }

    /// Returns the guardian's PID.
    pub fn guardian(&self) -> i32 {
        self.guardian.as_raw_pid()
    }

    /// Ends the guardian because the lock was not taken, and reaps it. Call it instead of
    /// [`Supervisor::start`].
    pub fn give_up(self) {
        if self.acknowledged.is_none() && !self.reaped {
            end_idle(self.guardian);
        }
    }

    /// Reaps the guardian after the last event. Release the lock first: the guardian takes a moment
    /// to end.
    pub fn finish(self) {
        if self.over && !self.reaped {
            // The guardian sent its last report. dlock kills it, since a stopped guardian would
            // never end.
            end_idle(self.guardian);
        }
    }

    /// Returns the next event. Cancel safe. Never returns again after the last event.
    ///
    /// It also reaps processes that are reparented to dlock (as PID 1: all orphans), so poll it
    /// always, even before the start.
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

    fn order_with(
        &mut self,
        order: &Order,
        deadlines: Option<Deadlines>,
        descriptors: &[OwnedFd],
    ) -> io::Result<()> {
        self.sent += 1;
        let sent = transmit(
            self.socket.get_ref(),
            &encode(&(self.sent, order)),
            descriptors,
        );
        if !matches!(&sent, Err(error) if error.kind() == io::ErrorKind::InvalidInput) {
            // Also when sending failed: a full socket means that the guardian doesn't read.
            self.unanswered.push_back(UnackedOrder {
                number: self.sent,
                since: BootClock::read(),
                deadlines,
            });
        }
        sent
    }

    fn receive(&mut self) {
        while !self.closed {
            match receive(self.socket.get_ref()) {
                Received::Nothing => return,
                Received::Closed => self.closed = true,
                Received::Datagram(datagram, _) => {
                    self.last_report = BootClock::read();
                    if let Some(report) = decode(&datagram) {
                        self.handle_report(report);
                    }
                }
            }
        }
        if !self.over && self.takeover.is_none() {
            self.take_over(false);
        }
    }

    fn handle_report(&mut self, report: Report) {
        let event = match report {
            Report::Ack(number) => {
                while let Some(done) = self
                    .unanswered
                    .front()
                    .filter(|order| order.number <= number)
                {
                    self.acknowledged = done.deadlines.or(self.acknowledged);
                    self.unanswered.pop_front();
                }
                return;
            }
            Report::Started { pid, joined } => {
                self.command = Pid::from_raw(pid);
                self.joined = joined;
                self.time_up = self.time_up_from(self.last_report);
                Event::Started { pid }
            }
            Report::CannotStart(why) => {
                self.over = true;
                Event::CannotStart(why)
            }
            Report::TimeUp => Event::TimeUp,
            Report::Stopped(signal) => Event::Stopped { signal },
            Report::Continued => Event::Continued,
            Report::Outlived(end) => {
                self.outlived = Some(end).filter(|_| !self.termed);
                return;
            }
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
                Event::Ended(Ended {
                    by_itself: ended.by_itself && (self.outlived.is_some() || !self.termed),
                    ..ended
                })
            }
        };
        self.events.push_back(event);
    }

    /// Collects children that are neither the command nor its tree: the guardian, and as PID 1 all
    /// orphans.
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
