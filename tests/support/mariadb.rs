//! A real MariaDB or MySQL server: one for all cases that only need a database, and separate
//! servers for faults.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
    process::Stdio,
    sync::{
        OnceLock,
        atomic::{AtomicU32, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use rustix::process::Signal;
use tempfile::TempDir;

use super::{ports, process, procfs, tls::Certificates};

/// The server's program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Product {
    #[default]
    MariaDb,
    /// MySQL itself, which `tests/support/unpack-mysql` puts next to cargo's files.
    MySql,
}

impl Product {
    /// Returns what is missing to run a server; `None` if nothing is.
    pub fn missing(self) -> Option<String> {
        let programs: &[&str] = match self {
            Self::MariaDb => &["mariadbd", "mariadb-install-db", "mariadb"],
            Self::MySql => &["mariadb"],
        };
        super::missing(programs).or_else(|| {
            (self == Self::MySql && !mysql().join("mysqld").exists()).then(|| {
                "tests/run could not fetch MySQL's server from Debian's unstable release".to_owned()
            })
        })
    }

    /// Returns the scheme of dlock's URLs.
    pub(crate) fn scheme(self) -> &'static str {
        if self == Self::MariaDb {
            "mariadb"
        } else {
            "mysql"
        }
    }

    fn program(self) -> String {
        if self == Self::MariaDb {
            "mariadbd".into()
        } else {
            mysql().join("mysqld").display().to_string()
        }
    }
}

/// Returns the folder of [`Product::MySql`].
fn mysql() -> PathBuf {
    super::unpacked("mysql")
}

/// The number of the session that has a lock, in the lock's row.
pub const HOLDER: &str =
    r#"SUBSTRING_INDEX(SUBSTRING_INDEX(SUBSTRING_INDEX(document, '"i":"', -1), '"', 1), '#', -1)"#;

/// The options of a server.
#[derive(Clone, Debug, Default)]
pub struct Options {
    pub product: Product,
    /// Also offers TLS, with a certificate for these names.
    pub tls_names: Vec<&'static str>,
    /// Syncs its commits to the disk.
    pub durable: bool,
    /// Further settings, such as `--max-connections=20`.
    pub settings: Vec<String>,
    /// Environment variables of the server's process.
    pub environment: Vec<(&'static str, String)>,
    /// Makes the server the only node of a Galera cluster, with `galera-4`.
    pub cluster: bool,
}

/// A running server; it ends with this value, by process id.
#[derive(Debug)]
pub struct MariaDb {
    pub port: u16,
    pub certificates: Option<Certificates>,
    options: Options,
    folder: TempDir,
    child: Option<std::process::Child>,
    started: Instant,
}

/// The library that makes a server a cluster node.
pub const GALERA: &str = "/usr/lib/galera/libgalera_smm.so";

/// The superuser, which needs no password on this host.
pub const USER: &str = "root";

/// Returns which programs are missing to run MariaDB; `None` if none is.
pub fn missing() -> Option<String> {
    Product::MariaDb.missing()
}

/// Returns the option that lets root run the server as root, since root owns the folders.
fn runs_as() -> &'static [&'static str] {
    if rustix::process::geteuid().is_root() {
        &["--user=root"]
    } else {
        &[]
    }
}

fn run(command: std::process::Command, what: &str) -> String {
    let ended = process::Process::collect(command).wait(Duration::from_secs(60));
    assert!(
        ended.code() == 0,
        "{what}: {}{}",
        ended.stdout,
        ended.stderr
    );
    ended.stdout
}

/// Returns a fresh data directory, which is created once and copied for each server of this
/// process.
fn template(product: Product) -> PathBuf {
    static TEMPLATE: OnceLock<TempDir> = OnceLock::new();
    if product == Product::MySql {
        return mysql();
    }
    let folder = TEMPLATE.get_or_init(|| {
        let folder = super::folder();
        let mut install = process::command("mariadb-install-db");
        install.arg("--no-defaults").args(runs_as()).arg(format!(
            "--datadir={}",
            folder.path().join("data").display()
        ));
        install.env("TMPDIR", folder.path());
        install.args([
            "--skip-test-db",
            "--auth-root-authentication-method=normal",
            "--innodb-log-file-size=4M",
        ]);
        run(install, "mariadb-install-db");
        folder
    });
    folder.path().to_owned()
}

