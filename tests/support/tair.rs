//! A small server that answers as Tair does, for machines without Tair: only the commands that
//! dlock sends, with the replies and the pitfalls that were measured on the real module. If
//! `DLOCK_TEST_TAIRSTRING_MODULE` names that module, Redis runs with it instead.

mod commands;

use std::{
    collections::HashMap,
    io::{Read as _, Write as _},
    net::{Ipv4Addr, TcpListener, TcpStream},
    os::fd::AsFd as _,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    io::retry_on_intr,
};

use self::commands::{Data, Options, Reply, hash, list, plain, scan, sorted, versioned};
use super::{ports, redis};

/// A server, real or a double; it ends with this value.
pub enum Tair {
    Double(Double),
    Real(Box<redis::Redis>),
}

impl Tair {
    pub fn start() -> Self {
        match std::env::var("DLOCK_TEST_TAIRSTRING_MODULE") {
            Ok(module) if !module.is_empty() => {
                let config = vec![format!("loadmodule {module}")];
                Self::Real(Box::new(redis::Redis::with(redis::Options {
                    config,
                    durable: true,
                    ..Default::default()
                })))
            }
            _ => Self::Double(Double::start(Arc::default())),
        }
    }

    /// Starts a server that becomes a replica of this one. The doubles share the data.
    #[must_use]
    pub fn second(&self) -> Self {
        match self {
            Self::Double(double) => Self::Double(Double::start(Arc::clone(&double.shared.data))),
            Self::Real(_) => Self::start(),
        }
    }

    pub fn port(&self) -> u16 {
        match self {
            Self::Double(double) => double.port,
            Self::Real(server) => server.port,
        }
    }

    /// Returns the server's answer to a command, given as words.
    pub fn command(&self, words: &[&str]) -> ::redis::Value {
        let client =
            ::redis::Client::open(format!("redis://127.0.0.1:{}/?protocol=resp2", self.port()))
                .expect("a URL");
        super::redis::answer(words, || {
            client
                .get_connection_with_timeout(Duration::from_secs(2))
                .expect("a connection")
        })
    }

    /// Returns all keys with their remaining life in ms; −1 without an expiry.
    pub fn keys(&self) -> Vec<(String, i64)> {
        let found: (String, Vec<String>) =
            ::redis::from_redis_value(self.command(&["SCAN", "0", "MATCH", "*", "COUNT", "1000"]))
                .expect("keys");
        let left = |name: String| {
            (
                name.clone(),
                ::redis::from_redis_value(self.command(&["PTTL", &name])).expect("a number"),
            )
        };
        let mut keys: Vec<_> = found
            .1
            .into_iter()
            .map(left)
            .filter(|(_, ms)| *ms != -2)
            .collect();
        keys.sort();
        keys
    }

    pub fn freeze(&self) {
        match self {
            Self::Double(double) => double.shared.set(State::Frozen),
            Self::Real(server) => server.freeze(),
        }
    }

    pub fn thaw(&self) {
        match self {
            Self::Double(double) => double.shared.set(State::Running),
            Self::Real(server) => server.thaw(),
        }
    }

    pub fn kill(&mut self) {
        match self {
            Self::Double(double) => double.stop(),
            Self::Real(server) => server.kill(),
        }
    }

    pub fn restart(&mut self) {
        match self {
            Self::Double(double) => {
                double.stop();
                double.listen_again();
            }
            Self::Real(server) => server.restart(),
        }
    }

    pub fn restart_empty(&mut self) {
        match self {
            Self::Double(double) => {
                double.stop();
                double.shared.data().clear();
                double.listen_again();
            }
            Self::Real(server) => server.restart_empty(),
        }
    }
}

/// The double of a Tair server, within this process.
pub struct Double {
    pub port: u16,
    shared: Arc<Shared>,
    running: Option<(TcpListener, JoinHandle<()>)>,
}

#[derive(Default)]
struct Shared {
    data: Arc<Mutex<Data>>,
    /// The users with their passwords; none without a login. The default user needs none.
    users: Mutex<HashMap<String, Login>>,
    is_replica: AtomicBool,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct Login {
    password: String,
    is_off: bool,
}

#[derive(Clone, Copy, Default, PartialEq)]
enum State {
    #[default]
    Running,
    Frozen,
    Stopped,
}

/// A connection, with the bytes of its incomplete command.
struct Connection(TcpStream, Vec<u8>);

impl Double {
    fn start(data: Arc<Mutex<Data>>) -> Self {
        // Another process may take the port first.
        let bound = (0..5).find_map(|_| {
            let port = ports::free();
            Some((port, TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok()?))
        });
        let (port, listener) = bound.expect("a free port");
        let mut double = Self {
            port,
            shared: Arc::new(Shared {
                data,
                ..Shared::default()
            }),
            running: None,
        };
        double.listen(listener);
        double
    }

