//! On a terminal: the screen of `list --watch`, questions, and output that is hidden there.

use std::{
    fs::File,
    io::{Read as _, Write as _},
    os::{fd::OwnedFd, unix::process::ExitStatusExt as _},
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Arc, Mutex},
    thread::sleep,
    time::{Duration, Instant},
};

use rustix::{
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{Winsize, tcsetwinsize},
};

use crate::lab::Lab;

/// Generous, for a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

/// A program on its own terminal, and everything it wrote.
pub struct Terminal {
    user: File,
    child: Child,
    written: Arc<Mutex<Vec<u8>>>,
    size: (usize, usize),
}

impl Terminal {
    /// Starts `dlock` with these arguments in the lab's environment, in a window of this size
    /// (rows, columns).
    pub fn dlock(lab: &Lab, size: (usize, usize), arguments: &[&str]) -> Self {
        Self::program(lab, size, Path::new(env!("CARGO_BIN_EXE_dlock")), arguments)
    }

    pub fn program(lab: &Lab, size: (usize, usize), program: &Path, arguments: &[&str]) -> Self {
        let user = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&user).unwrap();
        unlockpt(&user).unwrap();
        let name = ptsname(&user, Vec::new()).unwrap();
        tcsetwinsize(&user, window(size)).unwrap();
        let line = || {
            File::options()
                .read(true)
                .write(true)
                .open(name.to_str().unwrap())
                .unwrap()
        };
        let with_env = lab.dlock([""; 0]);
        let mut command = Command::new("setsid");
        command
            .arg("--ctty")
            .arg(program)
            .args(arguments)
            .env_clear()
            .current_dir(lab.path(""));
        command
            .envs(
                with_env
                    .get_envs()
                    .filter_map(|(name, value)| Some((name, value?))),
            )
            .env("TERM", "xterm");
        let child = command
            .stdin(Stdio::from(OwnedFd::from(line())))
            .stdout(line())
            .stderr(line())
            .spawn()
            .unwrap();
        let written = Arc::new(Mutex::new(Vec::new()));
        let (mut reader, copy) = (File::from(user.try_clone().unwrap()), Arc::clone(&written));
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(length @ 1..) = reader.read(&mut buffer) {
                copy.lock().unwrap().extend_from_slice(&buffer[..length]);
            }
        });
        Self {
            user: File::from(user),
            child,
            written,
            size,
        }
    }

    /// Types these bytes: 3 is Ctrl-C, 4 Ctrl-D.
    pub fn press(&mut self, keys: &[u8]) {
        self.user.write_all(keys).unwrap();
    }

    pub fn resize(&mut self, size: (usize, usize)) {
        self.size = size;
        tcsetwinsize(&self.user, window(size)).unwrap();
    }

    /// Returns everything written so far.
    pub fn written(&self) -> String {
        String::from_utf8_lossy(&self.written.lock().unwrap()).into_owned()
    }

    /// Returns the window's lines, as if it had always had its present size.
    pub fn screen(&self) -> Vec<String> {
        screen(&self.written(), self.size)
    }

    /// Waits until the text appears on the screen.
    #[track_caller]
    pub fn await_text(&self, text: &str) -> Vec<String> {
        self.await_screen(text, |screen| screen.iter().any(|line| line.contains(text)))
    }

    #[track_caller]
    pub fn await_screen(&self, what: &str, seen: impl Fn(&[String]) -> bool) -> Vec<String> {
        let until = Instant::now() + LIMIT;
        loop {
            let screen = self.screen();
            if seen(&screen) {
                return screen;
            }
            assert!(
                Instant::now() < until,
                "not on the screen: {what}: {screen:#?}\n{:?}",
                self.written()
            );
            sleep(Duration::from_millis(10));
        }
    }

    #[track_caller]
    pub fn ended(&mut self) -> ExitStatus {
        let until = Instant::now() + LIMIT;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(
                Instant::now() < until,
                "the program doesn't end: {:#?}",
                self.screen()
            );
            sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn window((rows, columns): (usize, usize)) -> Winsize {
    let short = |number| u16::try_from(number).unwrap();
    Winsize {
        ws_row: short(rows),
        ws_col: short(columns),
        ws_xpixel: 0,
        ws_ypixel: 0,
    }
}

/// Returns the screen of a window of this size for this output. It implements only the sequences
/// that dlock uses.
fn screen(text: &str, (rows, columns): (usize, usize)) -> Vec<String> {
    let mut cells = vec![vec![' '; columns]; rows];
    let (mut row, mut column) = (0_usize, 0_usize);
    let feed = |cells: &mut Vec<Vec<char>>, row: &mut usize| {
        if *row + 1 < rows {
            *row += 1;
        } else {
            cells.remove(0);
            cells.push(vec![' '; columns]);
        }
    };
    let mut chars = text.chars();
    while let Some(char) = chars.next() {
        match char {
            '\r' => column = 0,
            '\u{8}' => column = column.saturating_sub(1),
            '\n' => feed(&mut cells, &mut row),
            '\u{1b}' => {
                assert!(
                    matches!(chars.next(), Some('[') | None),
                    "an unknown sequence: {text:?}"
                );
                let mut numbers = String::new();
                let last = loop {
                    match chars.next() {
                        Some(number) if !number.is_ascii_alphabetic() => numbers.push(number),
                        last => break last,
                    }
                };
                let mut numbers = numbers
                    .split(';')
                    .map(|number| number.parse::<usize>().unwrap_or_default());
                let (first, second) = (
                    numbers.next().unwrap_or_default(),
                    numbers.next().unwrap_or_default(),
                );
                match last {
                    Some('H') => {
                        (row, column) =
                            (first.max(1).min(rows) - 1, second.max(1).min(columns) - 1);
                    }
                    Some('K') => cells[row][column.min(columns)..].fill(' '),
                    Some('J') => cells.iter_mut().for_each(|line| line.fill(' ')),
                    // The rest of an incomplete sequence comes later.
                    Some('m') | None => {}
                    other => panic!("an unknown sequence {other:?}: {text:?}"),
                }
            }
            char => {
                if column == columns {
                    column = 0;
                    feed(&mut cells, &mut row);
                }
                cells[row][column] = char;
                column += 1;
            }
        }
    }
    cells
        .iter()
        .map(|line| line.iter().collect::<String>().trim_end().to_owned())
        .collect()
}

fn acquire(lab: &Lab, key: &str, more: &[&str]) -> String {
    let output = lab.run(["acquire", key, "--ttl", "10m"].iter().chain(more));
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[test]
fn a_watched_list_fits_its_window() {
    let lab = Lab::new();
    let tokens: Vec<String> = (0..40)
        .map(|n| acquire(&lab, &format!("job{n:02}"), &["--describe", "a note"]))
        .collect();
    let mut terminal = Terminal::dlock(&lab, (24, 80), &["list", "--watch=300ms"]);
    let fits = |screen: &[String], more: &str| {
        screen[0].starts_with("every 300ms, last at ")
            && screen[0].ends_with(": 40 held")
            && screen[2].starts_with("KEY")
            && screen.iter().any(|line| line == more)
    };
    let first = terminal.await_screen("a screen with its header", |screen| {
        fits(screen, "… 21 more")
    });
    assert!(
        first[3].starts_with("job00") && first[21].starts_with("job18") && first[23].is_empty(),
        "{first:#?}"
    );
    // Only changes are drawn: the header is written once per window size.
    let headers = |terminal: &Terminal| terminal.written().matches("KEY ").count();
    let ticks = |terminal: &Terminal| terminal.written().matches("last at ").count();
    let before = ticks(&terminal);
    terminal.await_screen("three more looks", |_| ticks(&terminal) > before + 2);
    assert_eq!(headers(&terminal), 1, "{:?}", terminal.written());
    // A released lock disappears, and the rows below move up.
    lab.line(&format!("release job00 --token {}", tokens[0]));
    let next = terminal.await_screen("job01 at the top", |screen| screen[3].starts_with("job01"));
    assert!(
        next[0].ends_with(": 39 held") && next[22] == "… 20 more" && next[2].starts_with("KEY"),
        "{next:#?}"
    );
    assert_eq!(headers(&terminal), 1);
    // A resize redraws at once.
    terminal.resize((10, 50));
    let small = terminal.await_screen("a small window", |screen| {
        screen[7] == "… 37 more" && screen[2].starts_with("KEY")
    });
    assert!(
        small[3].starts_with("job01") && small[9].is_empty(),
        "{small:#?}"
    );
    assert!(
        small.iter().all(|line| line.chars().count() <= 50),
        "{small:#?}"
    );
    assert_eq!(headers(&terminal), 2);
    terminal.press(&[3]);
    let status = terminal.ended();
    assert_eq!(status.signal(), Some(2), "{status:?}");
    let left = terminal.screen();
    // At the end the cursor is below the list, and no attribute is set.
    assert!(
        left[2].starts_with("KEY") && left[9].trim_start_matches("^C").is_empty(),
        "{left:#?}"
    );
    let written = terminal.written();
    assert!(
        written.rfind("\u{1b}[0m") >= written.rfind("\u{1b}[3") && !written.contains("\u{1b}[?"),
        "{written:?}"
    );
}

#[test]
fn a_watched_list_redraws_at_once_after_a_resize() {
    let lab = Lab::new();
    acquire(&lab, "job", &[]);
    let mut terminal = Terminal::dlock(&lab, (24, 80), &["list", "--watch=1h"]);
    terminal.await_text("job ");
    let first = terminal.written().len();
    terminal.resize((12, 60));
    terminal.await_screen("a second drawing", |screen| {
        terminal.written().len() > first && screen[3].starts_with("job")
    });
    terminal.press(&[3]);
    assert_eq!(terminal.ended().signal(), Some(2));
}

#[test]
fn an_empty_list_is_watched_too() {
    let lab = Lab::new();
    let mut terminal = Terminal::dlock(&lab, (24, 80), &["list", "--watch=100ms"]);
    terminal.await_text("0 held");
    let token = acquire(&lab, "job", &[]);
    terminal.await_text("1 held");
    lab.line(&format!("release job --token {token}"));
    let empty = terminal.await_screen("an empty list", |screen| screen[0].ends_with("0 held"));
    assert!(empty[1..].iter().all(String::is_empty), "{empty:#?}");
    terminal.press(&[3]);
    assert_eq!(terminal.ended().signal(), Some(2));
}

/// Answers a question of the command with `keys`, and checks its exit status and message.
fn asked(lab: &Lab, arguments: &[&str], question: &str, keys: &[u8], status: i32, says: &str) {
    let mut terminal = Terminal::dlock(lab, (24, 80), arguments);
    terminal.await_text(question);
    terminal.press(keys);
    let ended = terminal.ended();
    assert_eq!(
        ended
            .code()
            .unwrap_or_else(|| 128 + ended.signal().unwrap_or_default()),
        status,
        "{:#?}",
        terminal.screen()
    );
    if !says.is_empty() {
        terminal.await_screen(says, |screen| {
            screen.iter().any(|line| line.starts_with(says))
        });
    }
}

#[test]
fn forget_asks_first() {
    let lab = Lab::new();
    let kept = |lab: &Lab| {
        lab.line("inspect job --json")
            .contains("\"refused_until\":\"")
    };
    assert!(
        lab.run(["run", "-k", "job", "--at-least", "1h", "--", "true"])
            .status
            .success()
    );
    let question = "dlock: forget the run of ";
    for (keys, status, says) in [
        (&b"n\n"[..], 77, "dlock: job: not forgotten"),
        (b"\n", 77, "dlock: job: not forgotten"),
        (&[4], 77, "dlock: job: not forgotten"),
        (&[3], 130, ""),
    ] {
        asked(&lab, &["forget", "job"], question, keys, status, says);
        assert!(kept(&lab), "{keys:?}");
    }
    asked(
        &lab,
        &["forget", "job"],
        question,
        b"y\n",
        0,
        "dlock: job: forgotten; the next run starts",
    );
    assert!(!kept(&lab));
    // There is nothing to decide.
    let mut terminal = Terminal::dlock(&lab, (24, 80), &["forget", "job"]);
    terminal.await_text("dlock: job: no run record keeps it from other runs");
    assert_eq!(terminal.ended().code(), Some(0));
}

#[test]
fn break_by_host_asks_first() {
    let lab = Lab::new();
    for key in ["one", "two"] {
        acquire(&lab, key, &["--host", "gone"]);
    }
    acquire(&lab, "other", &[]);
    let held = |lab: &Lab| lab.line("list --json").matches("\"held\":true").count();
    let question = "dlock: break all of them?";
    for (keys, status, says) in [
        (&b"n\n"[..], 77, "dlock: not broken"),
        (&[4], 77, "dlock: not broken"),
        (&[3], 130, ""),
    ] {
        asked(
            &lab,
            &["break", "--host", "gone", "--now"],
            question,
            keys,
            status,
            says,
        );
        assert_eq!(held(&lab), 3, "{keys:?}");
    }
    let mut terminal = Terminal::dlock(&lab, (24, 80), &["break", "--host", "gone", "--now"]);
    let shown = terminal.await_text(question);
    assert!(
        shown
            .iter()
            .any(|line| line.starts_with("dlock: gone has 2 holds")),
        "{shown:#?}"
    );
    assert!(
        shown
            .iter()
            .any(|line| line.starts_with("dlock:   one, fence …")),
        "{shown:#?}"
    );
    terminal.press(b"y\n");
    assert_eq!(terminal.ended().code(), Some(0));
    for says in ["dlock: one: broken", "dlock: two: broken"] {
        terminal.await_text(says);
    }
    assert_eq!(held(&lab), 1);
    // The same for one key.
    asked(
        &lab,
        &["break", "other", "--now"],
        "dlock: break other, held by ",
        &[3],
        130,
        "",
    );
    asked(
        &lab,
        &["break", "other", "--now"],
        "dlock: break other, held by ",
        &[4],
        77,
        "dlock: other: not broken",
    );
    assert_eq!(held(&lab), 1);
    asked(
        &lab,
        &["break", "other", "--now"],
        "dlock: break other, held by ",
        b"y\n",
        0,
        "dlock: other: broken",
    );
    assert_eq!(held(&lab), 0);
}

/// A hold is reported as soon as its outcome is known, and an interrupt loses no report.
#[test]
fn break_by_host_reports_each_hold_at_once() {
    let lab = Lab::new();
    let token = acquire(&lab, "first", &["--host", "gone"]);
    acquire(&lab, "stays", &["--host", "gone"]);
    let mut terminal = Terminal::dlock(&lab, (24, 80), &["break", "--host", "gone", "--yes"]);
    terminal.await_text("dlock: gone has 2 holds");
    let until = Instant::now() + LIMIT;
    while !lab.line("inspect first --json").contains("\"broken\":{") {
        assert!(Instant::now() < until, "the break was not requested");
    }
    lab.line(&format!("release first --token {token}"));
    terminal.await_text("dlock: first: broken");
    terminal.press(&[3]);
    let status = terminal.ended();
    assert_eq!(status.signal(), Some(2), "{status:?}");
    terminal.await_text("the request to stop stays");
    assert!(
        !terminal.written().contains("stays: broken"),
        "{:#?}",
        terminal.screen()
    );
}

#[test]
fn hold_shows_no_token_unless_requested() {
    let lab = Lab::new();
    let mut terminal = Terminal::dlock(&lab, (24, 80), &["hold", "job"]);
    terminal.await_text("dlock: holding job; Ctrl-D releases it");
    assert!(lab.line("inspect job").contains("HELD"));
    terminal.press(&[4]);
    assert_eq!(terminal.ended().code(), Some(0));
    assert!(lab.line("inspect job").contains("FREE"));
    assert!(
        !terminal.written().contains("token"),
        "{}",
        terminal.written()
    );
    // The token is shown on request, and to a script.
    let mut terminal = Terminal::dlock(&lab, (24, 200), &["hold", "job", "--json"]);
    terminal.await_text("\"token\":\"");
    terminal.press(&[4]);
    assert_eq!(terminal.ended().code(), Some(0));
    let mut terminal = Terminal::dlock(&lab, (24, 80), &["hold", "job", "--until-signal"]);
    terminal.await_text("dlock: holding job; Ctrl-C releases it");
    terminal.press(&[3]);
    assert_eq!(terminal.ended().code(), Some(0));
    assert!(lab.line("inspect job").contains("FREE"));
}

#[test]
fn all_keys_are_watched_with_the_failed_ones_first() {
    let lab = Lab::new();
    for (key, code) in [("backup", 0), ("nightly", 3), ("report", 0)] {
        lab.run(["run", "-k", key, "--", "sh", "-c", &format!("exit {code}")]);
    }
    let mut terminal = Terminal::dlock(&lab, (24, 80), &["list", "--all", "--watch=300ms"]);
    let first = terminal.await_screen("all keys", |screen| {
        screen[0].ends_with(": 3 keys, 1 failed, 0 late") && screen[5].starts_with("report")
    });
    assert!(
        first[2].starts_with("KEY")
            && first[3].starts_with("nightly")
            && first[3].contains("exit 3"),
        "{first:#?}"
    );
    lab.run(["run", "-k", "nightly", "--skew-guard", "0s", "--", "true"]);
    let next = terminal.await_screen("no failed key", |screen| {
        screen[0].ends_with(": 3 keys, 0 failed, 0 late")
    });
    assert!(
        next[3].starts_with("backup") && next[4].starts_with("nightly"),
        "{next:#?}"
    );
    terminal.press(&[3]);
    assert_eq!(terminal.ended().signal(), Some(2));
}
