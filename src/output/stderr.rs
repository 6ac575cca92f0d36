//! stderr, for people: lines that never hold up what keeps a lock.
//!
//! A stopped terminal (Ctrl-S) or a full pipe blocks every writer. So a thread of its own writes while a lease is held, and lines that
//! don't fit into its queue are dropped. O_NONBLOCK is no way: it is a property of the terminal, for all that use it.

use std::{
    io::{self, Write as _},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread,
    time::Duration,
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// How many lines may wait to be written.
const MOST: usize = 64;

enum Item {
    Text(String),
    /// Answered when all before it is written.
    Mark(SyncSender<()>),
}

enum Way {
    Direct,
    /// By a thread, which is started for the first line.
    Aside(Option<SyncSender<Item>>),
}

static WAY: Mutex<Way> = Mutex::new(Way::Direct);

fn way() -> MutexGuard<'static, Way> {
    WAY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// From now on no line is waited for. Call it only where no process is forked any more.
pub fn write_aside() {
    let mut way = way();
    if matches!(*way, Way::Direct) {
        *way = Way::Aside(None);
    }
}

/// Waits at most so long until all lines are written; without a limit until they are. Whether they are.
pub fn drain(at_most: Option<Duration>) -> bool {
    let writer = match &*way() {
        Way::Aside(Some(writer)) => writer.clone(),
        _ => return true,
    };
    let (mark, marked) = sync_channel(1);
    // A full queue is one that is not read.
    if writer.try_send(Item::Mark(mark.clone())).is_err() && (at_most.is_some() || writer.send(Item::Mark(mark)).is_err()) {
        return false;
    }
    match at_most {
        Some(at_most) => marked.recv_timeout(at_most).is_ok(),
        None => marked.recv().is_ok(),
    }
}

/// Whether a line stands on the terminal that is drawn over itself.
static DRAWN: AtomicBool = AtomicBool::new(false);

/// What takes that line away.
const CLEARED: &str = "\r\x1b[K";

/// Draws a line in the place of the one that stands there. It goes before anything else is printed.
pub(super) fn draw(text: &str) {
    DRAWN.store(true, Ordering::Relaxed);
    send(&format!("{CLEARED}{text}"));
}

/// Takes the drawn line away, if there is one.
pub(super) fn clear() {
    if DRAWN.swap(false, Ordering::Relaxed) {
        send(CLEARED);
    }
}

/// One write, so that lines of several processes don't mix. A lost diagnostic changes nothing.
pub(super) fn lines(text: &str) {
    if DRAWN.swap(false, Ordering::Relaxed) { send(&format!("{CLEARED}{text}")) } else { send(text) }
}

fn send(text: &str) {
    let mut way = way();
    let Way::Aside(writer) = &mut *way else {
        drop(way);
        return write(text);
    };
    if writer.is_none() {
        *writer = start();
    }
    match writer {
        Some(writer) => {
            let _ = writer.try_send(Item::Text(text.to_owned()));
        }
        // No thread is available.
        None if takes_more() => write(text),
        None => {}
    }
}

fn start() -> Option<SyncSender<Item>> {
    let (sender, items) = sync_channel(MOST);
    thread::Builder::new().name("dlock-stderr".into()).spawn(move || run(&items)).ok()?;
    Some(sender)
}

fn run(items: &Receiver<Item>) {
    for item in items {
        match item {
            Item::Text(text) => write(&text),
            Item::Mark(mark) => {
                let _ = mark.try_send(());
            }
        }
    }
}

fn write(text: &str) {
    let _ = io::stderr().write_all(text.as_bytes());
}

fn takes_more() -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(&io::stderr(), PollFlags::OUT)], Some(&now)).is_ok_and(|ready| ready > 0)
}