    fn listen_again(&mut self) {
        let listener =
            TcpListener::bind((Ipv4Addr::LOCALHOST, self.port)).expect("the server's port");
        self.listen(listener);
    }

    fn listen(&mut self, listener: TcpListener) {
        self.shared.set(State::Running);
        let (accepting, shared) = (
            listener.try_clone().expect("a listener"),
            Arc::clone(&self.shared),
        );
        self.running = Some((listener, thread::spawn(move || shared.serve(&accepting))));
    }

    fn stop(&mut self) {
        self.shared.set(State::Stopped);
        if let Some((listener, thread)) = self.running.take() {
            // Wakes the thread.
            let _ = rustix::net::shutdown(&listener, rustix::net::Shutdown::Both);
            let _ = thread.join();
        }
    }
}

impl Drop for Double {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Parses the first complete command, and returns it with its length.
fn parse(buffer: &[u8]) -> Option<(Vec<Vec<u8>>, usize)> {
    // Returns the number after a mark, and the end of its line.
    let line = |at: usize, mark: u8| {
        let end = at
            + buffer
                .get(at..)?
                .windows(2)
                .position(|two| two == b"\r\n")?;
        assert_eq!(buffer[at], mark, "not the protocol");
        let number: usize = std::str::from_utf8(&buffer[at + 1..end])
            .expect("a number")
            .parse()
            .expect("a number");
        Some((number, end + 2))
    };
    let (count, mut at) = line(0, b'*')?;
    let mut words = Vec::new();
    for _ in 0..count {
        let (length, start) = line(at, b'$')?;
        at = start + length + 2;
        words.push(buffer.get(start..at)?[..length].to_vec());
    }
    Some((words, at))
}

impl Shared {
    fn data(&self) -> MutexGuard<'_, Data> {
        self.data.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, state: State) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = state;
        self.changed.notify_all();
    }

    /// Returns whether the server runs, once it is not frozen.
    fn runs(&self) -> bool {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let state = self
            .changed
            .wait_while(state, |state| *state == State::Frozen)
            .unwrap_or_else(PoisonError::into_inner);
        *state == State::Running
    }

    /// Serves all connections in one thread, as the real server does: what a connection has sent is
    /// carried out before the commands of a connection that was opened later.
    fn serve(&self, listener: &TcpListener) {
        let mut connections: Vec<Connection> = Vec::new();
        loop {
            let all = connections
                .iter()
                .map(|connection| connection.0.as_fd())
                .chain([listener.as_fd()]);
            let mut polled: Vec<PollFd<'_>> = all
                .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
                .collect();
            retry_on_intr(|| poll(&mut polled, None)).expect("the kernel's answer");
            let mut ready = polled
                .iter()
                .map(|one| !one.revents().is_empty())
                .collect::<Vec<_>>()
                .into_iter();
            if !self.runs() {
                return;
            }
            connections.retain_mut(|connection| {
                !ready.next().expect("one for each") || self.serve_one(connection).is_some()
            });
            if ready.next().expect("the listener's")
                && let Ok((client, _)) = listener.accept()
            {
                let _ = client.set_nodelay(true);
                connections.push(Connection(client, Vec::new()));
            }
        }
    }

    /// Carries out the commands that a ready connection has sent; `None` once it is closed.
    fn serve_one(&self, Connection(client, buffer): &mut Connection) -> Option<()> {
        let mut chunk = vec![0; 64 * 1024];
        let length = client.read(&mut chunk).ok().filter(|length| *length > 0)?;
        buffer.extend_from_slice(&chunk[..length]);
        let mut out = Vec::new();
        while let Some((words, length)) = parse(buffer) {
            buffer.drain(..length);
            if !self.runs() {
                return None;
            }
            write(&self.answer(&words), &mut out);
        }
        client.write_all(&out).ok()
    }

    /// Carries out `AUTH` and the words of `ACL SETUSER` that tests send.
    fn login(&self, text: &[String]) -> Reply {
        let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        if let [_, _, user, rules @ ..] = text
            && text[0] == "ACL"
        {
            let login = users.entry(user.clone()).or_default();
            for rule in rules {
                match rule.as_bytes() {
                    b"on" | b"off" => login.is_off = rule == "off",
                    [b'>', ..] => rule[1..].clone_into(&mut login.password),
                    _ => {}
                }
            }
            return Reply::Ok;
        }
        let known = |user: &String| users.get(user).filter(|login| !login.is_off);
        match text {
            [_, user, password] if known(user).is_none_or(|known| known.password != *password) => {
                Reply::Error("WRONGPASS invalid username-password pair or user is disabled.")
            }
            _ => Reply::Ok,
        }
    }

