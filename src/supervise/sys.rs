//! The only `unsafe` of dlock: fork, exec, signal masks and signalfd, which rustix leaves out.
//!
//! Thin wrappers, each safe to call as long as the process has one thread (fork) and no Rust code
//! relies on the dispositions that are changed. This module makes no decisions.
#![allow(unsafe_code)]

use std::{
    ffi::CString,
    io, mem,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    ptr,
    sync::atomic::{AtomicBool, AtomicU8, Ordering},
};

use rustix::{
    process::{Pid, Signal},
    time::{Itimerspec, TimerfdTimerFlags, Timespec, timerfd_settime},
};
use tokio::io::{Interest, unix::AsyncFd};

use crate::lock::BootTime;

/// Which side of a fork this is.
#[derive(Debug)]
pub enum Fork {
    /// The calling process, with its new child.
    Parent(Pid),
    /// The new process.
    Child,
}

/// Forks. The caller must be single-threaded, so that the child may allocate.
pub fn fork() -> io::Result<Fork> {
    // SAFETY: no other thread exists that could hold a lock of the allocator.
    match unsafe { libc::fork() } {
        0 => Ok(Fork::Child),
        pid => Pid::from_raw(pid)
            .filter(|_| pid > 0)
            .map(Fork::Parent)
            .ok_or_else(io::Error::last_os_error),
    }
}

/// Runs `work`, which must end in [`exec`] or return quickly, in a new process that borrows this
/// one's memory (as `vfork`), and waits until it has. Nothing is copied, so that a large parent
/// starts a small command as fast as a small one does.
///
/// Changes that `work` makes in memory affect the caller too; signal mask, dispositions and
/// descriptors are separate. `arguments` is the number of the command's arguments: [`exec`] needs
/// more stack for more of them.
pub fn fork_to_exec(arguments: usize, work: &mut dyn FnMut()) -> io::Result<Pid> {
    struct ForkWork<'a>(&'a mut dyn FnMut());
    extern "C" fn enter(work: *mut libc::c_void) -> libc::c_int {
        // SAFETY: the pointer below, to a value that lives until this process has ended or called
        // exec.
        let work: &mut ForkWork<'_> = unsafe { &mut *work.cast() };
        (work.0)();
        127
    }
    // execvp copies a script's argument list and each path that it tries onto the stack. Unused
    // pages cost nothing.
    let stack = Stack::new(
        (256 << 10) + arguments.saturating_mul(2 * mem::size_of::<*const libc::c_char>()),
    )?;
    let mut work = ForkWork(work);
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    // SAFETY: the stack is aligned and large enough; the caller is suspended, and was the only
    // thread, so nothing else uses its memory.
    let pid = unsafe { libc::clone(enter, stack.top(), flags, (&raw mut work).cast()) };
    Pid::from_raw(pid)
        .filter(|_| pid > 0)
        .ok_or_else(io::Error::last_os_error)
}

/// Memory for a stack, above a guard that no process may touch.
struct Stack {
    base: *mut libc::c_void,
    length: usize,
}

impl Stack {
    /// The guard's size, at least one page on every architecture.
    const GUARD: usize = 64 << 10;

