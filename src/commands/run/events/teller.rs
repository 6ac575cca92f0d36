//! Tells the status file and the service manager how a run goes on.
//!
//! A file or a socket may block, and neither a renewal nor the wait for a lock may: a thread writes.

use std::{
    io,
    sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    thread,
    time::Duration,
};

use sd_notify::NotifyState;

use crate::output::StatusFile;

/// How much more time a waiting run asks the service manager for, and how often.
const MORE: Duration = Duration::from_secs(60);
const EVERY: Duration = Duration::from_secs(10);
/// How long the last news may take once the run is over.
const LAST_WORD: Duration = Duration::from_secs(5);

/// How a run goes on.
pub struct News {
    /// The JSON object for the status file.
    pub file: String,
    /// The status for the service manager.
    pub manager: String,
    /// Whether the run has no lock yet.
    pub waits: bool,
}

/// The thread that writes.
pub struct Teller {
    news: Sender<News>,
    /// Closed once all is written.
    written: Receiver<()>,
}

impl Teller {
    /// Starts the thread, unless there is nothing to write to. Without a thread nothing is told.
    pub fn start(file: Option<StatusFile>) -> Option<Self> {
        let managed = std::env::var_os("NOTIFY_SOCKET").is_some();
        if file.is_none() && !managed {
            return None;
        }
        let ((news, received), (done, written)) = (channel(), channel());
        let name = thread::Builder::new().name("teller".into());
        let started: io::Result<_> = name.spawn(move || {
            write_all(&received, file.as_ref(), managed);
            drop::<Sender<()>>(done);
        });
        started.ok().map(|_| Self { news, written })
    }

    /// Hands over the news, without waiting.
    pub fn tell(&self, news: News) {
        // The thread lives as long as this value.
        let _ = self.news.send(news);
    }

    /// Waits until all is written, but not for ever.
    pub fn finish(self) {
        drop(self.news);
        let _ = self.written.recv_timeout(LAST_WORD);
    }
}

/// Writes the latest news until there will be no more. A failure is ignored: the status file's last
/// text tells of it.
fn write_all(received: &Receiver<News>, file: Option<&StatusFile>, managed: bool) {
    let notify = |states: &[NotifyState<'_>]| {
        if managed {
            let _ = sd_notify::notify(states);
        }
    };
    let more = NotifyState::ExtendTimeoutUsec(u32::try_from(MORE.as_micros()).unwrap_or(u32::MAX));
    notify(&[NotifyState::Status("asking for the lock"), more.clone()]);
    let mut waits = true;
    loop {
        let next = if waits && managed {
            received.recv_timeout(EVERY)
        } else {
            received.recv().map_err(|_| RecvTimeoutError::Disconnected)
        };
        match next {
            Ok(news) => {
                let news = received.try_iter().last().unwrap_or(news);
                waits = news.waits;
                if let Some(file) = file {
                    let _ = file.write(&news.file);
                }
                notify(&[NotifyState::Status(&news.manager)]);
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        if waits {
            notify(std::slice::from_ref(&more));
        }
    }
}
