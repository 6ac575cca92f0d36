//! Sessions that have a row in `mode=row`.
//!
//! The server does not list the sessions that have a row lock. Each of them has a presence lock next
//! to the row, a `GET_LOCK` that ends with its session: a reader's hold counts, and a late grant of
//! any hold is written, while its session has the presence lock. Only the row lock decides who reads
//! or writes.

use super::{names::Tables, statement::Value};
use crate::lock::fingerprint;

/// Returns the name of the presence lock of this hold in this session, as SQL. A restarted server
/// numbers its sessions anew.
pub(super) fn presence(tables: &Tables, name: &str, session: &str, root: &str) -> String {
    let (home, print) = (
        fingerprint(&[tables.home()]),
        fingerprint(&["reader", name]),
    );
    format!(
        "CONCAT('dlock.read.', LEFT(SHA2(CONCAT_WS('/', '{home:016x}{print:016x}', {session}, {root}), 256), 48))"
    )
}

/// Returns the name of the presence lock of a hold in the session that runs the statement.
pub(super) fn own_presence(tables: &Tables, name: &str, root: &str) -> String {
    presence(
        tables,
        name,
        "CONNECTION_ID()",
        &super::statement::literal(Value::Text(root)),
    )
}
