//! What a Tair needs to be known by, decoded already.

use std::time::Duration;

use crate::{backends::redis, lock::Namespace};

/// Which server, and what is stored there.
#[derive(Clone, Debug)]
pub struct TairOptions {
    /// How the server is spoken with. Its namespace counts for nothing.
    pub server: redis::RedisOptions,
    /// What a lock is stored as.
    pub mode: TairMode,
    /// The pause between two looks at a busy lock, give or take a half of it.
    pub retry_delay: Duration,
    /// What every key is put under.
    pub namespace: Namespace,
}

/// What a lock is stored as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TairMode {
    /// A plain string, compared by its value: `SET NX PX`, `CAS`, `CAD`.
    Plain,
    /// A string with a version, compared by that: `EXSET NX PX`, `EXCAS`, `EXCAD`.
    Version,
}

impl TairOptions {
    /// The default of `?retry_delay=`.
    pub const RETRY_DELAY: Duration = Duration::from_millis(200);

    /// Plain strings on `server` in the namespace `dlock`.
    pub fn new(server: redis::RedisOptions) -> Self {
        Self { server, mode: TairMode::Plain, retry_delay: Self::RETRY_DELAY, namespace: Namespace::default() }
    }

    /// The URL without user and password.
    pub fn redacted_url(&self) -> String {
        let url = self.server.redacted_url();
        let rest = url.split_once("://").map_or(url.as_str(), |(_, rest)| rest);
        let scheme = if self.server.tls.is_some() { "tairs" } else { "tair" };
        let mode = if self.mode == TairMode::Version { "?mode=version" } else { "" };
        format!("{scheme}://{rest}{mode}")
    }
}
