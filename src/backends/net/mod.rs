//! The common parts of network stores: connecting, TLS, secrets, and the check of the connection's
//! privacy.

mod addresses;
mod dial;
pub(super) mod longest;
mod password_command;
pub(super) mod secret;
mod shared;
pub(super) mod tls;
pub(super) mod transport;

pub(super) use self::addresses::leave;
pub(super) use self::dial::{dial, keep_alive, unreachable};