    fn new(size: usize) -> io::Result<Self> {
        let length = size
            .next_multiple_of(Self::GUARD)
            .saturating_add(Self::GUARD);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_STACK | libc::MAP_NORESERVE;
        // SAFETY: a new mapping, which replaces none.
        let base = unsafe {
            libc::mmap(
                ptr::null_mut(),
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                flags,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let stack = Self { base, length };
        // SAFETY: the stack's lowest pages, which no code uses yet.
        if unsafe { libc::mprotect(stack.base, Self::GUARD, libc::PROT_NONE) } == 0 {
            Ok(stack)
        } else {
            Err(io::Error::last_os_error())
        }
    }

    /// Returns where the stack begins: stacks grow down.
    fn top(&self) -> *mut libc::c_void {
        self.base.wrapping_byte_add(self.length)
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and the process that used it has ended or called exec.
        unsafe { libc::munmap(self.base, self.length) };
    }
}

/// Closes an inherited descriptor that no `OwnedFd` owns.
pub fn close(number: i32) {
    // SAFETY: the caller guarantees that no OwnedFd has this number.
    unsafe { libc::close(number) };
}

/// Ends the process without destructors, exit handlers or flushing.
pub fn exit_now(status: i32) -> ! {
    // SAFETY: always sound.
    unsafe { libc::_exit(status) }
}

/// Replaces the process by `argv` as `execvp` does: PATH lookup, and /bin/sh for a script without
/// `#!`. Returns on failure only.
pub fn exec(argv: &[CString], environment: &[CString]) -> io::Error {
    let pointers = |list: &[CString]| -> Vec<*const libc::c_char> {
        list.iter()
            .map(|s| s.as_ptr())
            .chain([ptr::null()])
            .collect()
    };
    let (argv, environment) = (pointers(argv), pointers(environment));
    // SAFETY: both lists end with a null pointer and outlive the call.
    unsafe { libc::execvpe(argv[0], argv.as_ptr(), environment.as_ptr()) };
    io::Error::last_os_error()
}

/// A set of signals.
#[derive(Clone, Copy)]
pub struct SignalSet(libc::sigset_t);

impl SignalSet {
    /// Returns the set of these signals.
    pub fn of(signals: &[i32]) -> Self {
        // SAFETY: sigemptyset initialises the set; a bad number is refused by sigaddset.
        unsafe {
            let mut set = mem::zeroed();
            libc::sigemptyset(&raw mut set);
            for &signal in signals {
                libc::sigaddset(&raw mut set, signal);
            }
            Self(set)
        }
    }
}

impl std::fmt::Debug for SignalSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // SAFETY: the set is initialised.
        let has = |signal: &i32| unsafe { libc::sigismember(&raw const self.0, *signal) == 1 };
        f.debug_set().entries((1..=64).filter(has)).finish()
    }
}

fn change_mask(how: i32, set: &SignalSet) -> SignalSet {
    let mut old = SignalSet::of(&[]);
    // SAFETY: both sets are initialised; the call can only fail for a bad `how`.
    unsafe { libc::pthread_sigmask(how, &raw const set.0, &raw mut old.0) };
    old
}

/// Blocks these signals too. Returns the previous mask.
pub fn block(set: &SignalSet) -> SignalSet {
    change_mask(libc::SIG_BLOCK, set)
}

/// Unblocks these signals. Pending signals take effect before this function returns.
pub fn unblock(set: &SignalSet) {
    change_mask(libc::SIG_UNBLOCK, set);
}

/// Blocks every signal that can be blocked, even the two that the C library reserves for threads:
/// dlock has none here.
pub fn block_all() {
    let all = u64::MAX;
    // SAFETY: the kernel reads one set of 64 signals.
    unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            libc::SIG_SETMASK,
            &raw const all,
            ptr::null_mut::<u64>(),
            mem::size_of::<u64>(),
        )
    };
}

/// Sets the mask. Returns the previous mask.
pub fn set_mask(set: &SignalSet) -> SignalSet {
    change_mask(libc::SIG_SETMASK, set)
}

fn disposition(signal: i32) -> libc::sighandler_t {
    // SAFETY: a null new action only reads.
    unsafe {
        let mut action: libc::sigaction = mem::zeroed();
        libc::sigaction(signal, ptr::null(), &raw mut action);
        action.sa_sigaction
    }
}

/// Whether the signal is currently ignored.
pub fn is_ignored(signal: i32) -> bool {
    disposition(signal) == libc::SIG_IGN
}

/// Gives the signal its default action, or ignores it.
pub fn set_ignored(signal: i32, ignored: bool) {
    // SAFETY: neither disposition runs code of ours.
    unsafe {
        libc::signal(
            signal,
            if ignored {
                libc::SIG_IGN
            } else {
                libc::SIG_DFL
            },
        )
    };
}

/// Makes the signal have no effect until the next exec, unless the signal is already ignored.
pub fn ignore_until_exec(signal: i32) {
    extern "C" fn do_nothing(_: libc::c_int) {}
    if !is_ignored(signal) {
        let handler = do_nothing as extern "C" fn(libc::c_int);
        // SAFETY: a handler that does nothing may run at any time.
        unsafe { libc::signal(signal, handler as libc::sighandler_t) };
    }
}

/// Sends a signal to this process.
pub fn raise(signal: i32) {
    // SAFETY: always sound.
    unsafe { libc::kill(libc::getpid(), signal) };
}

/// Returns the process group of this process; `None` if its leader is outside this PID namespace.
pub fn own_group() -> Option<Pid> {
    // SAFETY: always sound.
    Pid::from_raw(unsafe { libc::getpgrp() })
}

