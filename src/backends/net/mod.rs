//! What stores that are reached over a network share: connecting, TLS, secrets, and the check of the way there.

mod dial;
pub(super) mod secret;
pub(super) mod tls;
pub(super) mod transport;

pub(super) use self::dial::{dial, keep_alive, unreachable};
