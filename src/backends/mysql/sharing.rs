//! Which lock libraries share a lock on MySQL and MariaDB.

use super::{MysqlOptions, names};
use crate::{
    backends::sql::{self, SqlMode},
    lock::{Key, Library, Sharing},
};

/// With `mode=advisory`.
pub(in crate::backends) const ADVISORY: [Library; 1] = [Library::shares(
    "any client",
    "SELECT GET_LOCK({lock}, 10);",
    "with ?lock_name=raw dlock takes GET_LOCK('KEY') itself, for programs that do so already, such as tooz (Python)",
)];

/// Returns the lock's name for each library.
pub fn sharing(options: &MysqlOptions, key: &Key) -> Sharing {
    let name = sql::Names::new(&options.sql.namespace).of(key);
    match options.sql.mode {
        SqlMode::Lease => sql::sharing(&options.sql, key),
        SqlMode::Row => Sharing::new(name, &[], &[]),
        SqlMode::Advisory => {
            let name = names::advisory_name(options, key, &name);
            // A raw name may have a backslash.
            let lock = format!("'{}'", name.replace('\\', r"\\").replace('\'', "''"));
            Sharing::new(name, &ADVISORY, &[("lock", &lock)])
        }
    }
}
