//! The compared ways to run a command under a lock.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use tempfile::TempDir;

use crate::floor;
use crate::support::{
    self, libraries,
    stores::{Database, Kind, Need, Schema, Store},
};

/// A command under kazoo's lock: CONNECT PATH COMMAND…
const KAZOO: &str = "\
import subprocess, sys
from kazoo.client import KazooClient
client = KazooClient(hosts=sys.argv[1])
client.start()
with client.Lock(sys.argv[2]):
    status = subprocess.call(sys.argv[3:])
client.stop()
sys.exit(status)
";

/// A command under a lock of MariaDB's own client, which passes its words to a shell: SOCKET NAME
/// COMMAND…
const GET_LOCK: &str = r#"
socket=$1 name=$2
shift 2
{
    printf "DO GET_LOCK('%s', 600);\nsystem" "$name"
    printf " '%s'" "$@"
    printf "\nDO RELEASE_LOCK('%s');\n" "$name"
} | mariadb --no-defaults --user root --socket "$socket"
"#;

/// A way to run a command under a lock.
pub struct Locker {
    pub name: String,
    how: How,
    /// Whether the program can wait for the lock.
    pub waits: bool,
}

enum How {
    /// No lock at all.
    None,
    Flock,
    /// The minimal program in `floor.rs`, with the kind and address of its server.
    Floor(&'static str, String),
    /// `dlock run` on this store, with this binary.
    Dlock(String, PathBuf),
    /// Another program: the words before the command, with `KEY` for the lock's name.
    Other(Vec<String>),
}

impl Locker {
    fn new(name: &str, how: How) -> Self {
        let waits = !matches!(how, How::None | How::Floor(..));
        Self {
            name: name.into(),
            how,
            waits,
        }
    }

    /// Whether this is the minimal program on the other locker's store.
    pub fn is_floor_of(&self, other: &Self) -> bool {
        let own =
            |url: &str, store: &str| url.split(':').next().is_some_and(|scheme| scheme == store);
        matches!((&self.how, &other.how), (How::Floor(store, _), How::Dlock(url, _)) if own(url, store))
    }

    /// Returns `dlock` with these arguments on its store.
    pub fn dlock(&self, words: &[&str]) -> Command {
        let How::Dlock(url, program) = &self.how else {
            panic!("{} is not dlock", self.name)
        };
        let mut command = Command::new(program);
        command
            .args(words)
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("DLOCK_BACKEND", url)
            .stdin(Stdio::null());
        command
    }

    /// Returns the version and target of the binary, but not its commit, because the results are
    /// part of a later commit.
    pub fn version(&self) -> Option<String> {
        let How::Dlock(_, program) = &self.how else {
            return None;
        };
        let output = Command::new(program)
            .args(["--version", "-v"])
            .output()
            .ok()?;
        let text = String::from_utf8_lossy(&output.stdout);
        Some(
            text.lines()
                .take(3)
                .step_by(2)
                .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
                .collect::<Vec<_>>()
                .join(", "),
        )
    }

    /// Returns the URL of a `dlock`.
    pub fn url(&self) -> Option<&str> {
        if let How::Dlock(url, _) = &self.how {
            Some(url)
        } else {
            None
        }
    }
}

/// The compared binaries: this build, and the one in `DLOCK_BENCH_BEFORE`. Both are copied, because
/// the way a file is written affects how its pages are mapped, which changes a run by 5 %.
struct Builds {
    programs: Vec<(PathBuf, &'static str, &'static str)>,
    lockers: Vec<Locker>,
}

impl Builds {
    fn new(folder: &Path, lockers: Vec<Locker>) -> Self {
        let builds = [
            (Some(this_build()), "", ""),
            (
                env::var_os("DLOCK_BENCH_BEFORE").map(Into::into),
                BEFORE,
                " (before)",
            ),
        ];
        let copied = |(from, suffix, note): (Option<PathBuf>, &'static str, &'static str)| {
            let copy = folder.join(format!("dlock{suffix}"));
            fs::copy(from?, &copy).expect("a copy");
            Some((copy, suffix, note))
        };
        Self {
            programs: builds.into_iter().filter_map(copied).collect(),
            lockers,
        }
    }

