//! The captured output of the command: a bounded tail of stdout and stderr, which share one pipe.
//!
//! A thread reads the pipe, so that much output delays no renewal. dlock never waits for the end of
//! file: a leftover process may keep the pipe open.

use std::{
    io,
    os::fd::OwnedFd,
    thread::{self, JoinHandle},
};

use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, eventfd, poll},
    io::{Errno, read, write},
};

/// How many bytes are kept.
const MOST: usize = 1 << 20;
/// The size of one read: a pipe's capacity.
const CHUNK: usize = 64 << 10;

/// The captured output of a command.
#[derive(Debug, Default)]
pub struct CapturedOutput {
    /// The end of the output.
    pub tail: Vec<u8>,
    /// How many bytes before the tail were dropped.
    pub left_out: u64,
}

impl CapturedOutput {
    fn add(&mut self, bytes: &[u8]) {
        self.tail.extend_from_slice(bytes);
        // Not at each read: moving a megabyte takes longer than reading one.
        if self.tail.len() > 2 * MOST {
            self.cut();
        }
    }

    fn cut(&mut self) {
        let more = self.tail.len().saturating_sub(MOST);
        // Keep whole lines, if there are any.
        let line = self.tail[more..]
            .iter()
            .position(|byte| *byte == b'\n')
            .filter(|_| more > 0);
        let more = line.map_or(more, |line| more + line + 1);
        self.tail.drain(..more);
        self.left_out += more as u64;
    }
}

/// The reader of a command's output.
#[derive(Debug)]
pub struct Capture {
    stop: OwnedFd,
    reader: JoinHandle<CapturedOutput>,
}

impl Capture {
    /// Starts to read from `pipe`, which must be non-blocking. Call it only after the last fork.
    ///
    /// # Errors
    /// If the system has no threads or descriptors left.
    pub fn start(pipe: OwnedFd) -> io::Result<Self> {
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let stopped = stop.try_clone()?;
        let reader = thread::Builder::new()
            .name("dlock-output".into())
            .spawn(move || collect(&pipe, &stopped))?;
        Ok(Self { stop, reader })
    }

    /// Returns the output so far.
    pub fn finish(self) -> CapturedOutput {
        let _ = write(&self.stop, &1_u64.to_ne_bytes());
        self.reader.join().unwrap_or_default()
    }
}

fn collect(pipe: &OwnedFd, stopped: &OwnedFd) -> CapturedOutput {
    let mut printed = CapturedOutput::default();
    let mut buffer = vec![0; CHUNK];
    // The last read takes only the pipe's content, since a leftover process may print endlessly.
    let mut last = None;
    while last != Some(0) {
        match read(pipe, &mut buffer) {
            Ok(0) => break,
            Ok(length) => printed.add(&buffer[..length]),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) if last.is_none() => {
                let _ = poll(
                    &mut [
                        PollFd::new(pipe, PollFlags::IN),
                        PollFd::new(stopped, PollFlags::IN),
                    ],
                    None,
                );
            }
            Err(_) => break,
        }
        last = match last {
            None if read(stopped, &mut [0; 8]).is_ok() => Some(MOST / CHUNK),
            last => last.map(|last| last - 1),
        };
    }
    printed.cut();
    printed
}

#[cfg(test)]
mod tests {
    use rustix::pipe::{PipeFlags, pipe_with};

    use super::*;

    #[test]
    fn the_tail_is_kept_in_whole_lines() {
        let mut printed = CapturedOutput::default();
        for n in 0..400_000 {
            printed.add(format!("line {n}\n").as_bytes());
        }
        printed.cut();
        assert!(printed.tail.len() <= MOST && printed.tail.len() > MOST - 20);
        assert!(printed.tail.starts_with(b"line ") && printed.tail.ends_with(b"line 399999\n"));
        let all: u64 = (0..400_000)
            .map(|n: u32| n.to_string().len() as u64 + 6)
            .sum();
        assert_eq!(printed.left_out + printed.tail.len() as u64, all);
    }

    #[test]
    fn a_pipe_that_stays_open_is_not_waited_for() {
        let (read, open) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).unwrap();
        write(&open, b"said\n").unwrap();
        let capture = Capture::start(read).unwrap();
        assert_eq!(capture.finish().tail, b"said\n");
        drop(open);
    }
}
