//! PostgreSQL: a database, in each mode.

use std::{
    any::Any,
    sync::{Arc, Mutex, Weak},
};

use super::{
    Can, Fixture, Info, Kind, Marks, Need, SESSIONS, Store, USUAL, places,
    shared::{self, Slot},
};
use crate::postgres::{HOLDER, Kept, Options, Postgres, USER, missing};

pub const FIXTURE: Fixture = Fixture {
    store: "PostgreSQL",
    kinds: &[
        Info {
            also: "postgres",
            ..kind(Kind::PostgresLease, "postgres-lease", USUAL)
        },
        kind(Kind::PostgresRow, "postgres-row", SESSIONS),
        kind(Kind::PostgresAdvisory, "postgres-advisory", SESSIONS),
    ],
};

const fn kind(kind: Kind, name: &'static str, can: Can) -> Info {
    Info {
        can,
        marks: Marks {
            acquire: "INTO \"dlock\" AS",
            taking: "",
            changing: "",
        },
        ..Info::new(kind, name, start, missing)
    }
}

/// A database, and the mode of the locks in it.
pub struct Database {
    pub server: Arc<Postgres>,
    pub name: String,
    parameters: &'static str,
}

/// The clock is never stepped: the server measures the silence of sessions by it, and may end them
/// at a step. dlock-stores(7) promises nothing then.
fn start(kind: Kind, need: Need) -> Box<dyn Store> {
    static SLOT: Slot<Postgres> = Mutex::new(Weak::new());
    let many = || {
        Postgres::with(Options {
            settings: vec!["max_connections=600".into()],
            ..Options::default()
        })
    };
    let own = |durable| {
        Arc::new(Postgres::with(Options {
            durable,
            ..Options::default()
        }))
    };
    let server = match need {
        Need::Shared => shared::get(&SLOT, many),
        Need::Own => own(false),
        Need::Durable | Need::Faulty => own(true),
    };
    let database = Database {
        name: server.database(),
        server,
        parameters: kind.mode(),
    };
    database.create_tables();
    Box::new(database)
}

impl Database {
    fn create_tables(&self) {
        let schema = crate::dlock::schema(self.parameters, &self.url());
        self.sql(&format!("BEGIN; {schema} COMMIT"));
    }

    /// Returns the server's answer to statements in this database.
    #[track_caller]
    pub fn sql(&self, sql: &str) -> Vec<Vec<Option<String>>> {
        self.server.sql(&self.name, sql)
    }

    /// Returns a session of the test that has run these statements, and lasts until it is dropped.
    pub fn keep(&self, sql: &str) -> Kept {
        self.server.keep(&self.name, sql)
    }

    fn own(&mut self) -> &mut Postgres {
        Arc::get_mut(&mut self.server).expect("a server of its own")
    }
}

impl Store for Database {
    fn url_at(&self, host: &str, ports: &[u16]) -> String {
        let (places, name) = (places(host, ports), &self.name);
        format!(
            "postgres://{USER}@{places}/{name}?sslmode=disable{}",
            self.parameters
        )
    }

    fn ports(&self) -> Vec<u16> {
        vec![self.server.port]
    }

    fn servers(&self) -> &dyn Any {
        self
    }

    fn freeze(&self) {
        self.server.freeze();
    }

    fn thaw(&self) {
        self.server.thaw();
    }

    fn kill(&mut self) {
        self.own().kill();
    }

    fn start(&mut self) {
        self.own().start();
    }

    fn restart_empty(&mut self) {
        self.own().restart_empty();
        self.server
            .sql(USER, &format!("CREATE DATABASE {}", self.name));
        self.create_tables();
    }

    fn take_away(&self, key: &str) {
        let sql = if self.parameters.is_empty() {
            format!(
                "UPDATE dlock SET lock_until = timezone('utc', clock_timestamp()) \
                 WHERE name = 'dlock:{key}' RETURNING 1"
            )
        } else {
            format!(
                "SELECT pg_terminate_backend({HOLDER}::int) FROM dlock WHERE name = 'dlock:{key}'"
            )
        };
        assert_eq!(self.sql(&sql).len(), 1);
    }

    fn lose_data(&self, _: &str) {
        self.sql("DELETE FROM dlock; DELETE FROM dlock_waiters");
    }

    fn left(&self, _: &[String]) -> Vec<String> {
        let sql = "SELECT pid, state, query FROM pg_stat_activity \
                   WHERE datname = current_database() AND application_name LIKE 'dlock%'";
        self.server.try_sql(&self.name, sql).map_or_else(
            |why| vec![why],
            |rows| rows.iter().map(|row| format!("{row:?}")).collect(),
        )
    }

    fn log(&self) -> String {
        self.server.log()
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        // Other tests go on with a shared server.
        if Arc::strong_count(&self.server) > 1 {
            let drop = format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name);
            let _ = self.server.try_sql(USER, &drop);
        }
    }
}
