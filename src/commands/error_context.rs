//! Context from the configuration for a store's error: the rejected user, and the server expected
//! at that address.

use super::Context;
use crate::{
    backends::StoreInfo,
    lock::{Error, Kind},
};

impl Context {
    /// Returns `error` with context from the configuration.
    pub(crate) fn explain(&self, mut error: Error) -> Error {
        let store = &self.target.store;
        match (error.kind, store.user()) {
            (Kind::Denied, Some(user)) if !error.message.contains(user) => {
                error.message = format!("{} (user {user})", error.message);
            }
            (Kind::Timeout, _) if error.message.starts_with("no answer within") => {
                error.hint = Some(format!(
                    "{} --backend-timeout waits longer",
                    expected(store.info(), error.backend.as_deref().unwrap_or_default())
                ));
            }
            _ => {}
        }
        error
    }
}

/// Returns a question that names the expected server.
fn expected(store: &StoreInfo, url: &str) -> String {
    let Some(server) = store.server else {
        return "is another process at work on the file?".into();
    };
    let (scheme, _) = url.split_once(':').unwrap_or_default();
    let how = match store.scheme(scheme).and_then(|scheme| scheme.tls) {
        None => "",
        Some(true) => ", with TLS",
        Some(false) => ", without TLS",
    };
    format!("is it up and reachable, and does {server} answer on this port{how}?")
}
