//! What belongs to a table: its side tables, and the gate of each of its locks.

use super::{
    options::Options,
    starts::STARTS,
    statement::{Value, fill, substitute},
};
use crate::lock::{Key, fingerprint};

/// A table's name, and the names that are made of it.
#[derive(Clone, Debug)]
pub(super) struct Tables {
    table: String,
    waiters: String,
    rows: String,
    sessions: String,
    runs: String,
    skips: String,
    marks: String,
    readers: String,
}

impl Tables {
    pub(super) fn new(table: &str) -> Self {
        let with = |suffix: &str| format!("{table}{suffix}");
        Self {
            table: table.to_owned(),
            waiters: with("_waiters"),
            rows: with("_rows"),
            sessions: with("_sessions"),
            runs: with("_runs"),
            skips: with("_skips"),
            marks: with("_marks"),
            readers: with("_readers"),
        }
    }

    /// The table as it was named.
    pub(super) fn table(&self) -> &str {
        &self.table
    }

    /// The table of sessions.
    pub(super) fn sessions(&self) -> &str {
        &self.sessions
    }

    fn names(&self) -> [(&str, Value<'_>); 9] {
        [
            ("table", Value::Name(&self.table)),
            ("waiters", Value::Name(&self.waiters)),
            ("rows", Value::Name(&self.rows)),
            ("sessions", Value::Name(&self.sessions)),
            ("runs", Value::Name(&self.runs)),
            ("skips", Value::Name(&self.skips)),
            ("marks", Value::Name(&self.marks)),
            ("readers", Value::Name(&self.readers)),
            ("starts", Value::Sql(STARTS)),
        ]
    }

    /// The statement with the tables' names and these values in it.
    pub(super) fn fill(&self, template: &str, values: &[(&str, Value<'_>)]) -> String {
        fill(template, &[&self.names(), values].concat())
    }

    /// The statement with the tables' names in it, comments and all, for people.
    pub(super) fn show(&self, template: &str) -> String {
        let lines = template.lines().map(|line| substitute(line, &self.names()));
        lines.collect::<Vec<_>>().join("\n") + "\n"
    }

    /// The name of a lock's gate, as SQL: `GET_LOCK`'s names belong to the whole server, so the database's is in it. Hashed by
    /// what every server has: MySQL 9.6 has no `SHA1` any more.
    pub(super) fn gate(&self, name: &str) -> String {
        let print = fingerprint(&["gate", &self.table, name]);
        format!("CONCAT('dlock.gate.', LEFT(SHA2(COALESCE(DATABASE(), ''), 256), 16), '.{print:016x}')")
    }

    /// What whoever waits in a lock's crowd with this hold has until its turn is over, likewise.
    pub(super) fn rope(&self, name: &str, hold: &str) -> String {
        let print = fingerprint(&["rope", &self.table, name, hold]);
        format!("CONCAT('dlock.rope.', LEFT(SHA2(COALESCE(DATABASE(), ''), 256), 16), '.{print:016x}')")
    }

    /// What it has while it sleeps.
    pub(super) fn bed(&self, name: &str, hold: &str) -> String {
        let print = fingerprint(&["bed", &self.table, name, hold]);
        format!("CONCAT('dlock.bed.', LEFT(SHA2(COALESCE(DATABASE(), ''), 256), 16), '.{print:016x}')")
    }
}

/// The most that MySQL takes as a lock's name.
const LONGEST: usize = 64;
/// What the names begin with that stand for others.
const HASHED: &str = "dlock#";

/// What `GET_LOCK` takes with `mode=advisory`, as SQL: `DATABASE/NAME`, since these locks belong to the whole server, where
/// NAME is that in the tables; or the key itself where somebody wants it raw. MySQL tells apart neither case nor, in places,
/// spaces at the end, and takes 64 characters: what isn't short, lower-case ASCII is `dlock#` and the first 58 digits of its
/// SHA-256, which is `CONCAT('dlock#', LEFT(SHA2('DATABASE/NAME', 256), 58))`.
pub(super) fn advisory(options: &Options, key: &Key, name: &str) -> String {
    let database = options.sql.database.as_deref().unwrap_or_default();
    let full = if options.raw_names { key.as_str().to_owned() } else { format!("{database}/{name}") };
    let plain = full.len() <= LONGEST && full.bytes().all(|b| b.is_ascii_graphic() && !b.is_ascii_uppercase()) && !full.starts_with(HASHED);
    if plain {
        fill(":name", &[("name", Value::Text(&full))]).trim_end().to_owned()
    } else {
        let hash = format!("CONCAT('{HASHED}', LEFT(SHA2(:name, 256), {}))", LONGEST - HASHED.len());
        fill(&hash, &[("name", Value::Bytes(&full))]).trim_end().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backends::sql::Server;

    #[test]
    fn only_plain_names_stand_for_themselves() {
        let mut options = Options::new(Server::Tcp { host: "h".into(), port: 1 });
        options.sql.database = Some("app".into());
        let name = |options: &Options, key: &str| advisory(options, &Key::new(key).unwrap(), &format!("dlock:{key}"));
        assert_eq!(name(&options, "job"), "_utf8mb4 X'6170702F646C6F636B3A6A6F62'");
        for odd in ["JOB", "job ", "caf\u{e9}", &"x".repeat(60)] {
            assert!(name(&options, odd).starts_with("CONCAT('dlock#', LEFT(SHA2(X'"), "{odd}");
        }
        options.raw_names = true;
        assert_eq!(name(&options, "job"), "_utf8mb4 X'6A6F62'");
        assert!(name(&options, "dlock#0").starts_with("CONCAT"), "it could be another's hash");
    }
}
