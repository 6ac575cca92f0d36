//! The names that belong to a table: its side tables, and the advisory locks of each of its locks.

use sha2::{Digest as _, Sha256};

use super::{
    options::MysqlOptions,
    starts::STARTS,
    statement::{Value, fill, literal, substitute},
};
use crate::{
    backends::sql::{self, LAST_FENCE, LAYOUT, SHARED_BY, SqlMode},
    lock::{Key, fingerprint},
};

/// A table's name, and the names that are made of it.
#[derive(Clone, Debug)]
pub struct Tables {
    /// The database and the table in it, in lower case, since some servers ignore the case.
    home: String,
    table: String,
    mode: SqlMode,
}

/// The tables next to the lock table: their names in statements, and the ends of their names in the
/// database.
pub(super) const SIDE_TABLES: [(&str, &str); 4] = [
    ("waiters", "_waiters"),
    ("rows", "_rows"),
    ("runs", "_runs"),
    ("skips", "_skips"),
];

impl Tables {
    pub(super) fn new(options: &sql::SqlOptions) -> Self {
        Self {
            home: home(options),
            table: options.table.clone(),
            mode: options.mode,
        }
    }

    /// The mode of this client.
    pub(super) const fn mode(&self) -> SqlMode {
        self.mode
    }

    /// Returns the table's name as configured.
    pub(super) fn table(&self) -> &str {
        &self.table
    }

    fn names(&self) -> Vec<(&str, Value<'_>)> {
        let sides = SIDE_TABLES.map(|(name, suffix)| (name, Value::Name(&self.table, suffix)));
        let rest = [
            ("table", Value::Name(&self.table, "")),
            ("starts", Value::Sql(STARTS)),
            ("of_dlock", Value::Sql(OF_DLOCK)),
            ("layout", Value::Int(LAYOUT.into())),
            ("shared", Value::Text(SHARED_BY)),
            ("last", Value::Int(LAST_FENCE)),
            ("mode", Value::text_or_null(self.mode.column())),
        ];
        sides.into_iter().chain(rest).collect()
    }

