//! A real, separate Redis server.

use std::{
    fmt::Write as _,
    fs,
    net::Ipv4Addr,
    path::PathBuf,
    process::Stdio,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use redis::{Connection, ConnectionAddr, ConnectionInfo, IntoConnectionInfo as _, Value};
use rustix::process::Signal;
use tempfile::TempDir;

use super::{ports, process, procfs, tls::Certificates};

/// The options of a server.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The default user's password.
    pub password: Option<&'static str>,
    /// Additional ACL users: name and rules, such as `("app", "on >secret ~dlock:* &* +@all")`.
    pub users: Vec<(&'static str, &'static str)>,
    /// Also listens on a Unix socket.
    pub unix_socket: bool,
    /// Also listens on a TLS port, with a certificate for these names.
    pub tls_names: Vec<&'static str>,
    /// Also listens on a TLS port, with this certificate.
    pub certificates: Option<Certificates>,
    /// Keeps its data over a restart, and writes each change before the answer.
    pub durable: bool,
    /// Further lines for the configuration file, such as `maxmemory 2mb`.
    pub config: Vec<String>,
    /// Runs as a sentinel instead of a data server.
    pub sentinel: bool,
}

/// A running server; it ends with this value, by process id.
#[derive(Debug)]
pub struct Redis {
    pub port: u16,
    pub tls_port: u16,
    pub certificates: Option<Certificates>,
    options: Options,
    folder: TempDir,
    child: Mutex<Option<std::process::Child>>,
    frozen: AtomicBool,
}

/// Returns the configuration lines for a server that is also reached at this address.
pub fn reached_at(host: Ipv4Addr) -> Vec<String> {
    match host {
        Ipv4Addr::LOCALHOST => Vec::new(),
        _ => vec![format!("bind 127.0.0.1 {host}"), "protected-mode no".into()],
    }
}

impl Redis {
    /// The program that has to be installed.
    pub const PROGRAM: &'static str = "redis-server";

