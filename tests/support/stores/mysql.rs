//! MariaDB and MySQL: a database, in each mode.

use std::{
    any::Any,
    sync::{Arc, Mutex, Weak},
    time::Duration,
};

use super::{
    Can, Fixture, Info, Kind, Marks, Need, SESSIONS, Store, USUAL, places,
    shared::{self, Slot},
};
use crate::{
    clock::Clock,
    mariadb::{HOLDER, Kept, MariaDb, Options, Product, USER},
};

pub const FIXTURE: Fixture = Fixture {
    store: "MySQL, MariaDB",
    kinds: &[
        Info {
            also: "mariadb",
            ..kind(Kind::MariadbLease, "mariadb-lease", LEASES)
        },
        kind(Kind::MariadbRow, "mariadb-row", SESSIONS),
        kind(Kind::MariadbAdvisory, "mariadb-advisory", ADVISORY),
        Info {
            also: "mysql",
            ..itself(Kind::MysqlLease, "mysql-lease", LEASES)
        },
        itself(Kind::MysqlRow, "mysql-row", SESSIONS),
        itself(Kind::MysqlAdvisory, "mysql-advisory", ADVISORY),
    ],
};

/// Locks of sessions don't depend on the clock.
const LEASES: Can = Can {
    clock: true,
    ..USUAL
};

/// `GET_LOCK` has no shared mode.
const ADVISORY: Can = Can {
    shared: false,
    ..SESSIONS
};

const fn kind(kind: Kind, name: &'static str, can: Can) -> Info {
    Info {
        can,
        marks: Marks {
            acquire: "GREATEST(fence + 1",
            taking: "",
            changing: "",
        },
        ..Info::new(kind, name, start, || Product::MariaDb.missing())
    }
}

const fn itself(of: Kind, name: &'static str, can: Can) -> Info {
    Info {
        missing: || Product::MySql.missing(),
        optional: true,
        ..kind(of, name, can)
    }
}

/// A database, and the mode of the locks in it.
pub struct Schema {
    pub server: Arc<MariaDb>,
    pub name: String,
    parameters: &'static str,
    clock: Option<Clock>,
}

fn start(kind: Kind, need: Need) -> Box<dyn Store> {
    static SLOTS: [Slot<MariaDb>; 2] = [Mutex::new(Weak::new()), Mutex::new(Weak::new())];
    let product = if kind.is_mysql_itself() {
        Product::MySql
    } else {
        Product::MariaDb
    };
    let clock = if need == Need::Faulty && kind.is_mysql_lease() {
        Clock::make()
    } else {
        None
    };
    let options = Options {
        product,
        durable: matches!(need, Need::Durable | Need::Faulty),
        environment: clock.as_ref().map(Clock::environment).unwrap_or_default(),
        ..Options::default()
    };
    let server = if need == Need::Shared {
        let settings = vec!["--max-connections=600".into()];
        shared::get(&SLOTS[product as usize], || {
            MariaDb::with(Options {
                settings,
                ..options
            })
        })
    } else {
        Arc::new(MariaDb::with(options))
    };
    let schema = Schema {
        name: server.database(),
        server,
        parameters: kind.mode(),
        clock,
    };
    schema.create_tables();
    Box::new(schema)
}

impl Schema {
    fn create_tables(&self) {
        self.sql(&crate::dlock::schema(self.parameters, &self.url()));
    }

    /// Returns the server's answer to statements in this database.
    #[track_caller]
    pub fn sql(&self, sql: &str) -> Vec<Vec<String>> {
        self.server.sql(&self.name, sql)
    }

    /// Returns a session that has run these statements, and keeps their locks until it is dropped.
    pub fn keep(&self, sql: &str) -> Kept {
        self.server.keep(&self.name, sql)
    }

    fn own(&mut self) -> &mut MariaDb {
        Arc::get_mut(&mut self.server).expect("a server of its own")
    }
}

impl Store for Schema {
    fn url_at(&self, host: &str, ports: &[u16]) -> String {
        let (scheme, places) = (self.server.product().scheme(), places(host, ports));
        format!(
            "{scheme}://{USER}@{places}/{}?ssl-mode=DISABLED{}",
            self.name, self.parameters
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

    fn restart(&mut self) {
        self.own().restart();
    }

    fn restart_empty(&mut self) {
        self.own().restart();
        let name = &self.name;
        self.server.sql(
            "mysql",
            &format!("DROP DATABASE {name}; CREATE DATABASE {name}"),
        );
        self.create_tables();
    }

    /// dlock identifies a server's start by whole seconds.
    fn shortest_outage(&self) -> Duration {
        Duration::from_millis(1100)
    }

    fn take_away(&self, key: &str) {
        let of = format!("WHERE name = 'dlock:{key}'");
        if self.parameters.is_empty() {
            let sql =
                format!("UPDATE dlock SET lock_until = UTC_TIMESTAMP(6) {of}; SELECT ROW_COUNT()");
            assert_eq!(self.server.text(&self.name, &sql), "1");
        } else {
            let sql = format!("SELECT {HOLDER} FROM dlock {of}");
            let id = self.server.text(&self.name, &sql);
            self.sql(&format!("KILL {id}"));
        }
    }

    fn lose_data(&self, _: &str) {
        self.sql("DELETE FROM dlock; DELETE FROM dlock_waiters");
    }

    fn left(&self, _: &[String]) -> Vec<String> {
        let sql = format!(
            "SELECT id, info FROM information_schema.processlist \
             WHERE db = '{}' AND id <> CONNECTION_ID()",
            self.name
        );
        self.server.try_sql("mysql", &sql).map_or_else(
            |why| vec![why],
            |rows| rows.iter().map(|row| format!("{row:?}")).collect(),
        )
    }

    fn log(&self) -> String {
        self.server.log()
    }

    fn clock(&self) -> Option<&Clock> {
        self.clock.as_ref()
    }
}

impl Drop for Schema {
    fn drop(&mut self) {
        // Other tests go on with a shared server.
        if Arc::strong_count(&self.server) > 1 {
            let drop = format!("DROP DATABASE IF EXISTS {}", self.name);
            let _ = self.server.try_sql("mysql", &drop);
        }
    }
}
