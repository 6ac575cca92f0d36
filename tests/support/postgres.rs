//! A real PostgreSQL server: one for all cases that only need a database, and separate servers for
//! faults.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{
        OnceLock,
        atomic::{AtomicU32, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use rustix::process::Signal;
use tempfile::TempDir;
use tokio_postgres::{NoTls, SimpleQueryMessage};

use super::{ports, process, procfs, tls::Certificates};

/// The number of the session that has a lock, in the lock's row.
pub const HOLDER: &str = "substring(document from '\"i\":\"[^\"]*#([0-9]+)\"')";

/// The options of a server.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Also offers TLS, with a certificate for these names.
    pub tls_names: Vec<&'static str>,
    /// Syncs its commits to the disk.
    pub durable: bool,
    /// The method that asks every user except the tests' superuser for a password. `scram-sha-256`
    /// takes the unoptimized client a while.
    pub passwords: Option<&'static str>,
    /// Further settings, such as `max_connections=20`.
    pub settings: Vec<String>,
    /// Environment variables of the server's process.
    pub environment: Vec<(&'static str, String)>,
}

/// A running server; it ends with this value, by process id.
#[derive(Debug)]
pub struct Postgres {
    pub port: u16,
    pub certificates: Option<Certificates>,
    options: Options,
    folder: TempDir,
    child: Option<std::process::Child>,
}

/// An open session; it ends with this value.
#[derive(Debug)]
pub struct Kept {
    end: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Drop for Kept {
    fn drop(&mut self) {
        drop(self.end.take());
        let _ = self.thread.take().map(thread::JoinHandle::join);
    }
}

/// The superuser, which needs no password on this host.
pub const USER: &str = "postgres";

/// Returns the path of a PostgreSQL server program, which Debian keeps out of PATH.
pub fn program(name: &str) -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql")
        .ok()
        .into_iter()
        .flatten()
        .flatten();
    let mut versions: Vec<_> = versions.map(|entry| entry.path()).collect();
    versions.sort_by_key(|path| {
        path.file_name()
            .and_then(|name| name.to_str()?.parse::<u32>().ok())
    });
    let installed = versions
        .into_iter()
        .rev()
        .map(|path| path.join("bin").join(name))
        .find(|path| path.is_file());
    installed.or_else(|| super::find_program(name))
}

/// Returns which programs are missing to run a server; `None` if none is.
pub fn missing() -> Option<String> {
    if program("postgres").is_none() || program("initdb").is_none() {
        return Some("postgres and initdb are not installed".into());
    }
    (is_root() && !knows_user())
        .then(|| "the user postgres, without whom root can't run it, doesn't exist".into())
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn knows_user() -> bool {
    fs::read_to_string("/etc/passwd")
        .is_ok_and(|users| users.lines().any(|line| line.starts_with("postgres:")))
}

/// Returns a command that runs as a user that may run a server, and is killed when this process
/// ends.
fn command(name: &str) -> Command {
    as_user(&program(name).unwrap_or_else(|| panic!("{name} is not installed")))
}

/// Returns a command like [`command`], for any program.
pub fn as_user(program: &Path) -> Command {
    let mut command = Command::new(super::find_program("setpriv").expect("setpriv, of util-linux"));
    if is_root() {
        command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups"]);
    }
    command.args(["--pdeathsig", "KILL", "--"]).arg(program);
    command
}

/// Makes that user the folder's owner.
pub fn give(path: &Path) {
    if is_root() {
        let status = Command::new("chown")
            .args(["-R", "postgres:"])
            .arg(path)
            .status()
            .expect("chown");
        assert!(status.success());
    }
}

fn run(command: Command, what: &str) {
    let ended = process::Process::collect(command).wait(Duration::from_secs(60));
    assert!(
        ended.code() == 0,
        "{what}: {}{}",
        ended.stdout,
        ended.stderr
    );
}

/// Copies a fresh data directory to `folder`. Creating one takes a second, so the original is kept
/// in cargo's target folder.
fn lay_out(folder: &Path) {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    let kept = MADE.get_or_init(|| {
        let version = program("initdb")
            .expect("initdb")
            .display()
            .to_string()
            .replace('/', "-");
        let kept = super::kept().join(format!("postgres{version}"));
        if !kept.exists() {
            let folder = super::folder();
            give(folder.path());
            let mut initdb = command("initdb");
            initdb.arg("--pgdata").arg(folder.path().join("data"));
            initdb.args([
                "--auth=trust",
                "--username",
                USER,
                "--no-sync",
                "--encoding=UTF8",
                "--locale=C",
            ]);
            run(initdb, "initdb");
            let aside = kept.with_extension(std::process::id().to_string());
            copy(&folder.path().join("data"), &aside);
            // Another test process may have created it meanwhile.
            if fs::rename(&aside, &kept).is_err() {
                let _ = fs::remove_dir_all(&aside);
            }
        }
        kept
    });
    copy(kept, &folder.join("data"));
}

fn copy(from: &Path, to: &Path) {
    let mut copy = Command::new("cp");
    copy.arg("-a").arg(from).arg(to);
    run(copy, "cp");
}

impl Postgres {
    pub fn plain() -> Self {
        Self::with(Options::default())
    }

    pub fn with(options: Options) -> Self {
        let folder = super::folder();
        lay_out(folder.path());
        let certificates = (!options.tls_names.is_empty())
            .then(|| Certificates::make(folder.path(), &options.tls_names));
        if let Some(files) = &certificates {
            use std::os::unix::fs::PermissionsExt as _;
            fs::set_permissions(&files.key, fs::Permissions::from_mode(0o600))
                .expect("the key's mode");
        }
        if let Some(method) = options.passwords {
            let rules = format!(
                "local all all trust\nhost all {USER} 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 {method}\n"
            );
            fs::write(folder.path().join("data/pg_hba.conf"), rules).expect("pg_hba.conf");
        }
        give(folder.path());
        let mut server = Self {
            port: ports::free(),
            certificates,
            options,
            folder,
            child: None,
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
        panic!("postgres does not start");
    }

    /// Creates a database, and returns its name.
    pub fn database(&self) -> String {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let name = format!("test{}", NEXT.fetch_add(1, Ordering::Relaxed));
        self.sql(USER, &format!("CREATE DATABASE {name}"));
        name
    }

    /// Returns the URL without credentials.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://{USER}@127.0.0.1:{}/{database}", self.port)
    }

    /// Returns the folder of the Unix socket.
    pub fn socket_folder(&self) -> &Path {
        self.folder.path()
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
        // `env` sets the variables as the server's user: a preloaded library must not open its
        // files as root.
        let mut command = as_user(&super::find_program("env").expect("env, of coreutils"));
        command.args(
            self.options
                .environment
                .iter()
                .map(|(name, value)| format!("{name}={value}")),
        );
        command.arg(program("postgres").expect("postgres"));
        let folder = self.folder.path().display();
        let mut settings = vec![
            format!("port={}", self.port),
            "listen_addresses=127.0.0.1".into(),
            format!("unix_socket_directories={folder}"),
            "shared_buffers=16MB".into(),
            "autovacuum=off".into(),
            "jit=off".into(),
            // Shared memory is in the server's folder, and is removed with it.
            "dynamic_shared_memory_type=mmap".into(),
            format!("fsync={}", if self.options.durable { "on" } else { "off" }),
        ];
        if let Some(files) = &self.certificates {
            settings.push("ssl=on".into());
            settings.push(format!("ssl_cert_file={}", files.certificate.display()));
            settings.push(format!("ssl_key_file={}", files.key.display()));
        }
        settings.extend(self.options.settings.iter().cloned());
        command.arg("-D").arg(self.folder.path().join("data"));
        for setting in &settings {
            command.args(["-c", setting]);
        }
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(file);
        self.child = Some(process::start(command).expect("postgres"));
        let began = Instant::now();
        while !self.answers() {
            let log = || fs::read_to_string(&log).unwrap_or_default();
            if !procfs::alive(self.pid()) {
                return Err(format!("postgres ended:\n{}", log()));
            }
            if began.elapsed() > Duration::from_secs(20) {
                return Err(format!("postgres does not answer:\n{}", log()));
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Returns whether this server answers on its port, and not another test's.
    fn answers(&self) -> bool {
        let asked = self.try_sql(USER, "SHOW data_directory");
        asked.is_ok_and(|rows| rows[0][0].as_deref() == self.folder.path().join("data").to_str())
    }

    /// Returns the log so far.
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("server.log")).unwrap_or_default()
    }

    /// Returns the server's answer to statements in a database, all values as text.
    #[track_caller]
    pub fn sql(&self, database: &str, sql: &str) -> Vec<Vec<Option<String>>> {
        self.try_sql(database, sql)
            .unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    /// Returns the first value of the answer.
    #[track_caller]
    pub fn text(&self, database: &str, sql: &str) -> String {
        self.sql(database, sql)[0][0].clone().expect("a value")
    }

    pub fn try_sql(&self, database: &str, sql: &str) -> Result<Vec<Vec<Option<String>>>, String> {
        let settings = format!(
            "host=127.0.0.1 port={} user={USER} dbname={database} application_name=test",
            self.port
        );
        // A separate runtime, since this function is called from within others.
        let work = || -> Result<_, tokio_postgres::Error> {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime");
            runtime.block_on(async {
                let (client, connection) = tokio_postgres::connect(&settings, NoTls).await?;
                tokio::spawn(connection);
                let mut rows = Vec::new();
                for message in client.simple_query(sql).await? {
                    if let SimpleQueryMessage::Row(row) = message {
                        rows.push(
                            (0..row.len())
                                .map(|at| row.get(at).map(str::to_owned))
                                .collect(),
                        );
                    }
                }
                Ok(rows)
            })
        };
        thread::scope(|scope| scope.spawn(work).join().expect("no panic")).map_err(|error| {
            error
                .as_db_error()
                .map_or_else(|| error.to_string(), ToString::to_string)
        })
    }

    /// Returns a session that has run these statements, and lasts until it is dropped.
    pub fn keep(&self, database: &str, sql: &str) -> Kept {
        let settings = format!(
            "host=127.0.0.1 port={} user={USER} dbname={database} application_name=test",
            self.port
        );
        let sql = sql.to_owned();
        let (ready, done) = std::sync::mpsc::channel();
        let (end, ended) = tokio::sync::oneshot::channel::<()>();
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime");
            runtime.block_on(async {
                let (client, connection) = tokio_postgres::connect(&settings, NoTls)
                    .await
                    .expect("a connection");
                tokio::spawn(connection);
                client.batch_execute(&sql).await.expect("statements");
                ready.send(()).expect("the caller waits");
                let _ = ended.await;
            });
        });
        done.recv().expect("the session");
        Kept {
            end: Some(end),
            thread: Some(thread),
        }
    }

    /// Returns the server's processes.
    fn processes(&self) -> Vec<u32> {
        let mut all = vec![self.pid()];
        all.extend(procfs::descendants(self.pid()).iter().map(|stat| stat.pid));
        all
    }

    /// Freezes the server: it stops answering, with all connections open.
    pub fn freeze(&self) {
        for pid in self.processes() {
            process::signal(pid, Signal::STOP);
        }
    }

    pub fn thaw(&self) {
        for pid in self.processes() {
            process::signal(pid, Signal::CONT);
        }
    }

    /// Kills the server, as a crash does.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let rest = procfs::descendants(child.id());
            for pid in rest.iter().map(|stat| stat.pid).chain([child.id()]) {
                process::signal(pid, Signal::KILL);
            }
            let _ = child.wait();
            super::must(
                "the server's processes are gone",
                Duration::from_secs(10),
                || rest.iter().all(|stat| !procfs::alive(stat.pid)),
            );
        }
    }

    /// Restarts the server as a standby of a primary that never connects.
    pub fn standby(&mut self) {
        if let Some(mut child) = self.child.take() {
            // A clean shutdown, so that the data on disk is complete.
            process::signal(child.id(), Signal::INT);
            super::must("the server ends", Duration::from_secs(20), || {
                matches!(child.try_wait(), Ok(Some(_)))
            });
        }
        fs::write(self.folder.path().join("data/standby.signal"), "").expect("a file");
        give(self.folder.path());
        self.start();
    }

    /// Restarts the server without its data, like a machine that lost its disk.
    pub fn restart_empty(&mut self) {
        self.kill();
        fs::remove_dir_all(self.folder.path().join("data")).expect("the data");
        lay_out(self.folder.path());
        give(self.folder.path());
        self.start();
    }

    /// Kills the server, and starts it again with its data on disk.
    pub fn restart(&mut self) {
        self.kill();
        self.start();
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            // An immediate shutdown, which leaves no shared memory behind.
            process::signal(child.id(), Signal::CONT);
            process::signal(child.id(), Signal::QUIT);
            super::eventually(Duration::from_secs(5), || {
                matches!(child.try_wait(), Ok(Some(_)))
            });
        }
        self.kill();
    }
}
