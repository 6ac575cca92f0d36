//! Everything that dlock prints: data on stdout, messages on stderr, one line at a time.
//!
//! This module decides nothing and never fails the job: a line that can't be written is dropped.
//! Text from other users (metadata, stored names, server messages) is escaped here before it
//! reaches a terminal.

mod captured_output;
mod columns;
pub mod doctor;
mod event;
pub mod explain;
pub mod history;
mod holders;
pub mod inspect;
pub mod json;
pub mod list;
mod lock_view;
mod metrics;
pub mod names;
pub mod overview;
mod progress;
mod replace;
pub mod report;
mod skip;
mod skipped;
mod status_file;
mod stderr;
mod syslog;
mod time;
pub mod timeline;
pub mod usual;
mod verdict;
mod waiting;

use std::{
    error::Error as _,
    fmt::Write as _,
    io::{self, IsTerminal as _},
    os::fd::AsFd as _,
};

pub use captured_output::last_lines;
pub use event::{EventReport, RunEvent};
pub use holders::{described, fence, holder, loss, mark, shell, user_at_host};
pub use lock_view::LockView;
pub use metrics::MetricsFile;
pub use progress::{Progress, waiting_for};
pub use replace::{Access, replace};
use serde::Serialize;
pub use skip::{Cause, Skip};
pub use status_file::StatusFile;
pub use stderr::{drain, print_in_background};
pub use syslog::{Syslog, SyslogPolicy};
pub use time::{Now, age, waited};
pub use verdict::{CommandEnd, ReleaseResult, RunResult, Verdict};
pub use waiting::Waiting;

use crate::{
    exit,
    lock::{Break, Error, Key, Kind, Result, plain, printable},
};

/// Output options of a command.
#[derive(Clone, Debug, Default)]
#[allow(clippy::struct_excessive_bools)] // independent options
pub struct Output {
    /// Print one JSON object instead of text.
    pub json: bool,
    /// Print the JSON object to stderr, because stdout belongs to the command (`run`).
    pub json_on_stderr: bool,
    /// Show the output of `run`'s command only if the run failed.
    pub only_on_failure: bool,
    /// Suppress notices.
    pub quiet: bool,
    /// Print the causes of errors.
    pub verbose: bool,
    /// Force colours on or off; `None` lets the terminal decide.
    pub color: Option<bool>,
}

/// How tables are drawn: the terminal's width, and whether it has colours.
#[derive(Clone, Copy, Debug, Default)]
pub struct TableStyle {
    /// The terminal's columns; `None` if lines are not cut.
    pub width: Option<usize>,
    /// Whether to use bold and colours.
    pub color: bool,
}

