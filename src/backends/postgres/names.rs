//! The names that belong to a table: its side tables, and the channel and the advisory locks of
//! each of its locks.

use super::statement::{Value, literal};
use crate::{
    backends::sql::{LAYOUT, SqlMode},
    lock::fingerprint,
};

/// The number of queues in which waiters block first; only the first of each queue blocks for the
/// lock itself. After a second each blocked session searches for a deadlock among all waiters for
/// the same lock. The search locks all locks of the server, and its time grows with the cube of the
/// number of waiters. Queues decide nothing.
const QUEUES: u32 = 32;

/// A table's name in statements, and the names that derive from it.
#[derive(Clone, Debug)]
pub struct Tables {
    plain: String,
    mode: SqlMode,
    /// The server is a standby, where unlogged tables can't be read.
    standby: bool,
}

/// The server's identity, which is its timeline: a promotion changes that; and its start in µs.
pub(super) const SERVER: &str = "CASE WHEN pg_is_in_recovery() THEN 'standby' ELSE left(pg_walfile_name(pg_current_wal_lsn()), 8) END, (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint";

/// Whether the row `l` is free: its lease is over, or dlock released it and only keeps other
/// programs out.
const FREE: &str = "(l.lock_until <= timezone('utc', clock_timestamp()) OR coalesce(l.owner = l.locked_by, false) AND l.document IS NULL)";

/// The end of the lease of the row `l` in us. A row that was written by hand may have no end, which
/// no number stands for, or one long ago.
const UNTIL: &str =
    "(greatest(least(extract(epoch FROM l.lock_until), 253402300799), 0) * 1000000)::bigint";

/// Whether the document of the row `l` has no holder. No text of a user can match: quotes in it are
/// escaped.
const UNHELD: &str = r#"coalesce(position('"s":[' IN l.document) = 0, true)"#;

/// Whether there are plain waiters for the row `l`.
const WAITED: &str = "{unlined} AND EXISTS (SELECT FROM {waiters} AS w WHERE w.name = l.name AND w.seen > clock_timestamp() - interval '15 seconds')";

/// Whether the document of the row `l` has no queue. No text of a user can match: quotes in it are
/// escaped.
const WITHOUT_QUEUE: &str = r#"coalesce(position('"q":[' IN l.document) = 0, true)"#;

/// The substitute for the table of waiters on a standby.
const NO_WAITERS: &str = "(SELECT 0::bigint AS place, ''::text AS name, ''::text AS hold, now() AS since, now() AS seen, ''::text AS metadata WHERE false)";

impl Tables {
    pub(super) fn new(table: &str, mode: SqlMode) -> Self {
        Self {
            plain: table.to_owned(),
            mode,
            standby: false,
        }
    }

    /// Returns the names for reading the tables on a standby.
    pub(super) fn on_standby(&self) -> Self {
        Self {
            standby: true,
            ..self.clone()
        }
    }

    /// The mode of this client.
    pub(super) const fn mode(&self) -> SqlMode {
        self.mode
    }

    /// Returns the table's name without its schema, and whether it has a schema.
    pub(super) fn bare(&self) -> (&str, bool) {
        self.plain
            .rsplit_once('.')
            .map_or((&*self.plain, false), |(_, table)| (table, true))
    }

    /// Fills the names into a statement. They are quoted, and have no quotes themselves.
    pub(super) fn fill(&self, sql: &str) -> String {
        let mode = self.mode.column();
        sql.replace("{server}", SERVER)
            .replace("{mode}", &literal(Value::Maybe(mode)))
            .replace("{free}", FREE)
            .replace("{unheld}", UNHELD)
            .replace("{columns}", include_str!("sql/columns.sql").trim_end())
            .replace("{until}", UNTIL)
            .replace("{waited}", WAITED)
            .replace("{unlined}", WITHOUT_QUEUE)
            .replace("{layout}", &LAYOUT.to_string())
            .replace("{starts}", include_str!("sql/starts.sql").trim_end())
            .replace("{starts_schema}", include_str!("sql/starts_schema.sql"))
            .replace("{table}", &self.quoted(""))
            .replace(
                "{waiters}",
                &if self.standby {
                    NO_WAITERS.to_owned()
                } else {
                    self.quoted("_waiters")
                },
            )
            .replace("{rows}", &self.quoted("_rows"))
            .replace("{runs}", &self.quoted("_runs"))
            .replace("{skips}", &self.quoted("_skips"))
    }

    /// Returns `schema.table`, quoted part by part.
    pub(super) fn quoted(&self, suffix: &str) -> String {
        let parts: Vec<_> = self
            .plain
            .split('.')
            .map(|part| part.replace('"', ""))
            .collect();
        format!("\"{}{suffix}\"", parts.join("\".\""))
    }

    /// Returns the channel on which a lock's release is announced.
    pub(super) fn channel(&self, name: &str) -> String {
        format!(
            "dlock_{:016x}",
            fingerprint(&["channel", &self.plain, name])
        )
    }

    /// Returns the channel on which a waiter in the document is notified.
    pub(super) fn waiter(&self, name: &str, hold: &str) -> String {
        format!(
            "dlock_{:016x}",
            fingerprint(&["waiter", &self.plain, name, hold])
        )
    }

    /// Returns the advisory lock that picks the watcher of a lock's row.
    pub(super) fn advisory_lock(&self, name: &str) -> i64 {
        fingerprint(&["gate", &self.plain, name]).cast_signed()
    }

    /// Returns the advisory lock that every session of `mode=row` takes next to the row. The server
    /// tells who has it, and no new reader gets past a waiting writer: row locks alone let new
    /// readers in while other readers have the row.
    pub(super) fn row_lock(&self, name: &str) -> i64 {
        fingerprint(&["turn", &self.plain, name]).cast_signed()
    }

    /// Returns the advisory lock of the queue in which a session of this server process blocks.
    pub(super) fn queue_lock(&self, name: &str, pid: i32) -> i64 {
        let nth = pid.unsigned_abs() % QUEUES;
        fingerprint(&["line", &self.plain, name, &nth.to_string()]).cast_signed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_quoted_part_by_part() {
        let tables = Tables::new("jobs.shedlock", SqlMode::Lease);
        assert_eq!(
            tables.fill("FROM {table}, {waiters}"),
            r#"FROM "jobs"."shedlock", "jobs"."shedlock_waiters""#
        );
        assert_ne!(tables.advisory_lock("a"), tables.advisory_lock("b"));
        assert_ne!(tables.queue_lock("a", 0), tables.queue_lock("a", 1));
        assert_ne!(
            tables.channel("a"),
            Tables::new("dlock", SqlMode::Lease).channel("a")
        );
    }
}