    /// Adds `dlock run` on the store that `url` returns for a suffix, which separates builds with
    /// different layouts.
    fn add(&mut self, name: &str, url: impl Fn(&str) -> String, init: bool) {
        for (program, suffix, note) in self.programs.clone() {
            let url = url(suffix);
            if init {
                let status = Command::new(&program)
                    .args(["init", "-b", &url])
                    .stdout(Stdio::null())
                    .status()
                    .expect("dlock init");
                assert!(status.success(), "{}: init", program.display());
            }
            self.lockers.push(Locker::new(
                &format!("dlock run, {name}{note}"),
                How::Dlock(url, program),
            ));
        }
    }
}

/// Returns the measured binary: `DLOCK_BENCH`, or one that cargo builds as for users. The binary
/// from `cargo bench` also has the library features of the tests, and starts 10 % slower.
fn this_build() -> PathBuf {
    if let Some(path) = env::var_os("DLOCK_BENCH") {
        return path.into();
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("bench");
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut install = Command::new(cargo);
    install
        .args([
            "install",
            "--quiet",
            "--locked",
            "--force",
            "--no-track",
            "--path",
            ".",
        ])
        .current_dir(env!("CARGO_MANIFEST_DIR"));
    let status = install
        .arg("--root")
        .arg(&folder)
        .arg("--target-dir")
        .arg(folder.join("target"))
        .status()
        .expect("cargo");
    assert!(status.success(), "{install:?}: {status}");
    folder.join("bin/dlock")
}

/// The stores with the locks.
pub struct Stores {
    running: Vec<Box<dyn Store>>,
    pub folder: TempDir,
    pub me: PathBuf,
    pub lockers: Vec<Locker>,
}

/// The stores to choose from; the default is the first two.
pub const KINDS: [Kind; 8] = [
    Kind::Sqlite,
    Kind::Redis,
    Kind::Sentinel,
    Kind::Cluster,
    Kind::PostgresLease,
    Kind::MariadbLease,
    Kind::Etcd,
    Kind::ZooKeeper,
];

/// The suffix of names that belong to the other build.
const BEFORE: &str = "_before";

/// Modes of the SQL stores. Each has a table of its own, because a table holds locks of one mode
/// only.
const MODES: [(&str, &str); 3] = [
    ("", "table=leases"),
    (", mode=row", "mode=row&table=rows"),
    (", mode=advisory", "mode=advisory&table=advisory"),
];

impl Builds {
    /// Adds the ways to take a lock of a store: other programs' first, then dlock's.
    fn add_all(&mut self, kind: Kind, store: &dyn Store) {
        let url = store.url();
        let plain = |_: &str| url.clone();
        match kind {
            Kind::Sqlite => {
                let of = |suffix: &str| url.replace("locks.db", &format!("locks{suffix}.db"));
                self.add("SQLite", of, false);
            }
            Kind::Redis => {
                let how = How::Floor("redis", store.port().to_string());
                self.lockers.push(Locker::new("least program, Redis", how));
                self.add("Redis", plain, false);
            }
            Kind::Sentinel => {
                self.add("Sentinel", plain, false);
                let careful = |_: &str| format!("{url}?replicas=1");
                self.add("Sentinel, replicas=1", careful, false);
            }
            Kind::Cluster => self.add("Cluster", plain, false),
            Kind::Etcd => {
                let endpoint = format!("--endpoints=127.0.0.1:{}", store.port());
                let words = ["etcdctl", &endpoint, "lock", "KEY"].map(str::to_owned);
                self.lockers
                    .push(Locker::new("etcdctl lock", How::Other(words.into())));
                self.add("etcd", plain, false);
            }
            Kind::ZooKeeper => {
                if let Ok(python) = libraries::python() {
                    let (python, hosts) =
                        (python.display().to_string(), &url["zookeeper://".len()..]);
                    let words = [&python, "-c", KAZOO, hosts, "/KEY"].map(str::to_owned);
                    self.lockers
                        .push(Locker::new("kazoo", How::Other(words.into())));
                }
                self.add("ZooKeeper", plain, false);
            }
            _ => self.add_sql(store, &url),
        }
    }

    fn add_sql(&mut self, store: &dyn Store, url: &str) {
        let name = if let Some(of) = store.servers().downcast_ref::<Database>() {
            of.sql(floor::TABLE);
            let how = How::Floor("postgres", of.server.url(&of.name));
            self.lockers
                .push(Locker::new("least program, PostgreSQL", how));
            "PostgreSQL"
        } else {
            let of: &Schema = store.servers().downcast_ref().expect("MariaDB");
            of.sql(floor::TABLE);
            let how = How::Floor("mariadb", of.server.url(&of.name));
            self.lockers
                .push(Locker::new("least program, MariaDB", how));
            let socket = of.server.socket().display().to_string();
            let words = ["sh", "-c", GET_LOCK, "sh", &socket, "KEY"].map(str::to_owned);
            self.lockers
                .push(Locker::new("mariadb, GET_LOCK", How::Other(words.into())));
            "MariaDB"
        };
        for (mode, query) in MODES {
            let of = |suffix: &str| format!("{url}&{query}{suffix}");
            self.add(&format!("{name}{mode}"), of, true);
        }
    }
}

impl Stores {
    /// Starts the named stores only.
    pub fn start(wanted: &[&str]) -> Self {
        let folder = support::folder();
        let lockers = vec![
            Locker::new("true", How::None),
            Locker::new("flock", How::Flock),
        ];
        let mut builds = Builds::new(folder.path(), lockers);
        let mut running = Vec::new();
        for kind in KINDS {
            if wanted.contains(&kind.also()) {
                let store = kind.start(Need::Shared);
                builds.add_all(kind, &*store);
                running.push(store);
            }
        }
        Self {
            running,
            folder,
            me: env::current_exe().expect("this program"),
            lockers: builds.lockers,
        }
    }

    /// Returns the servers of this type, if they were started.
    pub fn servers<T: 'static>(&self) -> Option<&T> {
        let mut all = self.running.iter().map(|store| store.servers());
        all.find_map(|servers| servers.downcast_ref())
    }

    /// Returns the lockers that can wait for the lock, starting with flock(1).
    pub fn waiting(&self) -> Vec<&Locker> {
        self.lockers.iter().filter(|locker| locker.waits).collect()
    }

    /// Returns the lockers that are dlock.
    pub fn own(&self) -> impl Iterator<Item = &Locker> {
        self.lockers
            .iter()
            .filter(|locker| matches!(locker.how, How::Dlock(..)))
    }

    /// Returns `words` under the lock `key`; `wait` selects whether to wait for the lock.
    pub fn command(&self, locker: &Locker, key: &str, wait: bool, words: &[&str]) -> Command {
        self.command_with(locker, &[], key, wait, words)
    }

    /// Like [`Stores::command`], with options for `dlock run`.
    pub fn command_with(
        &self,
        locker: &Locker,
        options: &[&str],
        key: &str,
        wait: bool,
        words: &[&str],
    ) -> Command {
        let mut command = match &locker.how {
            How::None => Command::new(words[0]),
            How::Flock => {
                let mut command = Command::new("flock");
                if !wait {
                    command.arg("-n");
                }
                command.arg(self.folder.path().join(key)).arg(words[0]);
                command
            }
            How::Floor(store, address) => {
                let mut command = Command::new(&self.me);
                command.args(["child", "floor", store, address, words[0]]);
                command
            }
            How::Dlock(_, program) => {
                let mut command = Command::new(program);
                // Builds with different layouts don't share their locks.
                let key = if program.ends_with("dlock") {
                    key.to_owned()
                } else {
                    key.to_owned() + BEFORE
                };
                command.args(["run", "-k", &key]).args(options);
                if wait {
                    command.args(["-w", "forever"]);
                }
                command.args(["--", words[0]]);
                command
            }
            How::Other(before) => {
                let mut command = Command::new(&before[0]);
                command
                    .args(before[1..].iter().map(|word| word.replace("KEY", key)))
                    .arg(words[0]);
                command
            }
        };
        command
            .args(&words[1..])
            .env_clear()
            .env("PATH", "/usr/bin:/bin");
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::inherit());
        if let How::Dlock(url, _) = &locker.how {
            command.env("DLOCK_BACKEND", url);
        }
        command
    }
}
