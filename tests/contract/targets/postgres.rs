//! A database for each case, on one server for all cases.

use std::{
    cell::OnceCell,
    sync::{Arc, Mutex, PoisonError},
};

use async_trait::async_trait;
use dlock::{
    backends::{
        kit::Configured as _,
        postgres::{PostgresOptions, backend},
        sql::{SqlMode, SqlServer},
    },
    lock::{Backend, Namespace},
};

use crate::support::{
    ports,
    postgres::{Kept, Options, Postgres, USER},
    proxy::Proxy,
};

pub struct Target {
    mode: SqlMode,
    pub database: String,
    shared: Arc<Postgres>,
    /// The case's own server, instead of the shared one.
    own: OnceCell<Postgres>,
}

static SHARED: Mutex<Option<Arc<Postgres>>> = Mutex::new(None);

/// Returns the shared server.
fn shared() -> Arc<Postgres> {
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    let start = || {
        Arc::new(Postgres::with(Options {
            settings: vec!["max_connections=600".into()],
            ..Options::default()
        }))
    };
    Arc::clone(shared.get_or_insert_with(start))
}

/// Ends the server, and removes its folder.
pub fn end() {
    SHARED.lock().unwrap_or_else(PoisonError::into_inner).take();
}

fn options(port: u16, database: &str, mode: SqlMode, namespace: &str) -> PostgresOptions {
    let mut options = PostgresOptions::new(SqlServer::Tcp {
        host: "127.0.0.1".into(),
        port,
    });
    options.sql.user = Some(USER.into());
    options.sql.database = Some(database.into());
    options.sql.namespace = Namespace::new(namespace).expect("a namespace");
    options.sql.mode = mode;
    options
}

impl Target {
    pub fn make(mode: SqlMode) -> Self {
        let shared = shared();
        let target = Self {
            mode,
            database: shared.database(),
            shared,
            own: OnceCell::new(),
        };
        target.create_tables();
        target
    }

    /// Creates the tables, which every case needs except those about creating them.
    fn create_tables(&self) {
        let schema = self.options("dlock").schema().expect("a schema");
        self.sql(&format!("BEGIN; {schema} COMMIT"));
    }

    pub fn options(&self, namespace: &str) -> PostgresOptions {
        options(self.server().port, &self.database, self.mode, namespace)
    }

    /// Returns the server's answer to statements in the case's database.
    #[track_caller]
    pub fn sql(&self, sql: &str) -> Vec<Vec<Option<String>>> {
        self.server().sql(&self.database, sql)
    }

    /// Runs statements in the background.
    pub fn meanwhile(&self, sql: &str) -> std::thread::JoinHandle<()> {
        let (shared, database, sql) = (
            Arc::clone(&self.shared),
            self.database.clone(),
            sql.to_owned(),
        );
        std::thread::spawn(move || drop(shared.sql(&database, &sql)))
    }

    /// Returns a client behind a proxy.
    pub fn through(&self, proxy: &Proxy) -> crate::lab::Client {
        crate::lab::Client(backend(options(
            proxy.port,
            &self.database,
            self.mode,
            "dlock",
        )))
    }

    /// Returns a session of the test that has run these statements, and lasts until it is dropped.
    pub fn keep(&self, sql: &str) -> Kept {
        self.server().keep(&self.database, sql)
    }

    pub fn server(&self) -> &Postgres {
        self.own.get().unwrap_or(&self.shared)
    }
}

#[async_trait(?Send)]
impl super::Target for Target {
    async fn open(&self, namespace: &str) -> Box<dyn Backend> {
        backend(self.options(namespace))
    }

    async fn unreachable(&self) -> Box<dyn Backend> {
        backend(options(ports::free(), "postgres", self.mode, "dlock"))
    }

    async fn lose_data(&self) {
        // Dropped clients end with some delay, and their sessions a little later.
        let sessions = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'dlock %'";
        for _ in 0..200 {
            if self.mode == SqlMode::Lease || self.sql(sessions).is_empty() {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        self.sql("DELETE FROM dlock; DELETE FROM dlock_waiters; DELETE FROM dlock_sessions; DELETE FROM dlock_fences");
    }

    async fn isolate(&self) {
        let own = Postgres::plain();
        own.sql(USER, &format!("CREATE DATABASE {}", self.database));
        self.own.set(own).expect("once");
        self.create_tables();
    }

    fn server(&self) -> Option<&dyn super::Server> {
        Some(self)
    }

    fn postgres(&self) -> Option<&Target> {
        Some(self)
    }
}

#[async_trait(?Send)]
impl super::Server for Target {
    fn port(&self) -> u16 {
        self.server().port
    }

    async fn through(&self, port: u16) -> Box<dyn Backend> {
        backend(options(port, &self.database, self.mode, "dlock"))
    }

    fn acquire_mark(&self) -> &'static str {
        "INTO \"dlock\" AS"
    }

    fn freeze(&self) {
        self.server().freeze();
    }

    fn thaw(&self) {
        self.server().thaw();
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.shared.try_sql(
            USER,
            &format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.database),
        );
    }
}