/// Returns the answer of the server at a socket to statements in a database.
pub fn sql_at(socket: &Path, database: &str, sql: &str) -> Result<Vec<Vec<String>>, String> {
    let mut command = process::command("mariadb");
    command.args([
        "--no-defaults",
        "--batch",
        "--skip-column-names",
        "--default-character-set=utf8mb4",
        "--user",
        USER,
    ]);
    command
        .arg("--socket")
        .arg(socket)
        .arg("--database")
        .arg(database)
        .arg("--execute")
        .arg(sql);
    command.stdin(Stdio::null());
    let ended = process::Process::collect(command).wait(Duration::from_secs(30));
    if ended.code() != 0 {
        return Err(ended.stderr);
    }
    Ok(ended
        .stdout
        .lines()
        .map(|line| line.split('\t').map(str::to_owned).collect())
        .collect())
}

impl MariaDb {
    pub fn plain() -> Self {
        Self::with(Options::default())
    }

    pub fn durable() -> Self {
        Self::with(Options {
            durable: true,
            ..Options::default()
        })
    }

    pub fn with(options: Options) -> Self {
        let folder = super::folder();
        let mut copy = process::command("cp");
        copy.args(["-a", "--sparse=always"])
            .arg(template(options.product).join("data"))
            .arg(folder.path());
        run(copy, "cp");
        let certificates = (!options.tls_names.is_empty())
            .then(|| Certificates::make(folder.path(), &options.tls_names));
        let mut server = Self {
            port: ports::free(),
            certificates,
            options,
            folder,
            child: None,
            started: Instant::now(),
        };
        // Another process may take the port before the server does.
        for _ in 0..5 {
            match server.try_start() {
                Ok(()) => return server,
                Err(why) => {
                    super::say(&why);
                    server.kill();
                    server.port = ports::free();
                }
            }
        }
        panic!("{} does not start", server.options.product.program());
    }

    /// Creates a database, and returns its name.
    pub fn database(&self) -> String {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let name = format!("test{}", NEXT.fetch_add(1, Ordering::Relaxed));
        self.sql("mysql", &format!("CREATE DATABASE {name}"));
        name
    }

    /// Returns the URL without credentials.
    pub fn url(&self, database: &str) -> String {
        format!(
            "{}://{USER}@127.0.0.1:{}/{database}",
            self.options.product.scheme(),
            self.port
        )
    }

