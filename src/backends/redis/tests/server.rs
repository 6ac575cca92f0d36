//! A Redis server for one test, stopped by its process id.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    process::{Child, Command, Stdio},
    time::Duration,
};

use tempfile::TempDir;

use super::ports;
use crate::{
    backends::redis::{Redis, RedisOptions, RedisServer},
    lock::{Attempt, Backend as _, Busy, Entry, Grant, Key, Namespace, Request, Ttl},
};

pub struct TestServer {
    process: Child,
    pub port: u16,
    pub folder: TempDir,
    arguments: Vec<String>,
}

impl TestServer {
    pub fn start() -> Self {
        Self::with(&[])
    }

    /// Starts a server with more arguments for `redis-server`, which may include `--port 0`.
    pub fn with(arguments: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let port = ports::free();
        let arguments: Vec<String> = arguments.iter().map(ToString::to_string).collect();
        let process = spawn(port, &folder, &arguments);
        Self {
            process,
            port,
            folder,
            arguments,
        }
    }

    /// Restarts the server without its data.
    pub fn restart(&mut self) {
        self.stop();
        self.process = spawn(self.port, &self.folder, &self.arguments);
    }

    pub fn stop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    /// Stops the server process: requests stay unread until it is thawed.
    pub fn freeze(&self) {
        self.signal(rustix::process::Signal::STOP);
    }

    pub fn thaw(&self) {
        self.signal(rustix::process::Signal::CONT);
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.process);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Returns the names of all keys that have not expired.
    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self
            .raw(&["KEYS", "*"])
            .lines()
            .filter(|line| !line.starts_with(['*', '$']))
            .map(Into::into)
            .collect();
        names.sort();
        names
    }

    pub fn options(&self) -> RedisOptions {
        RedisOptions::new(RedisServer::Tcp {
            host: "127.0.0.1".into(),
            port: self.port,
        })
    }

    pub fn backend(&self) -> Redis {
        Redis::new(self.options())
    }

    pub fn in_namespace(&self, namespace: &str) -> Redis {
        Redis::new(RedisOptions {
            namespace: Namespace::new(namespace).unwrap(),
            ..self.options()
        })
    }

    /// Returns the raw reply to one command.
    pub fn raw(&self, words: &[&str]) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(5)))
            .unwrap();
        let mut call = redis::cmd(words[0]);
        call.arg(&words[1..]);
        stream.write_all(&call.get_packed_command()).unwrap();
        stream.write_all(b"*1\r\n$4\r\nQUIT\r\n").unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        reply
            .strip_suffix("+OK\r\n")
            .unwrap_or(&reply)
            .trim_end()
            .to_owned()
    }

    /// Returns the numeric reply to one command.
    pub fn number(&self, words: &[&str]) -> i64 {
        let reply = self.raw(words);
        reply
            .trim_start_matches(':')
            .parse()
            .unwrap_or_else(|_| panic!("{words:?}: {reply}"))
    }

    /// Returns how many commands the server has run, including those in scripts, without the tests'
    /// own queries.
    pub fn commands(&self) -> Vec<(String, u64)> {
        let stats = self.raw(&["INFO", "commandstats"]);
        let mut counts = Vec::new();
        for line in stats
            .lines()
            .filter_map(|line| line.strip_prefix("cmdstat_"))
        {
            let (name, rest) = line.split_once(":calls=").unwrap();
            let calls = rest.split(',').next().unwrap().parse().unwrap();
            if !["info", "quit", "config|resetstat"].contains(&name) {
                counts.push((name.to_owned(), calls));
            }
        }
        counts
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.stop();
    }
}

fn spawn(port: u16, folder: &TempDir, arguments: &[String]) -> Child {
    let mut command = Command::new("redis-server");
    command.args([
        "--port",
        &port.to_string(),
        "--bind",
        "127.0.0.1",
        "--save",
        "",
        "--appendonly",
        "no",
        "--dir",
    ]);
    command.arg(folder.path()).args(arguments);
    let mut process = command
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("redis-server is installed");
    for _ in 0..500 {
        if let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port))
            && stream.write_all(b"PING\r\n").is_ok()
            && stream.read(&mut [0; 64]).is_ok_and(|read| read > 0)
        {
            return process;
        }
        assert!(process.try_wait().unwrap().is_none(), "redis-server ended");
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("redis-server does not answer");
}

pub fn key(name: &str) -> Key {
    Key::new(name).unwrap()
}

pub fn ttl(ms: u64) -> Ttl {
    Ttl::new(Duration::from_millis(ms)).unwrap()
}

pub fn request(name: &str) -> Request {
    Request::new(key(name), ttl(10_000))
}

pub fn waiting(name: &str) -> Request {
    Request {
        waiting: true,
        ..request(name)
    }
}

/// Returns a request to enter the hold of `outer`.
pub fn nested(outer: &Request) -> Request {
    Request {
        token: outer.token.nested(),
        entry: Entry::Reenter,
        ..outer.clone()
    }
}

pub async fn granted(backend: &mut Redis, request: &Request) -> Grant {
    match backend.try_acquire(request).await.unwrap() {
        Attempt::Granted(grant) => grant,
        other => panic!("not granted: {other:?}"),
    }
}

pub async fn busy(backend: &mut Redis, request: &Request) -> Busy {
    match backend.try_acquire(request).await.unwrap() {
        Attempt::Busy(busy) => busy,
        other => panic!("not busy: {other:?}"),
    }
}

#[allow(clippy::disallowed_methods)] // tests wait
pub async fn pause(ms: u64) {
    tokio::time::sleep(Duration::from_millis(ms)).await;
}
