//! Which lock libraries share a lock on PostgreSQL.

use super::{AdvisoryKey, PostgresOptions};
use crate::{
    backends::sql::{self, SqlMode},
    lock::{Key, Library, Sharing},
};

/// With `mode=advisory`. The lock's name is the function's argument.
pub(in crate::backends) const ADVISORY: [Library; 3] = [
    Library::shares(
        "any client, in the same database",
        "SELECT pg_advisory_lock({name});",
        "pg_advisory_lock_shared goes together with dlock's readers (-s)",
    ),
    Library::strange(
        "hashtext('NAME')",
        "another number: give it to dlock, as ?pg_key= with the result of SELECT hashtext('NAME')",
    ),
    Library::strange(
        "with_advisory_lock, Symfony Lock and others that hash by themselves",
        "another number: give it to dlock, as ?pg_key=NUMBER, or ?pg_key=A,B for two",
    ),
];

/// Returns the lock's name for each library.
pub fn sharing(options: &PostgresOptions, key: &Key) -> Sharing {
    match options.sql.mode {
        SqlMode::Lease => sql::sharing(&options.sql, key),
        SqlMode::Row => Sharing::new(sql::Names::new(&options.sql.namespace).of(key), &[], &[]),
        SqlMode::Advisory => Sharing::new(advisory_name(options, key), &ADVISORY, &[]),
    }
}

/// Returns the arguments of `pg_advisory_lock` with `mode=advisory`, as SQL.
pub(super) fn advisory_name(options: &PostgresOptions, key: &Key) -> String {
    match options.advisory_key {
        None => format!(
            "hashtextextended('{}', 0)",
            sql::Names::new(&options.sql.namespace)
                .of(key)
                .replace('\'', "''")
        ),
        Some(AdvisoryKey::One(key)) => key.to_string(),
        Some(AdvisoryKey::Two(first, second)) => format!("{first}, {second}"),
    }
}
