//! The ways to run a command under a lock that are compared.

use std::{
    env,
    path::PathBuf,
    process::{Command, Stdio},
};

use tempfile::TempDir;

use crate::support::{
    self, cluster::Cluster, dlock, etcd::Etcd, libraries, mariadb::MariaDb, postgres::Postgres, redis::Redis, sentinel::Deployment,
    zookeeper::ZooKeeper,
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

/// A command under a lock of MariaDB's own client, which hands its words to a shell: SOCKET NAME COMMAND…
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
    /// Whether it can wait for the lock.
    pub waits: bool,
}

enum How {
    /// No lock at all.
    None,
    Flock,
    /// The bare program in `floor.rs`.
    Floor,
    /// `dlock run` on this store.
    Dlock(String),
    /// Another program: the words before the command's, with `KEY` for the lock's name.
    Other(Vec<String>),
}

impl Locker {
    fn new(name: &str, how: How) -> Self {
        let waits = !matches!(how, How::None | How::Floor);
        Self { name: name.into(), how, waits }
    }
}

/// Where the locks are.
pub struct Stores {
    pub redis: Redis,
    pub etcd: Option<Etcd>,
    pub zookeeper: Option<ZooKeeper>,
    pub folder: TempDir,
    pub me: PathBuf,
    pub lockers: Vec<Locker>,
    _sentinel: Option<Deployment>,
    _cluster: Option<Cluster>,
    pub postgres: Option<Postgres>,
    pub mariadb: Option<MariaDb>,
}

/// The stores that can be asked for, beside `sqlite` and `redis`, which are compared unless others are named.
pub const NAMES: [&str; 8] = ["sqlite", "redis", "sentinel", "cluster", "postgres", "mariadb", "etcd", "zookeeper"];

/// Modes of the SQL stores, each with a table of its own: one table keeps locks of one mode.
const MODES: [(&str, &str); 3] = [("", ""), (", mode=row", "?mode=row&table=rows"), (", mode=advisory", "?mode=advisory&table=advisory")];

impl Stores {
    /// Starts the servers of the named stores, and of none other.
    pub fn start(wanted: &[&str]) -> Self {
        let (redis, folder) = (Redis::plain(), support::folder());
        let mut lockers = vec![Locker::new("true", How::None), Locker::new("flock", How::Flock)];
        let on = |name: &str| wanted.contains(&name);
        if on("redis") {
            lockers.push(Locker::new("SET NX + spawn + EVAL", How::Floor));
        }
        if on("sqlite") {
            lockers.push(Locker::new("dlock run, SQLite", How::Dlock(format!("sqlite://{}", folder.path().join("locks.db").display()))));
        }
        if on("redis") {
            lockers.push(Locker::new("dlock run, Redis", How::Dlock(redis.url())));
        }
        let sentinel = on("sentinel").then(Deployment::start);
        if let Some(deployment) = &sentinel {
            lockers.push(Locker::new("dlock run, Sentinel", How::Dlock(deployment.url())));
            lockers.push(Locker::new("dlock run, Sentinel, replicas=1", How::Dlock(deployment.url() + "?replicas=1")));
        }
        let cluster = on("cluster").then(Cluster::start);
        if let Some(cluster) = &cluster {
            lockers.push(Locker::new("dlock run, Cluster", How::Dlock(cluster.url())));
        }
        let etcd = on("etcd").then(Etcd::plain);
        if let Some(etcd) = &etcd {
            let endpoint = format!("--endpoints=127.0.0.1:{}", etcd.port());
            let words = ["etcdctl", &endpoint, "lock", "KEY"];
            lockers.push(Locker::new("etcdctl lock", How::Other(words.map(str::to_owned).into())));
            lockers.push(Locker::new("dlock run, etcd", How::Dlock(etcd.url())));
        }
        let postgres = on("postgres").then(Postgres::plain);
        if let Some(server) = &postgres {
            let url = server.url("postgres");
            for (name, query) in MODES {
                assert_eq!(dlock::run(&format!("{url}{query}"), &["init"]).code(), 0);
                lockers.push(Locker::new(&format!("dlock run, PostgreSQL{name}"), How::Dlock(format!("{url}{query}"))));
            }
        }
        let mariadb = on("mariadb").then(MariaDb::plain);
        if let Some(server) = &mariadb {
            let url = server.url(&server.database());
            let words = ["sh".into(), "-c".into(), GET_LOCK.into(), "sh".into(), server.socket().display().to_string(), "KEY".into()];
            lockers.push(Locker::new("mariadb, GET_LOCK", How::Other(words.into())));
            for (name, query) in MODES {
                assert_eq!(dlock::run(&format!("{url}{query}"), &["init"]).code(), 0);
                lockers.push(Locker::new(&format!("dlock run, MariaDB{name}"), How::Dlock(format!("{url}{query}"))));
            }
        }
        let zookeeper = on("zookeeper").then(ZooKeeper::single);
        if let Some(servers) = &zookeeper {
            if let Ok(python) = libraries::python() {
                let words =
                    [python.display().to_string(), "-c".into(), KAZOO.into(), servers.url().replace("zookeeper://", ""), "/KEY".into()];
                lockers.push(Locker::new("kazoo", How::Other(words.into())));
            }
            lockers.push(Locker::new("dlock run, ZooKeeper", How::Dlock(servers.url())));
        }
        let me = env::current_exe().expect("this program");
        Self { redis, etcd, zookeeper, folder, me, lockers, _sentinel: sentinel, _cluster: cluster, postgres, mariadb }
    }

    /// Those that can wait for the lock, flock(1) first.
    pub fn waiting(&self) -> Vec<&Locker> {
        self.lockers.iter().filter(|locker| locker.waits).collect()
    }

    /// Those of them that are dlock.
    pub fn own(&self) -> impl Iterator<Item = &Locker> {
        self.lockers.iter().filter(|locker| matches!(locker.how, How::Dlock(_)))
    }

    /// `words` under the lock `key`; `wait` says whether to wait for it.
    pub fn command(&self, locker: &Locker, key: &str, wait: bool, words: &[&str]) -> Command {
        self.command_with(locker, &[], key, wait, words)
    }

    /// As [`Stores::command`], with options for `dlock run`.
    pub fn command_with(&self, locker: &Locker, options: &[&str], key: &str, wait: bool, words: &[&str]) -> Command {
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
            How::Floor => {
                let mut command = Command::new(&self.me);
                command.args(["child", "floor", &self.redis.port.to_string(), words[0]]);
                command
            }
            How::Dlock(_) => {
                let mut command = Command::new(dlock::binary());
                command.args(["run", "-k", key]).args(options);
                if wait {
                    command.args(["-w", "forever"]);
                }
                command.args(["--", words[0]]);
                command
            }
            How::Other(before) => {
                let mut command = Command::new(&before[0]);
                command.args(before[1..].iter().map(|word| word.replace("KEY", key))).arg(words[0]);
                command
            }
        };
        command.args(&words[1..]).env_clear().env("PATH", "/usr/bin:/bin");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::inherit());
        if let How::Dlock(url) = &locker.how {
            command.env("DLOCK_BACKEND", url);
        }
        command
    }
}
