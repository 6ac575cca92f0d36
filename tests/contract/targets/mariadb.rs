//! A database for each case on MariaDB or MySQL, on one server of each for all cases.

use std::{
    cell::OnceCell,
    sync::{Arc, Mutex, PoisonError},
};

use async_trait::async_trait;
use dlock::{
    backends::{
        kit::Configured as _,
        mysql::{MysqlOptions, backend},
        sql::{SqlMode, SqlServer},
    },
    lock::{Backend, Namespace},
};

use crate::support::{
    self,
    mariadb::{MariaDb, Options, Product, USER},
    ports,
    proxy::Proxy,
};

pub struct Target {
    product: Product,
    mode: SqlMode,
    pub database: String,
    shared: Arc<MariaDb>,
    /// The case's own server, instead of the shared one.
    own: OnceCell<MariaDb>,
}

static SHARED: Mutex<[Option<Arc<MariaDb>>; 2]> = Mutex::new([None, None]);

/// Returns the shared server.
fn shared(product: Product) -> Arc<MariaDb> {
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    let start = || {
        Arc::new(MariaDb::with(Options {
            product,
            settings: vec!["--max-connections=600".into()],
            ..Options::default()
        }))
    };
    Arc::clone(shared[product as usize].get_or_insert_with(start))
}

/// Ends the servers, and removes their folders.
pub fn end() {
    *SHARED.lock().unwrap_or_else(PoisonError::into_inner) = [None, None];
}

fn options(port: u16, database: &str, mode: SqlMode, namespace: &str) -> MysqlOptions {
    let mut options = MysqlOptions::new(SqlServer::Tcp {
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
    pub fn make(product: Product, mode: SqlMode) -> Self {
        let shared = shared(product);
        let target = Self {
            product,
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
        self.sql(&self.options("dlock").schema().expect("a schema"));
    }

    pub fn options(&self, namespace: &str) -> MysqlOptions {
        options(self.server().port, &self.database, self.mode, namespace)
    }

    /// Returns the server's answer to statements in the case's database.
    #[track_caller]
    pub fn sql(&self, sql: &str) -> Vec<Vec<String>> {
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
    pub fn through_proxy(&self, proxy: &Proxy) -> crate::lab::Client {
        crate::lab::Client(backend(options(
            proxy.port,
            &self.database,
            self.mode,
            "dlock",
        )))
    }

    /// Returns the ids of the client sessions in the case's database.
    pub fn sessions(&self) -> Vec<String> {
        let sql = format!(
            "SELECT id FROM information_schema.processlist WHERE db = '{}' AND id <> CONNECTION_ID()",
            self.database
        );
        self.sql(&sql)
            .into_iter()
            .map(|row| row[0].clone())
            .collect()
    }

    /// Returns a session that has run these statements, and keeps their locks until it is dropped.
    pub fn keep(&self, sql: &str) -> support::mariadb::Kept {
        self.server().keep(&self.database, sql)
    }

    pub fn server(&self) -> &MariaDb {
        self.own.get().unwrap_or(&self.shared)
    }
}

#[async_trait(?Send)]
impl super::Target for Target {
    async fn open(&self, namespace: &str) -> Box<dyn Backend> {
        backend(self.options(namespace))
    }

    async fn unreachable(&self) -> Box<dyn Backend> {
        backend(options(ports::free(), "mysql", self.mode, "dlock"))
    }

    async fn lose_data(&self) {
        // Dropped clients end with some delay, and their sessions a little later.
        for _ in 0..200 {
            if self.mode == SqlMode::Lease || self.sessions().is_empty() {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        self.sql("DELETE FROM dlock; DELETE FROM dlock_waiters; DELETE FROM dlock_sessions; DELETE FROM dlock_readers");
    }

    async fn isolate(&self) {
        let own = MariaDb::with(Options {
            product: self.product,
            ..Options::default()
        });
        own.sql("mysql", &format!("CREATE DATABASE {}", self.database));
        self.own.set(own).expect("once");
        self.create_tables();
    }

    fn server(&self) -> Option<&dyn super::Server> {
        Some(self)
    }

    fn mariadb(&self) -> Option<&Target> {
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
        "GREATEST(fence + 1"
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
            "mysql",
            &format!("DROP DATABASE IF EXISTS {}", self.database),
        );
    }
}
