//! The complete and validated address of a store, before any access.

use std::sync::Arc;

use crate::backends::Configured;

/// The store, and its name in the configuration file.
#[derive(Clone, Debug)]
pub struct Target {
    /// The store, with the namespace.
    pub store: Arc<dyn Configured>,
    /// The store's name in the configuration file.
    pub name: Option<String>,
    /// Whether a store was configured; otherwise this is the embedded default.
    pub asked_for: bool,
}