impl TableStyle {
    /// Returns `text` in the given `sgr` (SGR numbers), or unchanged without colours.
    pub fn paint(&self, sgr: &str, text: &str) -> String {
        if self.color {
            format!("\x1b[{sgr}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }
}

/// Returns `text` wrapped between words to the terminal's width, all lines but the first indented.
fn wrapped(text: &str, indent: usize, style: TableStyle) -> String {
    let text = printable(text);
    let Some(room) = style
        .width
        .map(|width| width.saturating_sub(indent).max(20))
    else {
        return text.into_owned();
    };
    columns::lines(&text, room).join(&format!("\n{}", " ".repeat(indent)))
}

impl Output {
    /// Whether the output is JSON.
    pub fn is_json(&self) -> bool {
        self.json
    }

    /// Whether stderr is a terminal.
    pub fn attended(&self) -> bool {
        io::stderr().is_terminal()
    }

    /// Returns how tables are drawn on stdout.
    pub fn table_style(&self) -> TableStyle {
        let terminal = io::stdout().is_terminal();
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let forbidden = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let width = terminal.then(|| window(io::stdout().as_fd()).0);
        TableStyle {
            width,
            color: self.color.unwrap_or(terminal && !dumb && !forbidden),
        }
    }

    /// Returns the number of lines of the terminal.
    pub fn height(&self) -> usize {
        window(io::stdout().as_fd()).1
    }

    /// Writes data to stdout.
    ///
    /// # Errors
    /// If not all of it could be written.
    pub fn data(&self, text: &str) -> io::Result<()> {
        self.bytes(text.as_bytes())
    }

    /// Writes bytes to stdout.
    ///
    /// # Errors
    /// If not all of it could be written.
    pub fn bytes(&self, bytes: &[u8]) -> io::Result<()> {
        stderr::clear();
        // Nothing is buffered: all data is written here.
        stderr::write_all(io::stdout().lock(), bytes)
    }

    /// Writes `report` as the one JSON object.
    ///
    /// # Errors
    /// If not all of it could be written.
    pub fn json(&self, report: &impl Serialize) -> io::Result<()> {
        let text = json::line(report);
        if self.json_on_stderr {
            stderr::write_all(io::stderr().lock(), text.as_bytes())
        } else {
            self.data(&text)
        }
    }

    /// Returns the exit status after writing data: `status`, unless the data was lost. A reader
    /// that closed the pipe early is not an error.
    pub fn finish(&self, written: io::Result<()>, status: u8) -> u8 {
        match written {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => self.unwritten(&error, ""),
            _ => status,
        }
    }

    /// Reports that stdout can't be written, with the consequence. Returns the exit status.
    pub fn unwritten(&self, error: &io::Error, consequence: &str) -> u8 {
        let joint = if consequence.is_empty() { "" } else { ": " };
        say(&format!(
            "stdout can't be written: {}{joint}{consequence}",
            plain(error)
        ));
        exit::OUTPUT
    }

    /// Refuses to take a lock while stdout is closed, because its token could not be printed.
    ///
    /// # Errors
    /// [`Kind::Usage`] if stdout is closed.
    pub fn check_token_has_a_reader(&self) -> Result<()> {
        // Rust replaces a descriptor that was closed at start with /dev/null, open for reading and
        // writing. `>/dev/null` is open for writing only, and allowed.
        let closed = rustix::fs::fstat(io::stdout().as_fd()).is_ok_and(|stat| {
            let is_null = rustix::fs::FileType::from_raw_mode(stat.st_mode).is_char_device()
                && (
                    rustix::fs::major(stat.st_rdev),
                    rustix::fs::minor(stat.st_rdev),
                ) == (1, 3);
            is_null
                && rustix::fs::fcntl_getfl(io::stdout().as_fd())
                    .is_ok_and(|flags| flags.contains(rustix::fs::OFlags::RDWR))
        });
        if closed {
            return Err(Error::new(
                Kind::Usage,
                "stdout is closed: the token that releases this lock could not be printed",
            )
            .hint(">/dev/null throws it away"));
        }
        Ok(())
    }

    /// Whether verbose output is on.
    pub fn is_verbose(&self) -> bool {
        self.verbose
    }

    /// Prints a line, unless notices are suppressed.
    pub fn notice(&self, text: &str) {
        if !self.quiet {
            say(text);
        }
    }

    /// Prints a line, even if notices are suppressed.
    pub fn warn(&self, text: &str) {
        say(text);
    }

    /// Prints a notice and a hint, unless notices are suppressed.
    pub fn notice_with_hint(&self, text: &str, hint: &str) {
        if !self.quiet {
            stderr::lines(&format!(
                "dlock: {}\nhint: {}\n",
                printable(text),
                printable(hint)
            ));
        }
    }

    /// Prints a hint at the next step, if stderr is a terminal.
    pub fn tip(&self, hint: &str) {
        if self.attended() && !self.quiet && !self.json {
            stderr::lines(&format!("hint: {}\n", printable(hint)));
        }
    }

    /// Prints a warning and a hint.
    pub fn warn_with_hint(&self, text: &str, hint: &str) {
        stderr::lines(&format!(
            "dlock: {}\nhint: {}\n",
            printable(text),
            printable(hint)
        ));
    }

    /// Prints an error, as text or as the one JSON object, and returns its exit status.
    pub fn error(&self, error: &Error) -> u8 {
        let status = exit::of(error);
        if self.json {
            return self.finish(self.json(&json::Failed::new(error, status)), status);
        }
        self.error_lines(error);
        status
    }

    /// Prints an error as text.
    pub fn error_lines(&self, error: &Error) {
        let mut text = format!("dlock: {}\n", printable(&error.to_string()));
        let mut cause = error.source();
        while let Some(error) = cause.filter(|_| self.verbose) {
            let _ = writeln!(text, "cause: {}", printable(&error.to_string()));
            cause = error.source();
        }
        if let Some(hint) = error.hint.as_deref().filter(|hint| !hint.is_empty()) {
            let _ = writeln!(text, "hint: {}", printable(hint));
        }
        stderr::lines(&text);
    }

    /// Reports that the token does not hold the lock, and returns the exit status.
    pub fn not_held(&self, key: &Key, backend: &str) -> u8 {
        if self.json {
            return self.finish(self.json(&json::NotHeld::new(key, backend)), exit::NOT_HELD);
        }
        let text = format!("{}: the token does not hold this lock", key.escaped());
        self.warn_with_hint(
            &text,
            &format!(
                "its lease ended, or it was released: dlock inspect {} shows its holder",
                holders::shell(key)
            ),
        );
        exit::NOT_HELD
    }

    /// Reports that the hold is marked to be broken and was not extended, and returns the exit
    /// status.
    pub fn marked_broken(&self, key: &Key, backend: &str, mark: &Break) -> u8 {
        if self.json {
            return self.finish(
                self.json(&json::ToBeBroken::new(key, backend, mark)),
                exit::NOT_HELD,
            );
        }
        self.warn_with_hint(
            &format!(
                "{}: the lock is being broken {}: not renewed",
                key.escaped(),
                holders::mark(mark)
            ),
            "stop the protected work and release the lock; it ends with its lease at the latest",
        );
        exit::NOT_HELD
    }

    /// Reports in a notice that the given token does not hold the lock, and returns the exit
    /// status.
    pub fn not_verified(&self, key: &Key, backend: &str, why: &str) -> u8 {
        if self.json {
            return self.finish(self.json(&json::NotHeld::new(key, backend)), exit::NOT_HELD);
        }
        self.notice_with_hint(
            &format!("{}: {why}", key.escaped()),
            &format!("dlock inspect {} shows its holder", holders::shell(key)),
        );
        exit::NOT_HELD
    }

    /// Reports that there is no hold to break, and returns the exit status.
    pub fn not_broken(&self, key: &Key, backend: &str, (why, is_held): (&str, bool)) -> u8 {
        if self.json {
            return self.finish(self.json(&json::NotHeld::new(key, backend)), exit::NOT_HELD);
        }
        let key_word = holders::shell(key);
        let hint = if is_held {
            format!("dlock inspect {key_word} shows its holder")
        } else {
            format!("dlock history {key_word} shows its runs, and how they ended")
        };
        self.warn_with_hint(&format!("{}: {why}", key.escaped()), &hint);
        exit::NOT_HELD
    }

    /// Returns the exit status of a wait that a signal ended. With JSON, prints the object.
    pub fn interrupted(&self, key: &Key, signal: i32) -> u8 {
        let status = exit::signalled(signal);
        if self.json {
            self.finish(
                self.json(&json::Interrupted::new(key, signal, status)),
                status,
            )
        } else {
            status
        }
    }

    /// Reports that `run` skips, if stderr is a terminal, verbose output is on, or this is the end
    /// of a wait that was asked for.
    pub fn skipped(&self, skip: &Skip<'_>, after_a_wait: bool) {
        if (self.attended() || self.verbose || after_a_wait) && !self.json {
            self.notice_with_hint(&skip.text(), &skip.hint());
        }
    }

    /// Reports that the lock was lost, even if notices are suppressed. With JSON, the verdict
    /// reports it.
    pub fn lost(&self, key: &Key, how: &str, hint: &str) {
        if !self.json {
            self.warn_with_hint(
                &format!("{}: the lock was lost: {how}", key.escaped()),
                hint,
            );
        }
    }

    /// Reports that an operator breaks the lock of `run`, even if notices are suppressed. With
    /// JSON, the verdict reports it.
    pub fn broken(&self, key: &Key, mark: &Break) {
        if !self.json {
            self.warn_with_hint(
                &format!(
                    "{}: the lock is being broken {}",
                    key.escaped(),
                    holders::mark(mark)
                ),
                "the command is being stopped; the lock is released when its process tree is empty",
            );
        }
    }

    /// Reports that the limit of `option` stops the command of `run`, even if notices are
    /// suppressed. With JSON, the verdict reports it.
    pub fn timed_out(&self, key: &Key, option: &str) {
        if !self.json {
            let hint = format!(
                "the lock is released when its process tree is empty; dlock history {} tells how long runs usually take",
                holders::shell(key)
            );
            self.warn_with_hint(
                &format!(
                    "{}: {option} is over: the command is being stopped",
                    key.escaped()
                ),
                &hint,
            );
        }
    }

    /// Prints the verdict of `run`, if the output is JSON.
    pub fn verdict(&self, verdict: &Verdict) {
        if self.json {
            stderr::lines(&verdict.json());
        }
    }

    /// Reports that the lock was not taken, for all commands except `run`, and returns the exit
    /// status.
    pub fn busy(&self, skip: &Skip<'_>, backend: &str, status: u8) -> u8 {
        if self.json {
            return self.finish(
                self.json(&json::Busy::new(skip, backend, &Now::read(), status)),
                status,
            );
        }
        self.notice_with_hint(&skip.text(), &skip.hint());
        status
    }
}

/// Prints a question on stderr, without a line break.
pub fn ask(question: &str) {
    stderr::lines(&format!("dlock: {}", printable(question)));
}

/// Ends the line that a question began.
pub fn end_line() {
    stderr::lines("\n");
}

fn say(text: &str) {
    stderr::lines(&format!("dlock: {}\n", printable(text)));
}

/// Returns the terminal's width (80 if unknown) and height (24 if unknown).
fn window(terminal: std::os::fd::BorrowedFd<'_>) -> (usize, usize) {
    let size = rustix::termios::tcgetwinsize(terminal).map_or((0, 0), |size| {
        (usize::from(size.ws_col), usize::from(size.ws_row))
    });
    let width = if size.0 == 0 { 80 } else { size.0.max(40) };
    (width, if size.1 == 0 { 24 } else { size.1 })
}