    /// Fills the tables' names and these values into a statement.
    pub(super) fn fill(&self, template: &str, values: &[(&str, Value<'_>)]) -> String {
        fill(template, &[&*self.names(), values].concat())
    }

    /// Fills the tables' names into a statement with its comments, for people.
    pub(super) fn show(&self, template: &str) -> String {
        let lines = template.lines().map(|line| substitute(line, &self.names()));
        lines.collect::<Vec<_>>().join("\n") + "\n"
    }

    /// Returns the name of the advisory lock that picks the watcher of a row, as SQL. The name
    /// includes the database's, since `GET_LOCK`'s names belong to the whole server.
    pub(super) fn advisory_lock(&self, name: &str) -> String {
        self.lock("gate", &[name])
    }

    /// Returns the chain lock of a waiter with this hold.
    pub(super) fn chain_lock(&self, name: &str, hold: &str) -> String {
        self.lock("rope", &[name, hold])
    }

    /// Returns the sleep lock of a waiter with this hold.
    pub(super) fn sleep_lock(&self, name: &str, hold: &str) -> String {
        self.lock("bed", &[name, hold])
    }

    fn lock(&self, kind: &str, of: &[&str]) -> String {
        format!(
            "'dlock.{kind}.{:016x}.{:016x}'",
            fingerprint(&[&self.home]),
            fingerprint(&[&[kind], of].concat())
        )
    }

    /// Returns the database and the table, for names of locks that belong to the whole server.
    pub(super) fn home(&self) -> &str {
        &self.home
    }
}

/// Whether no other program has taken a lock since dlock did, as SQL. ShedLock's table may have any
/// character set.
const OF_DLOCK: &str = "(CONVERT(owner USING utf8mb4) COLLATE utf8mb4_bin <=> locked_by)";

/// The longest name of a lock in MySQL.
const LONGEST: usize = 64;
/// The prefix of hashed names.
const HASHED: &str = "dlock#";

/// Returns the table and its database, which `?table=` or else the URL names, in lower case: some
/// servers ignore the case.
fn home(options: &sql::SqlOptions) -> String {
    let database = options.database.as_deref().unwrap_or_default();
    let (database, table) = options
        .table
        .split_once('.')
        .unwrap_or((database, &options.table));
    format!("{database}.{table}").to_lowercase()
}

/// Returns the argument of `GET_LOCK` with `mode=advisory`, as SQL: `DATABASE.TABLE/NAME`, since
/// these locks belong to the server, where NAME is the name in the tables; or the key itself with
/// `raw_names`. MySQL ignores the case and, in places, spaces at the end, and takes 64 characters:
/// a name that isn't short, lower-case ASCII becomes `dlock#` and the first 58 digits of its
/// SHA-256, which is `CONCAT('dlock#', LEFT(SHA2('DATABASE.TABLE/NAME', 256), 58))`.
pub(super) fn advisory(options: &MysqlOptions, key: &Key, name: &str) -> String {
    literal(Value::Text(&advisory_name(options, key, name)))
}

/// As [`advisory`], as text.
pub(super) fn advisory_name(options: &MysqlOptions, key: &Key, name: &str) -> String {
    let full = if options.raw_names {
        key.as_str().to_owned()
    } else {
        format!("{}/{name}", home(&options.sql))
    };
    let plain = full.len() <= LONGEST
        && full
            .bytes()
            .all(|b| b.is_ascii_graphic() && !b.is_ascii_uppercase())
        && !full.starts_with(HASHED);
    if plain {
        return full;
    }
    let digits = Sha256::digest(full)
        .iter()
        .fold(String::new(), |digits, byte| {
            digits + &format!("{byte:02x}")
        });
    format!("{HASHED}{}", &digits[..LONGEST - HASHED.len()])
}

/// Returns whether a session has the lock of a row of the table, known to dlock or not, as SQL, with
/// the rules of [`advisory`]. False with other modes: asking for a row's lock would take it.
pub(super) fn is_locked(options: &MysqlOptions) -> String {
    if options.sql.mode != SqlMode::Advisory {
        return "FALSE".into();
    }
    let name = "CONVERT(name USING utf8mb4) COLLATE utf8mb4_bin";
    let full = if options.raw_names {
        let before = sql::Names::new(&options.sql.namespace).starting_with("");
        format!("SUBSTRING({name}, {})", before.chars().count() + 1)
    } else {
        let home = literal(Value::Text(&format!("{}/", home(&options.sql))));
        format!("CONCAT({home}, {name})")
    };
    format!(
        "IS_USED_LOCK(IF(LENGTH({full}) <= {LONGEST} AND {full} NOT REGEXP '[^!-~]' AND LOWER({full}) = {full} \
         AND LEFT({full}, {}) <> '{HASHED}', {full}, CONCAT('{HASHED}', LEFT(SHA2({full}, 256), {})))) IS NOT NULL",
        HASHED.len(),
        LONGEST - HASHED.len()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backends::sql::SqlServer;

    #[test]
    fn only_plain_names_stand_for_themselves() {
        let mut options = MysqlOptions::new(SqlServer::Tcp {
            host: "h".into(),
            port: 1,
        });
        options.sql.database = Some("app".into());
        let name = |options: &MysqlOptions, key: &str| {
            advisory(options, &Key::new(key).unwrap(), &format!("dlock:{key}"))
        };
        assert_eq!(
            name(&options, "job"),
            "_utf8mb4 X'6170702E646C6F636B2F646C6F636B3A6A6F62' COLLATE utf8mb4_bin"
        );
        let elsewhere = MysqlOptions {
            sql: sql::SqlOptions {
                database: Some("Other".into()),
                table: "App.dlock".into(),
                ..options.sql.clone()
            },
            ..options.clone()
        };
        assert_eq!(
            name(&options, "job"),
            name(&elsewhere, "job"),
            "the table's database, not the URL's"
        );
        assert_eq!(
            Tables::new(&options.sql).advisory_lock("x"),
            Tables::new(&elsewhere.sql).advisory_lock("x")
        );
        let other = MysqlOptions {
            sql: sql::SqlOptions {
                table: "jobs".into(),
                ..options.sql.clone()
            },
            ..options.clone()
        };
        assert_ne!(name(&options, "job"), name(&other, "job"));
        for odd in ["JOB", "job ", "caf\u{e9}", &"x".repeat(60)] {
            // In hexadecimal, of 64 characters: dlock#
            assert!(
                name(&options, odd).starts_with("_utf8mb4 X'646C6F636B23")
                    && name(&options, odd).len() == 12 + 128 + " COLLATE utf8mb4_bin".len(),
                "{odd}"
            );
        }
        options.raw_names = true;
        assert_eq!(
            name(&options, "job"),
            "_utf8mb4 X'6A6F62' COLLATE utf8mb4_bin"
        );
        assert_ne!(
            advisory_name(&options, &Key::new("dlock#0").unwrap(), ""),
            "dlock#0",
            "it could be another's hash"
        );
        // SELECT LEFT(SHA2('JOB', 256), 58)
        let hashed = advisory_name(&options, &Key::new("JOB").unwrap(), "");
        assert_eq!(
            hashed,
            "dlock#c7b278365543990288675aaa4441199528aefbb5ade99bf9f56ec4d09d"
        );
    }
}