/// Returns the signal with that number, if it has a name.
pub fn signal(number: i32) -> Option<Signal> {
    Signal::from_named_raw(number)
}

/// Returns a non-blocking, close-on-exec descriptor that receives these signals. Block the signals
/// first.
pub fn signalfd(set: &SignalSet) -> io::Result<OwnedFd> {
    // SAFETY: the set is initialised; the new descriptor is ours alone.
    unsafe {
        let fd = libc::signalfd(-1, &raw const set.0, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
        if fd < 0 {
            Err(io::Error::last_os_error())
        } else {
            Ok(OwnedFd::from_raw_fd(fd))
        }
    }
}

/// Returns the next signal from a [`signalfd`], with its `si_code` and its sender; `None` if there
/// is none.
pub fn read_signal(fd: &OwnedFd) -> Option<(i32, i32, i32)> {
    // SAFETY: the kernel fills exactly one record, or nothing.
    unsafe {
        let mut info: libc::signalfd_siginfo = mem::zeroed();
        let size = mem::size_of::<libc::signalfd_siginfo>();
        let got = libc::read(fd.as_raw_fd(), (&raw mut info).cast(), size);
        if usize::try_from(got).ok() != Some(size) {
            return None;
        }
        Some((
            i32::try_from(info.ssi_signo).ok()?,
            info.ssi_code,
            info.ssi_pid.cast_signed(),
        ))
    }
}

static SIGPIPE_WAS_IGNORED: AtomicBool = AtomicBool::new(false);
/// One bit for each of stdin, stdout and stderr that was closed.
static WAS_CLOSED: AtomicU8 = AtomicU8::new(0);
static SIGXFSZ_WAS_IGNORED: AtomicBool = AtomicBool::new(false);

/// Records SIGPIPE's disposition and closed standard streams, before Rust's runtime ignores SIGPIPE
/// and opens `/dev/null`.
extern "C" fn remember_start() {
    SIGPIPE_WAS_IGNORED.store(is_ignored(libc::SIGPIPE), Ordering::Relaxed);
    // SAFETY: only asks for the flags of three numbers.
    let closed = |number: &i32| unsafe { libc::fcntl(*number, libc::F_GETFD) } < 0;
    WAS_CLOSED.store(
        (0..3).filter(closed).map(|number| 1 << number).sum(),
        Ordering::Relaxed,
    );
}

// SAFETY: the loader calls it once, before `main`; it only reads dispositions and flags and writes
// atomics.
#[used]
#[unsafe(link_section = ".init_array")]
static BEFORE_MAIN: extern "C" fn() = remember_start;

/// Closes each of stdin, stdout and stderr that was closed when this program was executed.
pub fn keep_closed_stdio() {
    let closed = WAS_CLOSED.load(Ordering::Relaxed);
    (0..3)
        .filter(|number| closed & 1 << number != 0)
        .for_each(close);
}

/// Makes a write beyond `ulimit -f` fail, as on a full disk, instead of ending this process and its
/// forks.
pub fn survive_large_files() {
    SIGXFSZ_WAS_IGNORED.store(is_ignored(libc::SIGXFSZ), Ordering::Relaxed);
    set_ignored(libc::SIGXFSZ, true);
}

/// Gives SIGPIPE and SIGXFSZ the dispositions that they had when this program was executed.
pub fn restore_dispositions() {
    set_ignored(libc::SIGPIPE, SIGPIPE_WAS_IGNORED.load(Ordering::Relaxed));
    set_ignored(libc::SIGXFSZ, SIGXFSZ_WAS_IGNORED.load(Ordering::Relaxed));
}

/// Registers a descriptor with the runtime for readability.
pub fn watch(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an OwnedFd names the same open file for as long as it exists.
    Ok(unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }?)
}

/// Makes the timer readable at `at`, which may have passed; never for `None`.
pub fn arm(timer: &OwnedFd, at: Option<BootTime>) {
    let none = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let value = at.map_or(none, |at| {
        let since = at.since_boot();
        let seconds = i64::try_from(since.as_secs())
            .unwrap_or(i64::MAX / 1_000_000_000)
            .min(i64::MAX / 1_000_000_000);
        Timespec {
            tv_sec: seconds,
            tv_nsec: i64::from(since.subsec_nanos()),
        }
    });
    let _ = timerfd_settime(
        timer,
        TimerfdTimerFlags::ABSTIME,
        &Itimerspec {
            it_interval: none,
            it_value: value,
        },
    );
}
