//! The common parts of network stores: connecting, TLS, the relay of a client library, secrets, and
//! the check of the connection's privacy.

mod addresses;
mod certificate;
mod dial;
pub(super) mod longest;
mod password_command;
pub(super) mod pump;
pub(super) mod secret;
mod shared;
pub(super) mod socket;
mod stream;
pub(super) mod tls;
pub(super) mod transport;

pub(super) use self::addresses::leave;
pub(super) use self::dial::{broken, unreachable};
pub(super) use self::stream::{Stream, connect, connect_unix, encrypt, open, socket_of};
