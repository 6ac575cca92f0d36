//! The decoded options for a Tair.

use std::time::Duration;

use crate::{backends::redis, lock::Namespace};

/// The server, and how locks are stored.
#[derive(Clone, Debug)]
pub struct TairOptions {
    /// The connection options. Their namespace is ignored.
    pub server: redis::RedisOptions,
    /// How a lock is stored.
    pub mode: TairMode,
    /// The pause before a busy lock is tried again, ± 50 %.
    pub retry_delay: Duration,
    /// The namespace of every key.
    pub namespace: Namespace,
}

/// How a lock is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TairMode {
    /// A plain string, compared by its value: `SET NX PX`, `CAS`, `CAD`.
    Plain,
    /// A string with a version, compared by its version: `EXSET NX PX`, `EXCAS`, `EXCAD`.
    Version,
}

impl TairOptions {
    /// The default of `?retry_delay=`.
    pub const RETRY_DELAY: Duration = Duration::from_millis(200);

    /// Options for plain strings on `server` in the namespace `dlock`.
    pub fn new(server: redis::RedisOptions) -> Self {
        Self {
            server,
            mode: TairMode::Plain,
            retry_delay: Self::RETRY_DELAY,
            namespace: Namespace::default(),
        }
    }

    /// Returns the URL without user and password.
    pub fn redacted_url(&self) -> String {
        let url = self.server.redacted_url();
        let rest = url.split_once("://").map_or(url.as_str(), |(_, rest)| rest);
        let scheme = if self.server.tls.is_some() {
            "tairs"
        } else {
            "tair"
        };
        let mode = if self.mode == TairMode::Version {
            "?mode=version"
        } else {
            ""
        };
        format!("{scheme}://{rest}{mode}")
    }
}
