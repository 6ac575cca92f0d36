//! Sessions that share a row in `mode=row`.
//!
//! The server does not tell which they are. Each has a `GET_LOCK` beside the row, its lamp, which ends with its session: what it wrote of itself
//! counts while its session has the lamp. Only the row decides which may read and write: a session that has it alone knows that there are no readers.

use super::{names::Tables, statement::Value};
use crate::lock::fingerprint;

/// Whether the reader whose row is `r` has its lock yet, as SQL.
pub(super) fn reads(tables: &Tables, name: &str) -> String {
    format!("(IS_USED_LOCK({}) <=> r.session)", presence(tables, name, "r.session", "r.root"))
}

/// What `GET_LOCK` takes for the lamp of this hold in this session, as SQL. A server that starts anew numbers its sessions anew.
pub(super) fn presence(tables: &Tables, name: &str, session: &str, root: &str) -> String {
    let (home, print) = (fingerprint(&[tables.home()]), fingerprint(&["reader", name]));
    format!("CONCAT('dlock.read.', LEFT(SHA2(CONCAT_WS('/', '{home:016x}{print:016x}', {session}, {root}), 256), 48))")
}

/// The lamp of a hold in the session that asks.
pub(super) fn own_presence(tables: &Tables, name: &str, root: &str) -> String {
    presence(tables, name, "CONNECTION_ID()", &super::statement::literal(Value::Text(root)))
}
