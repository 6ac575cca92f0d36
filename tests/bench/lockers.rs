//! The ways to run a command under a lock that are compared.

use std::{
    env,
    path::PathBuf,
    process::{Command, Stdio},
};

use tempfile::TempDir;

use crate::support::{self, dlock, redis::Redis};

/// A way to run a command under a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Locker {
    /// No lock at all.
    None,
    Flock,
    /// The bare program in `floor.rs`.
    Floor,
    Sqlite,
    Redis,
}

impl Locker {
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "true",
            Self::Flock => "flock",
            Self::Floor => "SET NX + spawn + EVAL",
            Self::Sqlite => "dlock run, SQLite",
            Self::Redis => "dlock run, Redis",
        }
    }

    /// Those that can wait for the lock.
    pub const WAITING: [Self; 3] = [Self::Flock, Self::Sqlite, Self::Redis];
}

/// Where the locks are.
pub struct Stores {
    pub redis: Redis,
    pub folder: TempDir,
    pub me: PathBuf,
}

impl Stores {
    pub fn start() -> Self {
        Self { redis: Redis::plain(), folder: support::folder(), me: env::current_exe().expect("this program") }
    }

    /// `words` under the lock `key`; `wait` says whether to wait for it.
    pub fn command(&self, locker: Locker, key: &str, wait: bool, words: &[&str]) -> Command {
        let mut command = match locker {
            Locker::None => Command::new(words[0]),
            Locker::Flock => {
                let mut command = Command::new("flock");
                if !wait {
                    command.arg("-n");
                }
                command.arg(self.folder.path().join(key)).arg(words[0]);
                command
            }
            Locker::Floor => {
                let mut command = Command::new(&self.me);
                command.args(["child", "floor", &self.redis.port.to_string(), words[0]]);
                command
            }
            Locker::Sqlite | Locker::Redis => {
                let mut command = Command::new(dlock::binary());
                command.args(["run", "-k", key]);
                if wait {
                    command.args(["-w", "forever"]);
                }
                command.args(["--", words[0]]);
                command
            }
        };
        command.args(&words[1..]).env_clear().env("PATH", "/usr/bin:/bin");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::inherit());
        match locker {
            Locker::Sqlite => command.env("DLOCK_BACKEND", format!("sqlite://{}", self.folder.path().join("locks.db").display())),
            Locker::Redis => command.env("DLOCK_BACKEND", self.redis.url()),
            _ => &mut command,
        };
        command
    }
}
