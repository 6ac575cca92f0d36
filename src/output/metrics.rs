//! The metrics file for the textfile collector of Prometheus' node exporter.
//!
//! All runs of a host may share one file. Each run reads the file, adds its own numbers and
//! replaces the file. Meanwhile it has the folder locked with flock(2), which leaves no lock file
//! behind. A file that dlock did not write is never replaced.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs::File,
    io::{self, Read as _},
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use jiff::Timestamp;
use rustix::{
    fs::{FlockOperation, Mode, OFlags, flock},
    io::Errno,
};

use super::{
    Now, RunResult, Verdict,
    replace::{Access, check_replaceable, replace},
};
use crate::{
    exit,
    lease::BootClock,
    lock::{BootTime, Key},
};

/// How long a run waits for the folder's lock: a job must not wait for its metrics.
const LOCK_TIMEOUT: Duration = Duration::from_secs(3);
const RETRY_INTERVAL: Duration = Duration::from_millis(3);
/// Most keys in the file; the keys with the oldest runs are dropped first.
const MAX_KEYS: usize = 1000;
/// dlock reads no more bytes than this.
const MAX_BYTES: u64 = 16 << 20;
/// The prefix of all metric names.
const PREFIX: &str = "dlock_run_";

/// A metric: its name after [`PREFIX`], its type, its help.
type Metric = (&'static str, &'static str, &'static str);

const LAST_TRY: Metric = (
    "last_try_timestamp_seconds",
    "gauge",
    "When this host last ended a dlock run of the key, or skipped.",
);
const LAST_START: Metric = (
    "last_start_timestamp_seconds",
    "gauge",
    "When this host last started the command.",
);
const LAST_SUCCESS: Metric = (
    "last_success_timestamp_seconds",
    "gauge",
    "When the command last ended with status 0 on this host.",
);
const DURATION: Metric = (
    "last_duration_seconds",
    "gauge",
    "How long the command last ran.",
);
const STATUS: Metric = (
    "last_exit_status",
    "gauge",
    "The exit status of the last dlock run that did not skip.",
);
const WAIT: Metric = (
    "last_wait_seconds",
    "gauge",
    "How long the lock was last waited for.",
);
const RUNS: Metric = (
    "runs_total",
    "counter",
    "Commands that were started and came to an end.",
);
const SKIPPED: Metric = (
    "skipped_total",
    "counter",
    "Runs that did not happen because of others, by reason.",
);
const LOST: Metric = (
    "lost_total",
    "counter",
    "Runs that lost the lock, or had it taken away.",
);

const METRICS: [Metric; 9] = [
    LAST_TRY,
    LAST_START,
    LAST_SUCCESS,
    DURATION,
    STATUS,
    WAIT,
    RUNS,
    SKIPPED,
    LOST,
];

/// The file to which metrics are written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetricsFile(PathBuf);

/// The values of one key, by metric name and by the labels after the key's label.
type Samples = BTreeMap<(String, String), f64>;

impl MetricsFile {
    /// Creates a metrics file for this path. The file and its folder need not exist yet.
    ///
    /// # Errors
    /// If the path names a folder or a device, or no file.
    pub fn new(path: &Path) -> Result<Self, String> {
        let path = std::path::absolute(path).map_err(|error| crate::lock::plain(&error))?;
        if path.file_name().is_none() {
            return Err("it is no file's name".into());
        }
        check_replaceable(&path).map_err(|error| error.to_string())?;
        Ok(Self(path))
    }

    /// Returns the absolute path of the file.
    pub fn path(&self) -> &Path {
        &self.0
    }

    fn folder(&self) -> &Path {
        self.0.parent().unwrap_or(Path::new("/"))
    }

    /// Writes when the command was started, for readers during the run.
    ///
    /// # Errors
    /// As [`MetricsFile::ended`].
    pub fn started(&self, key: &Key, at: Timestamp) -> io::Result<()> {
        self.update(key, |samples| set(samples, LAST_START, seconds(at)))
    }

    /// Adds an ended run to the file. Waits up to 3 s for other processes that write it.
    ///
    /// # Errors
    /// If the file can't be written. It is unchanged then.
    pub fn ended(&self, verdict: &Verdict) -> io::Result<()> {
        self.update(&verdict.key, |samples| {
            count(samples, verdict, Now::read().unix_ms());
        })
    }

    /// Returns the hint for a file that could not be written.
    pub fn hint(&self, error: &io::Error) -> String {
        let folder = self.folder().display();
        match error.kind() {
            io::ErrorKind::NotFound => format!("create the folder: mkdir -p {folder}"),
            io::ErrorKind::PermissionDenied => {
                format!("the job's user must be able to read and write the folder {folder}")
            }
            io::ErrorKind::InvalidData => "name a file for dlock alone".into(),
            _ => "the job itself is not affected".into(),
        }
    }

    fn update(&self, key: &Key, change: impl FnOnce(&mut Samples)) -> io::Result<()> {
        let _locked = self.lock()?;
        check_replaceable(&self.0)?;
        // A symbolic link may lead to a pipe: NONBLOCK keeps `open` from waiting for its writer.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let text = match rustix::fs::open(&self.0, flags, Mode::empty())
            .map(File::from)
            .map_err(io::Error::from)
        {
            Ok(file) if !file.metadata()?.is_file() => {
                return Err(io::Error::other("its target is not a file"));
            }
            Ok(file) => {
                let mut text = String::new();
                file.take(MAX_BYTES).read_to_string(&mut text)?;
                text
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(error),
        };
        let mut all = parse(&text).ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::InvalidData,
                "dlock did not write the file that is there",
            )
        })?;
        change(all.entry(escape(key.as_str())).or_default());
        drop_oldest(&mut all);
        replace(&self.0, Access::Public, &render(&all))
    }

    /// Locks the folder until the returned descriptor is closed.
    fn lock(&self) -> io::Result<OwnedFd> {
        let folder = rustix::fs::open(
            self.folder(),
            OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        let until: BootTime = BootClock::read().plus(LOCK_TIMEOUT);
        loop {
            match flock(&folder, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(folder),
                Err(Errno::INTR) => {}
                Err(Errno::WOULDBLOCK) if BootClock::read() < until => {
                    thread::sleep(RETRY_INTERVAL);
                }
                Err(Errno::WOULDBLOCK) => {
                    return Err(io::Error::other("another process keeps its folder locked"));
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}

fn set(samples: &mut Samples, metric: Metric, value: f64) {
    samples.insert((metric.0.to_owned(), String::new()), value);
}

fn add(samples: &mut Samples, metric: Metric, labels: &str, by: f64) {
    *samples
        .entry((metric.0.to_owned(), labels.to_owned()))
        .or_default() += by;
}

fn count(samples: &mut Samples, verdict: &Verdict, now_ms: u64) {
    let now = Duration::from_millis(now_ms).as_secs_f64();
    let one_if = |yes: bool| if yes { 1.0 } else { 0.0 };
    set(samples, LAST_TRY, now);
    set(samples, WAIT, verdict.waited.as_secs_f64());
    add(samples, RUNS, "", one_if(verdict.started.is_some()));
    add(
        samples,
        LOST,
        "",
        one_if(matches!(
            verdict.outcome,
            RunResult::Lost | RunResult::Broken
        )),
    );
    let skipped = verdict.outcome == RunResult::Busy;
    // Counters begin at 0, so that rates include the first increment.
    add(samples, SKIPPED, &label("reason", "busy"), 0.0);
    if skipped {
        let option = verdict
            .refused
            .as_ref()
            .map_or("busy", |(_, option)| option);
        add(samples, SKIPPED, &label("reason", &reason(option)), 1.0);
    } else {
        set(samples, STATUS, f64::from(verdict.status));
    }
    if let Some(started) = verdict.started {
        set(samples, LAST_START, seconds(started));
    }
    if let Some(ran) = verdict.ran {
        set(samples, DURATION, ran.as_secs_f64());
    }
    if verdict.outcome == RunResult::Ok && verdict.status == exit::OK {
        set(samples, LAST_SUCCESS, now);
    }
}

/// Returns `skew_guard` for `skew guard 5s`: one series per option, not per duration.
fn reason(option: &str) -> String {
    option
        .split(' ')
        .take_while(|word| !word.starts_with(|first: char| first.is_ascii_digit()))
        .collect::<Vec<_>>()
        .join("_")
}

fn seconds(at: Timestamp) -> f64 {
    Duration::from_millis(u64::try_from(at.as_millisecond()).unwrap_or_default()).as_secs_f64()
}

/// Escapes a label's value for the text format.
fn escape(value: &str) -> String {
    value
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

fn label(name: &str, value: &str) -> String {
    format!("{name}=\"{}\"", escape(value))
}

/// Returns the values of each key, whose name stays escaped; `None` if another program wrote the
/// file.
fn parse(text: &str) -> Option<BTreeMap<String, Samples>> {
    let mut all: BTreeMap<String, Samples> = BTreeMap::new();
    for line in text.lines() {
        if let Some(comment) = line.strip_prefix("# ") {
            let name = comment
                .strip_prefix("HELP ")
                .or_else(|| comment.strip_prefix("TYPE "))?;
            name.strip_prefix(PREFIX)?;
            continue;
        }
        let (series, value) = line.rsplit_once(' ')?;
        let (name, labels) = series
            .strip_prefix(PREFIX)?
            .strip_suffix('}')?
            .split_once('{')?;
        let (key, rest) = split_key(labels)?;
        all.entry(key.to_owned())
            .or_default()
            .insert((name.to_owned(), rest.to_owned()), value.parse().ok()?);
    }
    Some(all)
}

/// Splits `key="KEY",more="…"` into KEY and the labels after it.
fn split_key(labels: &str) -> Option<(&str, &str)> {
    let value = labels.strip_prefix("key=\"")?;
    let mut escaped = false;
    let end = value.bytes().position(|byte| {
        let ends = byte == b'"' && !escaped;
        escaped = byte == b'\\' && !escaped;
        ends
    })?;
    let rest = &value[end + 1..];
    Some((
        &value[..end],
        if rest.is_empty() {
            rest
        } else {
            rest.strip_prefix(',')?
        },
    ))
}

/// Drops the keys with the oldest runs, if there are too many: keys like `order-4711` are used only
/// once.
fn drop_oldest(all: &mut BTreeMap<String, Samples>) {
    if all.len() <= MAX_KEYS {
        return;
    }
    let of = |samples: &Samples, metric: Metric| {
        samples
            .get(&(metric.0.to_owned(), String::new()))
            .copied()
            .unwrap_or_default()
    };
    let latest = |samples: &Samples| of(samples, LAST_TRY).max(of(samples, LAST_START));
    let mut times: Vec<f64> = all.values().map(latest).collect();
    times.sort_by(f64::total_cmp);
    let oldest = times[times.len() - MAX_KEYS];
    all.retain(|_, samples| latest(samples) >= oldest);
}

fn render(all: &BTreeMap<String, Samples>) -> String {
    let mut text = String::new();
    for (name, kind, help) in METRICS {
        let series = all.iter().flat_map(|(key, samples)| {
            samples
                .iter()
                .map(move |((of, labels), value)| (of, key, labels, value))
        });
        let series: Vec<_> = series.filter(|(of, ..)| *of == name).collect();
        if !series.is_empty() {
            let _ = write!(
                text,
                "# HELP {PREFIX}{name} {help}\n# TYPE {PREFIX}{name} {kind}\n"
            );
        }
        for (_, key, labels, value) in series {
            let comma = if labels.is_empty() { "" } else { "," };
            let _ = writeln!(
                text,
                "{PREFIX}{name}{{key=\"{key}\"{comma}{labels}}} {value}"
            );
        }
    }
    text
}

#[cfg(test)]
mod tests;
