//! The stores that the suite runs against, each made anew for each case.

mod memory;
pub mod redis;
mod sqlite;

use async_trait::async_trait;
use dlock::lock::Backend;

use crate::support;

/// A kind of store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Memory,
    Sqlite,
    Redis,
}

pub const ALL: [Kind; 3] = [Kind::Memory, Kind::Sqlite, Kind::Redis];

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Sqlite => "sqlite",
            Self::Redis => "redis",
        }
    }

    /// What isn't there to run this store with.
    pub fn missing(self) -> Option<String> {
        let program = match self {
            Self::Redis => support::redis::Redis::PROGRAM,
            Self::Memory | Self::Sqlite => return None,
        };
        support::find_program(program).is_none().then(|| format!("{program} is not installed"))
    }

    /// Whether the runtime's clock can be stopped, because the store goes by it.
    pub fn clock_is_ours(self) -> bool {
        self == Self::Memory
    }

    /// Whether a hold ends with its process and not before: its TTL rules detached holds only.
    pub fn bound_to_processes(self) -> bool {
        self == Self::Sqlite
    }

    pub fn make(self) -> Box<dyn Target> {
        match self {
            Self::Memory => Box::<memory::Target>::default(),
            Self::Sqlite => Box::new(sqlite::Target::make()),
            Self::Redis => Box::new(redis::Target::make()),
        }
    }
}

/// One store. Every client that is opened on it is as good as another process.
#[async_trait(?Send)]
pub trait Target {
    async fn open(&self, namespace: &str) -> Box<dyn Backend>;

    /// A client whose store can't be reached at all: whatever it answers, it answers without I/O.
    async fn unreachable(&self) -> Box<dyn Backend>;

    /// Forgets everything, as a store that lost its disk.
    async fn lose_data(&self);

    /// The Redis server behind it, for cases about what lies in the store itself.
    fn redis(&self) -> Option<&redis::Target> {
        None
    }
}
