//! Messages on stderr, which must never delay a renewal.
//!
//! A stopped terminal (Ctrl-S) or a full pipe blocks every writer. While a lease is held, a
//! separate thread writes, and lines that don't fit into its queue are dropped. O_NONBLOCK can't be
//! used: it would apply to all processes that share the terminal.

use std::{
    io,
    os::fd::AsFd,
    sync::{
        Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread,
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
};

/// Most texts in the thread's queue.
const QUEUE: usize = 64;

enum Route {
    Direct,
    /// Through a thread, which starts with the first line.
    Thread(Option<SyncSender<String>>),
}

static ROUTE: Mutex<Route> = Mutex::new(Route::Direct);

/// How many texts of the queue are not written yet.
static UNWRITTEN: Mutex<usize> = Mutex::new(0);
static WRITTEN: Condvar = Condvar::new();

fn unwritten() -> MutexGuard<'static, usize> {
    UNWRITTEN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn route() -> MutexGuard<'static, Route> {
    ROUTE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes through a thread from now on, so that no print blocks. Call it only after the last fork.
pub fn print_in_background() {
    let mut route = route();
    if matches!(*route, Route::Direct) {
        *route = Route::Thread(None);
    }
}

/// Waits until all lines are written, for `at_most`, and returns whether they are.
pub fn drain(at_most: Duration) -> bool {
    let waited = WRITTEN.wait_timeout_while(unwritten(), at_most, |texts| *texts > 0);
    !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
}

/// Whether the terminal shows a line that is redrawn in place.
static DRAWN: AtomicBool = AtomicBool::new(false);

/// The escape sequence that clears that line.
const CLEAR_LINE: &str = "\r\x1b[K";

/// Draws a line over the previously drawn one. Any other print clears it first.
pub(super) fn draw(text: &str) {
    DRAWN.store(true, Ordering::Relaxed);
    send(&format!("{CLEAR_LINE}{text}"));
}

/// Clears the drawn line, if there is one.
pub(super) fn clear() {
    if DRAWN.swap(false, Ordering::Relaxed) {
        send(CLEAR_LINE);
    }
}

/// Prints lines in one write, so that lines of several processes don't mix. Errors are ignored.
pub(super) fn lines(text: &str) {
    if DRAWN.swap(false, Ordering::Relaxed) {
        send(&format!("{CLEAR_LINE}{text}"));
    } else {
        send(text);
    }
}

fn send(text: &str) {
    let mut route = route();
    let Route::Thread(writer) = &mut *route else {
        drop(route);
        return write(text);
    };
    if writer.is_none() {
        *writer = start();
    }
    match writer {
        Some(writer) => {
            let mut texts = unwritten();
            *texts += usize::from(writer.try_send(text.to_owned()).is_ok());
        }
        // No thread is available.
        None if is_writable() => write(text),
        None => {}
    }
}

fn start() -> Option<SyncSender<String>> {
    let (sender, texts) = sync_channel(QUEUE);
    thread::Builder::new()
        .name("dlock-stderr".into())
        .spawn(move || run(&texts))
        .ok()?;
    Some(sender)
}

fn run(texts: &Receiver<String>) {
    for text in texts {
        write(&text);
        *unwritten() -= 1;
        WRITTEN.notify_all();
    }
}

fn write(text: &str) {
    let _ = write_all(io::stderr().lock(), text.as_bytes());
}

/// Writes all bytes, also to a descriptor that another process has made non-blocking.
///
/// # Errors
/// If not all of it could be written.
pub(super) fn write_all(fd: impl AsFd, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match rustix::io::write(&fd, bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => bytes = &bytes[written..],
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                let _ = poll(&mut [PollFd::new(&fd, PollFlags::OUT)], None);
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn is_writable() -> bool {
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    poll(
        &mut [PollFd::new(&io::stderr(), PollFlags::OUT)],
        Some(&now),
    )
    .is_ok_and(|ready| ready > 0)
}