    /// Returns why no server can run here; `None` if one can.
    pub fn missing() -> Option<String> {
        super::missing(&[Self::PROGRAM])
    }

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
        let made = (!options.tls_names.is_empty())
            .then(|| Certificates::make(folder.path(), &options.tls_names));
        let certificates = options.certificates.clone().or(made);
        let tls_port = if certificates.is_some() {
            ports::free()
        } else {
            0
        };
        let mut server = Self {
            port: ports::free(),
            tls_port,
            certificates,
            options,
            folder,
            child: Mutex::new(None),
            frozen: AtomicBool::new(false),
        };
        // Another process may take the port before the server does.
        for _ in 0..5 {
            match server.try_start() {
                Ok(()) => return server,
                Err(why) => {
                    super::say(&why);
                    server.kill();
                    server.port = ports::free();
                    let _ = fs::remove_file(server.folder.path().join("redis.conf"));
                }
            }
        }
        panic!("redis-server does not start");
    }

    /// Returns the URL without credentials.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/0", self.port)
    }

    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("redis.sock")
    }

    fn child(&self) -> MutexGuard<'_, Option<std::process::Child>> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn pid(&self) -> u32 {
        self.child().as_ref().expect("the server runs").id()
    }

    /// Returns whether the server is neither killed nor frozen.
    pub fn is_running(&self) -> bool {
        self.child().is_some() && !self.frozen.load(Ordering::SeqCst)
    }

    fn configuration(&self) -> String {
        let mut text = format!(
            "bind 127.0.0.1\nport {}\ndir {}\nsave \"\"\ndaemonize no\nlogfile {}\nrepl-diskless-sync-delay 0\n",
            self.port,
            self.folder.path().display(),
            self.folder.path().join("redis.log").display(),
        );
        let durable = if self.options.durable {
            "appendonly yes\nappendfsync always\n"
        } else {
            "appendonly no\n"
        };
        text.push_str(durable);
        if self.options.unix_socket {
            let _ = writeln!(text, "unixsocket {}", self.socket().display());
        }
        if let Some(files) = &self.certificates {
            let _ = writeln!(
                text,
                "tls-port {}\ntls-cert-file {}\ntls-key-file {}\ntls-ca-cert-file {}\ntls-auth-clients no",
                self.tls_port,
                files.certificate.display(),
                files.key.display(),
                files.ca.display()
            );
        }
        if let Some(password) = self.options.password {
            let _ = writeln!(text, "requirepass {password}");
        }
        for (name, rules) in &self.options.users {
            let _ = writeln!(text, "user {name} {rules}");
        }
        for line in &self.options.config {
            let _ = writeln!(text, "{line}");
        }
        text
    }

    /// Starts the server again, on the same port and with its data.
    #[track_caller]
    pub fn start(&self) {
        self.try_start().unwrap_or_else(|why| panic!("{why}"));
    }

    fn try_start(&self) -> Result<(), String> {
        assert!(self.child().is_none(), "the server runs already");
        let file = self.folder.path().join("redis.conf");
        // A sentinel writes its state into the file.
        if !(self.options.sentinel && file.exists()) {
            fs::write(&file, self.configuration()).expect("redis.conf");
        }
        let mut command = process::command(Self::PROGRAM);
        command
            .arg(&file)
            .args(self.options.sentinel.then_some("--sentinel"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        *self.child() = Some(process::start(command).expect("redis-server"));
        let began = Instant::now();
        while !self.answers() {
            let log =
                || fs::read_to_string(self.folder.path().join("redis.log")).unwrap_or_default();
            if !procfs::alive(self.pid()) {
                return Err(format!("redis-server ended:\n{}", log()));
            }
            if began.elapsed() > Duration::from_secs(10) {
                return Err(format!("redis-server does not answer:\n{}", log()));
            }
            thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// Returns whether this server, and not another test's, answers on its port, and has loaded its
    /// data.
    fn answers(&self) -> bool {
        // Redis 6.2 takes one section at most.
        let info = |mut to| redis::cmd("INFO").query::<String>(&mut to);
        let pid = format!("process_id:{}\r", self.pid());
        self.try_connect(Duration::from_millis(500))
            .and_then(info)
            .is_ok_and(|text| text.contains(&pid) && !text.contains("loading:1"))
    }

    fn try_connect(&self, limit: Duration) -> redis::RedisResult<Connection> {
        let mut settings = redis::RedisConnectionInfo::default().set_skip_set_lib_name();
        if let Some(password) = self.options.password {
            settings = settings.set_password(password);
        }
        let info: ConnectionInfo = ConnectionAddr::Tcp("127.0.0.1".into(), self.port)
            .into_connection_info()?
            .set_redis_settings(settings);
        let connection = redis::Client::open(info)?.get_connection_with_timeout(limit)?;
        connection.set_read_timeout(Some(Duration::from_secs(5)))?;
        Ok(connection)
    }

    /// Returns a connection of the test that bypasses any proxy.
    pub fn connect(&self) -> Connection {
        self.try_connect(Duration::from_secs(2))
            .expect("a connection to the server")
    }

    /// Returns the server's answer to a command, given as words.
    #[track_caller]
    pub fn command(&self, words: &[&str]) -> Value {
        answer(words, || self.connect())
    }

    #[track_caller]
    pub fn int(&self, words: &[&str]) -> i64 {
        redis::from_redis_value(self.command(words)).expect("an integer")
    }

    #[track_caller]
    pub fn text(&self, words: &[&str]) -> String {
        redis::from_redis_value(self.command(words)).expect("text")
    }

    /// Returns all keys with their remaining life in ms; −1 without an expiry.
    pub fn keys(&self) -> Vec<(String, i64)> {
        let names: Vec<String> =
            redis::from_redis_value(self.command(&["KEYS", "*"])).expect("KEYS");
        let left = |name: String| {
            let ms = self.int(&["PTTL", &name]);
            (name, ms)
        };
        // −2: the key expired between the two commands.
        let mut keys: Vec<_> = names
            .into_iter()
            .map(left)
            .filter(|(_, ms)| *ms != -2)
            .collect();
        keys.sort();
        keys
    }

    /// Returns how often each command was called since `CONFIG RESETSTAT`, calls from scripts
    /// included.
    pub fn calls(&self) -> Vec<(String, u64)> {
        let parse = |line: &str| {
            let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
            Some((name.to_owned(), rest.split(',').next()?.parse().ok()?))
        };
        self.text(&["INFO", "commandstats"])
            .lines()
            .filter_map(parse)
            .collect()
    }

    /// Freezes the server: it stops answering, with all connections open.
    pub fn freeze(&self) {
        self.frozen.store(true, Ordering::SeqCst);
        process::signal(self.pid(), Signal::STOP);
    }

    pub fn thaw(&self) {
        self.frozen.store(false, Ordering::SeqCst);
        process::signal(self.pid(), Signal::CONT);
    }

    /// Kills the server, as a crash does.
    pub fn kill(&self) {
        self.frozen.store(false, Ordering::SeqCst);
        if let Some(mut child) = self.child().take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Kills the server, and starts it again with its data on disk.
    pub fn restart(&self) {
        self.kill();
        self.start();
    }

    /// Restarts the server without its data, like a machine that lost its disk.
    pub fn restart_empty(&self) {
        self.kill();
        for name in ["appendonlydir", "dump.rdb"] {
            let path = self.folder.path().join(name);
            let _ = if path.is_dir() {
                fs::remove_dir_all(path)
            } else {
                fs::remove_file(path)
            };
        }
        self.start();
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Returns the answer to a command, given as words, over a new connection.
#[track_caller]
pub fn answer(words: &[&str], connect: impl Fn() -> Connection) -> Value {
    let mut command = redis::cmd(words[0]);
    command.arg(&words[1..]);
    loop {
        match command.query(&mut connect()) {
            // A signal ends a read that has a time limit, and the client doesn't go on with it.
            Err(error) if is_interrupted(&error) => {}
            answer => return answer.unwrap_or_else(|error| panic!("{words:?}: {error}")),
        }
    }
}

fn is_interrupted(error: &redis::RedisError) -> bool {
    // The client wraps the error of the system so that only its text can be compared.
    error.to_string() == std::io::Error::from(rustix::io::Errno::INTR).to_string()
}