    fn answer(&self, words: &[Vec<u8>]) -> Reply {
        let text: Vec<String> = words
            .iter()
            .map(|word| String::from_utf8_lossy(word).into_owned())
            .collect();
        let command = text[0].to_ascii_uppercase();
        let mut data = self.data();
        let now = Instant::now();
        data.retain(|_, entry| entry.ends.is_none_or(|ends| ends > now));
        let key = text.get(1).cloned().unwrap_or_default();
        let options = |from: usize| Options::read(&text[from.min(text.len())..]);
        match command.as_str() {
            "PING" | "CLIENT" | "SELECT" => Reply::Ok,
            "AUTH" => self.login(&text),
            "ACL" if key == "SETUSER" => self.login(&text),
            "REPLICAOF" => {
                self.is_replica.store(key != "NO", Ordering::SeqCst);
                Reply::Ok
            }
            _ if commands::writes(&command) && self.is_replica.load(Ordering::SeqCst) => {
                Reply::Error("READONLY You can't write against a read only replica.")
            }
            "FLUSHALL" => {
                data.clear();
                Reply::Ok
            }
            "COMMAND" => Reply::List(
                text[2..]
                    .iter()
                    .map(|name| Reply::List(vec![Reply::Bulk(name.clone().into())]))
                    .collect(),
            ),
            "TIME" => {
                let time = SystemTime::now()
                    .duration_since(UNIX_EPOCH)
                    .expect("after 1970");
                let number = |number: String| Reply::Bulk(number.into_bytes());
                Reply::List(vec![
                    number(time.as_secs().to_string()),
                    number(time.subsec_micros().to_string()),
                ])
            }
            "TYPE" => Reply::Status(data.get(&key).map_or("none", |entry| entry.content.kind())),
            "PTTL" => Reply::Int(match data.get(&key) {
                None => -2,
                Some(entry) => entry.ends.map_or(-1, |ends| {
                    i64::try_from((ends - now).as_millis()).expect("small")
                }),
            }),
            "DEL" => Reply::Int(i64::from(data.remove(&key).is_some())),
            "EXISTS" => Reply::Int(i64::from(data.contains_key(&key))),
            "PEXPIRE" => match data.get_mut(&key) {
                None => Reply::Int(0),
                Some(entry) => {
                    entry.ends = Some(now + Duration::from_millis(text[2].parse().expect("ms")));
                    Reply::Int(1)
                }
            },
            "SCAN" => scan(&data, &text),
            "SET" | "GET" | "GETRANGE" | "INCRBY" | "CAS" | "CAD" => {
                plain(&mut data, &command, key, words, &text, &options)
            }
            "EXSET" | "EXGET" | "EXCAS" | "EXCAD" => {
                versioned(&mut data, &command, key, words, &text, &options)
            }
            "ZADD" | "ZREM" | "ZRANK" | "ZRANGE" => sorted(&mut data, &command, &key, &text),
            "LPUSH" | "LTRIM" | "LREM" | "LRANGE" => list(&mut data, &command, &key, words, &text),
            "HSET" | "HDEL" | "HGET" | "HGETALL" | "HSETNX" | "HINCRBY" | "HLEN" => {
                hash(&mut data, &command, &key, words, &text)
            }
            _ => Reply::Error("ERR unknown command"),
        }
    }
}

fn write(reply: &Reply, out: &mut Vec<u8>) {
    match reply {
        Reply::Ok => out.extend_from_slice(b"+OK\r\n"),
        Reply::Status(text) => out.extend_from_slice(format!("+{text}\r\n").as_bytes()),
        Reply::Int(number) => out.extend_from_slice(format!(":{number}\r\n").as_bytes()),
        Reply::Bulk(bytes) => {
            out.extend_from_slice(format!("${}\r\n", bytes.len()).as_bytes());
            out.extend_from_slice(bytes);
            out.extend_from_slice(b"\r\n");
        }
        Reply::Nil => out.extend_from_slice(b"$-1\r\n"),
        Reply::List(items) => {
            out.extend_from_slice(format!("*{}\r\n", items.len()).as_bytes());
            for item in items {
                write(item, out);
            }
        }
        Reply::Error(text) => out.extend_from_slice(format!("-{text}\r\n").as_bytes()),
    }
}
