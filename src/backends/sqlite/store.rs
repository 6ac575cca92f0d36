//! What dlock knows of SQLite, and its URLs.

use std::{path::PathBuf, sync::Arc};

use super::{CAPABILITIES, Sqlite, SqliteOptions, examine, schema};
use crate::{
    backends::{
        kit::{Address, Configured, Scheme, StoreInfo},
        sql,
    },
    lock::{Backend, Grants, Key, Namespace, Result, Role, Sharing},
};

/// SQLite.
pub const STORE: StoreInfo = StoreInfo {
    name: "SQLite",
    schemes: &[
        Scheme::free("sqlite", "sqlite:///path/to/file", "SQLite on this host")
            .or(&["file", "sqlite3"]),
    ],
    parameters: &[],
    server: None,
    client_file: None,
    capabilities: &[("SQLite", &CAPABILITIES)],
    layout: || schema::LAYOUT.to_string(),
    libraries: &[],
    without_lease: "it lasts as long as that program",
    checks: &[("SQLite", &[examine::CHECKS])],
    configure: |address| Ok(Arc::new(options(&address)?)),
};

fn options(address: &Address<'_>) -> Result<SqliteOptions> {
    let url = &address.url;
    if url.user.is_some() || url.password.is_some() || !url.hosts.is_empty() {
        return Err(address
            .wrong("a file has no host, user or password")
            .hint("it takes three slashes: sqlite:///path/to/file"));
    }
    let path = PathBuf::from(&url.path);
    if !path.is_absolute() || url.path.ends_with('/') {
        return Err(address
            .wrong("it needs the absolute path of a file")
            .hint("sqlite:///path/to/file; `local` is the default file"));
    }
    Ok(SqliteOptions::at(path, address.namespace.clone()))
}

/// Returns the database that is used if no store is named.
pub fn embedded(namespace: Namespace) -> Result<Arc<dyn Configured>> {
    Ok(Arc::new(SqliteOptions::at_default(namespace)?))
}

impl Configured for SqliteOptions {
    fn info(&self) -> &'static StoreInfo {
        &STORE
    }

    fn backend(&self) -> Box<dyn Backend> {
        Box::new(Sqlite::new(self.clone()))
    }

    fn sharing(&self, key: &Key) -> Result<Sharing> {
        Ok(Sharing::new(
            sql::Names::new(&self.namespace).of(key),
            &[],
            &[],
        ))
    }

    fn schema(&self) -> Option<String> {
        Some(schema::text().into())
    }

    fn grants(&self, role: Role) -> Grants {
        examine::grants(self, role)
    }
}
