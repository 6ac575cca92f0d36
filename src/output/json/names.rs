//! The object of `names`.

use serde::Serialize;

use super::{ReportHead, head};
use crate::{
    exit,
    lock::{Excludes, Key, Neighbour, Sharing},
};

/// `names`.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct NamesReport<'a> {
    #[serde(flatten)]
    head: ReportHead,
    key: &'a str,
    backend: &'a str,
    stored_as: &'a str,
    libraries: Vec<LibraryReport<'a>>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct LibraryReport<'a> {
    library: &'static str,
    excludes: Excludes,
    /// What to write in a program that uses the library; null if it can't name this lock, or shares
    /// none.
    code: Option<&'a str>,
    namespace: Option<&'static str>,
    about: Option<&'static str>,
}

impl<'a> NamesReport<'a> {
    /// Reports the names of a lock.
    pub fn new(key: &'a Key, backend: &'a str, sharing: &'a Sharing) -> Self {
        let report = |neighbour: &'a Neighbour| LibraryReport {
            library: neighbour.library.name,
            excludes: neighbour.library.excludes,
            code: neighbour.code.as_deref(),
            namespace: neighbour.namespace,
            about: Some(neighbour.library.about).filter(|about| !about.is_empty()),
        };
        let libraries = sharing.libraries.iter().map(report).collect();
        Self {
            head: head("ok", exit::OK),
            key: key.as_str(),
            backend,
            stored_as: &sharing.stored_as,
            libraries,
        }
    }
}