    pub fn product(&self) -> Product {
        self.options.product
    }

    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("s.sock")
    }

    /// Returns the data directory.
    pub fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("the server runs").id()
    }

    /// Starts the server again, on the same port and with its data.
    #[track_caller]
    pub fn start(&mut self) {
        self.try_start().unwrap_or_else(|why| panic!("{why}"));
    }

    fn try_start(&mut self) -> Result<(), String> {
        assert!(self.child.is_none(), "the server runs already");
        let log = self.folder.path().join("server.log");
        let file = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(&log)
            .expect("a log");
        let product = self.options.product;
        let mut command = process::command(product.program());
        let _ = fs::remove_file(self.socket());
        match product {
            Product::MariaDb => command.args([
                "--no-defaults",
                "--innodb-log-file-size=4M",
                "--aria-pagecache-buffer-size=1M",
            ]),
            Product::MySql => command.args([
                "--innodb-redo-log-capacity=16M",
                "--mysqlx=OFF",
                "--upgrade=NONE",
            ]),
        };
        command
            .args(runs_as())
            .arg(format!(
                "--datadir={}",
                self.folder.path().join("data").display()
            ))
            // A starting server removes all temporary tables in its folder, another server's too.
            .arg(format!("--tmpdir={}", self.folder.path().display()))
            .arg(format!("--port={}", self.port))
            .arg(format!("--socket={}", self.socket().display()))
            .arg(format!(
                "--innodb-flush-log-at-trx-commit={}",
                if self.options.durable { 1 } else { 2 }
            ))
            .args([
                "--bind-address=127.0.0.1",
                "--skip-name-resolve",
                "--skip-log-bin",
                "--performance-schema=OFF",
            ])
            .args(["--innodb-buffer-pool-size=16M", "--innodb-use-native-aio=0"])
            .args(["--key-buffer-size=1M", "--table-open-cache=400"]);
        if let Some(files) = &self.certificates {
            command
                .arg(format!("--ssl-cert={}", files.certificate.display()))
                .arg(format!("--ssl-key={}", files.key.display()));
            command.arg(format!("--ssl-ca={}", files.ca.display()));
        }
        if self.options.cluster {
            // No client connects to these ports; the first one is for other nodes.
            let [group, transfer] = [ports::free(), ports::free()];
            command.args([
                "--wsrep-on=ON",
                "--wsrep-cluster-address=gcomm://",
                "--wsrep-node-address=127.0.0.1",
            ]);
            command.args([
                "--binlog-format=ROW",
                "--innodb-autoinc-lock-mode=2",
                "--wsrep-new-cluster",
            ]);
            command.arg(format!("--wsrep-provider={GALERA}")).arg(format!(
                "--wsrep-provider-options=base_host=127.0.0.1; gmcast.listen_addr=tcp://127.0.0.1:{group}; \
                 ist.recv_addr=127.0.0.1:{transfer}; gcache.size=1M"
            ));
        }
        command.args(&self.options.settings);
        for (name, value) in &self.options.environment {
            command.env(name, value);
        }
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(file);
        self.started = Instant::now();
        self.child = Some(process::start(command).expect("a server"));
        let began = Instant::now();
        // The socket belongs to this server alone, so another server on the port can't be mistaken
        // for it.
        while self.try_sql("mysql", "SELECT 1").is_err() {
            let log = || fs::read_to_string(&log).unwrap_or_default();
            if !procfs::alive(self.pid()) {
                return Err(format!("the server ended:\n{}", log()));
            }
            if began.elapsed() > Duration::from_secs(30) {
                return Err(format!("the server does not answer:\n{}", log()));
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Returns the log so far.
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("server.log")).unwrap_or_default()
    }

    /// Returns the server's answer to statements in a database, all values as text, NULL as `NULL`.
    #[track_caller]
    pub fn sql(&self, database: &str, sql: &str) -> Vec<Vec<String>> {
        self.try_sql(database, sql)
            .unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    /// Returns the first value of the answer.
    #[track_caller]
    pub fn text(&self, database: &str, sql: &str) -> String {
        self.sql(database, sql)[0][0].clone()
    }

    pub fn try_sql(&self, database: &str, sql: &str) -> Result<Vec<Vec<String>>, String> {
        sql_at(&self.socket(), database, sql)
    }

    /// Starts a session that runs these statements, and keeps their locks until it is dropped.
    pub fn keep(&self, database: &str, sql: &str) -> Kept {
        let mut command = process::command("mariadb");
        command
            .args([
                "--no-defaults",
                "--batch",
                "--unbuffered",
                "--user",
                USER,
                "--socket",
            ])
            .arg(self.socket())
            .args(["--database", database]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = process::start(command).expect("mariadb");
        let mut input = child.stdin.take().expect("its input");
        writeln!(input, "{sql};\nSELECT 'kept';").expect("statements");
        let mut lines = BufReader::new(child.stdout.take().expect("its output")).lines();
        assert!(
            lines.any(|line| line.is_ok_and(|line| line == "kept")),
            "{sql}"
        );
        Kept {
            child,
            _input: input,
        }
    }

    /// Freezes the server: it stops answering, with all connections open.
    pub fn freeze(&self) {
        process::signal(self.pid(), Signal::STOP);
    }

    pub fn thaw(&self) {
        process::signal(self.pid(), Signal::CONT);
    }

    /// Kills the server, as a crash does.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Kills the server, and starts it again with its data on disk.
    pub fn restart(&mut self) {
        self.kill();
        // dlock identifies a server's start by whole seconds.
        let since = self.started.elapsed();
        thread::sleep(Duration::from_millis(1100).saturating_sub(since));
        self.start();
    }
}

impl Drop for MariaDb {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A session that ends with this value.
pub struct Kept {
    child: std::process::Child,
    /// The client's open standard input, which keeps the client running.
    _input: std::process::ChildStdin,
}

impl Drop for Kept {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
