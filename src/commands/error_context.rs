//! Context from the configuration for a store's error: the rejected user, and the server expected
//! at that address.

use super::{BackendConfig, Context};
use crate::lock::{Error, Kind};

impl Context {
    /// Returns `error` with context from the configuration.
    pub(crate) fn explain(&self, mut error: Error) -> Error {
        let backend = &self.target.backend;
        match (error.kind, backend.user()) {
            (Kind::Denied, Some(user)) if !error.message.contains(user) => {
                error.message = format!("{} (user {user})", error.message);
            }
            (Kind::Timeout, _) if error.message.starts_with("no answer within") => {
                error.hint = Some(format!(
                    "{} --backend-timeout waits longer",
                    backend.expected(error.backend.as_deref().unwrap_or_default())
                ));
            }
            _ => {}
        }
        error
    }
}

impl BackendConfig {
    /// Returns the user name, if known. Unlike the password, the user name is no secret.
    fn user(&self) -> Option<&str> {
        match self {
            Self::Sqlite { .. } | Self::Redlock(_) => None,
            Self::Redis(options) => options.user.as_deref(),
            Self::Tair(options) => options.server.user.as_deref(),
            Self::Etcd(options) => options.user.as_deref(),
            Self::ZooKeeper(options) => options.login.as_ref().map(|(user, _)| user.as_str()),
            Self::Postgres(options) => options.sql.user.as_deref(),
            Self::Mysql(options) => options.sql.user.as_deref(),
        }
    }

    /// Returns a question that names the expected server.
    fn expected(&self, url: &str) -> String {
        let (scheme, _) = url.split_once(':').unwrap_or_default();
        let tls = matches!(
            scheme,
            "rediss" | "redlocks" | "tairs" | "etcds" | "zookeepers"
        ) || scheme.starts_with("rediss+");
        let server = match self {
            Self::Sqlite { .. } => return "is another process at work on the file?".into(),
            Self::Redis(_) | Self::Redlock(_) | Self::Tair(_) => "Redis",
            Self::Etcd(_) => "etcd",
            Self::ZooKeeper(_) => "ZooKeeper",
            Self::Postgres(_) => "PostgreSQL",
            Self::Mysql(_) => "MySQL",
        };
        let how = match self {
            Self::Postgres(_) | Self::Mysql(_) => "",
            _ if tls => ", with TLS",
            _ => ", without TLS",
        };
        format!("is it up and reachable, and does {server} answer on this port{how}?")
    }
}
