//! A TCP proxy between a client and its server, which injects faults on command.
//!
//! Each read from the client counts as one request: clients here send a request, then wait for the
//! answer.

use std::{
    collections::HashMap,
    io::{self, Read as _, Write as _},
    net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use super::ports;

/// Makes the kernel notice within ten seconds that a client's host has lost the connection, as a
/// server behind no proxy would.
fn keep_alive(client: &TcpStream) -> rustix::io::Result<()> {
    use rustix::net::sockopt;
    sockopt::set_socket_keepalive(client, true)?;
    sockopt::set_tcp_keepidle(client, Duration::from_secs(4))?;
    sockopt::set_tcp_keepintvl(client, Duration::from_secs(2))?;
    sockopt::set_tcp_keepcnt(client, 3)
}

/// The treatment of all connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// All data passes.
    Pass,
    /// Connections are accepted, but no data arrives in either direction.
    BlackHole,
    /// New connections are refused, and open ones are cut.
    Refuse,
}

/// The treatment of one trapped request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The connection is cut before the server sees the request.
    CutBefore,
    /// The server answers, and the connection is cut instead of delivering the answer.
    CutAfter,
    /// The server answers, but neither that answer nor any later data on this connection is
    /// delivered.
    Swallow,
    /// The request reaches the server after this delay.
    Late(Duration),
    /// The connection to the client is cut, and the request reaches the server after this delay.
    Orphan(Duration),
    /// The answer reaches the client after this delay.
    LateReply(Duration),
    /// The end of this connection reaches the server after this delay.
    LateEnd(Duration),
    /// The server sees the request. From then on nothing passes on any connection that is open now,
    /// not even its end, as behind a firewall that has forgotten its connections.
    Forget,
}

struct Trap {
    needle: Vec<u8>,
    /// How many matching requests to let pass first.
    skip: usize,
    /// How many times to strike.
    times: usize,
    fault: Fault,
}

#[derive(Default)]
struct Shared {
    mode: Mutex<Option<Mode>>,
    traps: Mutex<Vec<Trap>>,
    sprung: AtomicUsize,
    delay: Mutex<Duration>,
    split: AtomicBool,
    open: Mutex<HashMap<u64, (TcpStream, TcpStream)>>,
    /// The most connections at a time.
    most: Mutex<Option<usize>>,
    /// The first connection that is not forgotten.
    known: AtomicU64,
    connections: AtomicU64,
    requests: AtomicU64,
    up: AtomicU64,
    down: AtomicU64,
}

/// A proxy on its own port; it ends with this value.
pub struct Proxy {
    /// The address that the proxy listens on.
    pub host: Ipv4Addr,
    pub port: u16,
    target: SocketAddr,
    shared: Arc<Shared>,
    listener: Option<TcpListener>,
}

impl Proxy {
    /// Listens on a free port, and forwards all data to the port `target` of this host.
    pub fn to(target: u16) -> Self {
        Self::at(Ipv4Addr::LOCALHOST, target)
    }

    /// Like [`Proxy::to`], but listens on another address of this host.
    pub fn at(host: Ipv4Addr, target: u16) -> Self {
        let mut proxy = Self {
            host,
            port: ports::free(),
            target: (Ipv4Addr::LOCALHOST, target).into(),
            shared: Arc::default(),
            listener: None,
        };
        proxy.listen();
        proxy
    }

    fn listen(&mut self) {
        let listener = bind((self.host, self.port));
        let (accepting, shared, target) = (
            listener.try_clone().expect("a listener"),
            Arc::clone(&self.shared),
            self.target,
        );
        thread::spawn(move || {
            // Ends when `unlisten` shuts the socket down.
            while let Ok((client, _)) = accepting.accept() {
                shared.serve(client, target);
            }
        });
        self.listener = Some(listener);
    }

    fn unlisten(&mut self) {
        if let Some(listener) = self.listener.take() {
            // The only way to wake a blocked accept; std has no function for it.
            let _ = rustix::net::shutdown(&listener, rustix::net::Shutdown::Both);
        }
    }

    /// Changes the treatment of all connections from now on.
    pub fn set(&mut self, mode: Mode) {
        *self.shared.mode.lock().expect("mode") = Some(mode);
        match mode {
            Mode::Refuse => {
                self.unlisten();
                self.cut();
            }
            Mode::Pass | Mode::BlackHole if self.listener.is_none() => self.listen(),
            Mode::Pass | Mode::BlackHole => {}
        }
    }

    /// Cuts all open connections; new ones are served.
    pub fn cut(&self) {
        for (_, (client, server)) in self.shared.open.lock().expect("open").drain() {
            let _ = client.shutdown(Shutdown::Both);
            let _ = server.shutdown(Shutdown::Both);
        }
    }

    /// Resets all open connections: each end learns of it with its next write.
    pub fn reset(&self) {
        for (client, server) in self.shared.open.lock().expect("open").values() {
            for end in [client, server] {
                let _ = rustix::net::sockopt::set_socket_linger(end, Some(Duration::ZERO));
            }
        }
        self.cut();
    }

    /// Lets nothing pass any more on the connections that are open now: see [`Fault::Forget`].
    pub fn forget(&self) {
        self.shared.forget();
    }

    /// Closes each new connection beyond `most` at once, as a server does that has no more of them.
    pub fn limit(&self, most: usize) {
        *self.shared.most.lock().expect("most") = Some(most);
    }

    /// Delays all data in both directions.
    pub fn delay(&self, by: Duration) {
        *self.shared.delay.lock().expect("delay") = by;
    }

    /// Delivers all data in small pieces, in both directions.
    pub fn split(&self, on: bool) {
        self.shared.split.store(on, Ordering::SeqCst);
    }

    /// Removes the unused traps.
    pub fn disarm(&self) {
        self.shared.traps.lock().expect("traps").clear();
    }

    /// Sets a trap for the next request that contains `needle`; an empty `needle` matches any
    /// request.
    pub fn trap(&self, needle: impl AsRef<[u8]>, fault: Fault) {
        self.trap_nth(needle, 0, 1, fault);
    }

    /// Sets a trap for `times` requests that contain `needle`, after letting `skip` of them pass.
    pub fn trap_nth(&self, needle: impl AsRef<[u8]>, skip: usize, times: usize, fault: Fault) {
        self.shared.traps.lock().expect("traps").push(Trap {
            needle: needle.as_ref().to_vec(),
            skip,
            times,
            fault,
        });
    }

    /// Returns how many requests fell into a trap, so that a test can check that its faults
    /// happened.
    pub fn sprung(&self) -> usize {
        self.shared.sprung.load(Ordering::SeqCst)
    }

    pub fn connections(&self) -> u64 {
        self.shared.connections.load(Ordering::SeqCst)
    }

    pub fn requests(&self) -> u64 {
        self.shared.requests.load(Ordering::SeqCst)
    }

    /// Returns the bytes sent to the server and received from it.
    pub fn bytes(&self) -> (u64, u64) {
        (
            self.shared.up.load(Ordering::SeqCst),
            self.shared.down.load(Ordering::SeqCst),
        )
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.unlisten();
        self.cut();
    }
}

/// The fault for the next answer, from the reading side of a connection to its writing side.
#[derive(Default)]
struct Pending(Mutex<Option<Fault>>);

impl Shared {
    fn mode(&self) -> Mode {
        self.mode.lock().expect("mode").unwrap_or(Mode::Pass)
    }

    fn forget(&self) {
        self.known
            .store(self.connections.load(Ordering::SeqCst), Ordering::SeqCst);
    }

    fn is_forgotten(&self, id: u64) -> bool {
        id < self.known.load(Ordering::SeqCst)
    }

    fn serve(self: &Arc<Self>, client: TcpStream, target: SocketAddr) {
        let id = self.connections.fetch_add(1, Ordering::SeqCst);
        let most = *self.most.lock().expect("most");
        if most.is_some_and(|most| self.open.lock().expect("open").len() >= most) {
            return;
        }
        let Ok(server) = TcpStream::connect(target) else {
            return; // dropping `client` closes the connection, as a dead server would
        };
        let (Ok(client2), Ok(server2)) = (client.try_clone(), server.try_clone()) else {
            return;
        };
        let _ = (
            client.set_nodelay(true),
            server.set_nodelay(true),
            keep_alive(&client),
        );
        if let (Ok(c), Ok(s)) = (client.try_clone(), server.try_clone()) {
            self.open.lock().expect("open").insert(id, (c, s));
        }
        let pending = Arc::new(Pending::default());
        let (up, down) = (Arc::clone(self), Arc::clone(self));
        let answers = Arc::clone(&pending);
        thread::spawn(move || {
            up.requests(id, client, server, &pending);
            if !up.is_forgotten(id) {
                up.open.lock().expect("open").remove(&id);
            }
        });
        thread::spawn(move || down.answers(id, server2, client2, &answers));
    }

    fn spring(&self, request: &[u8]) -> Option<Fault> {
        if is_housekeeping(request) {
            return None;
        }
        let mut traps = self.traps.lock().expect("traps");
        let matches = |trap: &Trap| {
            trap.needle.is_empty()
                || request
                    .windows(trap.needle.len())
                    .any(|part| part == trap.needle)
        };
        let at = traps.iter().position(matches)?;
        let trap = &mut traps[at];
        if trap.skip > 0 {
            trap.skip -= 1;
            return None;
        }
        let fault = trap.fault;
        trap.times -= 1;
        if trap.times == 0 {
            traps.remove(at);
        }
        self.sprung.fetch_add(1, Ordering::SeqCst);
        Some(fault)
    }

    fn requests(&self, id: u64, mut client: TcpStream, mut server: TcpStream, pending: &Pending) {
        let mut buffer = vec![0; 64 * 1024];
        let mut end_after = Duration::ZERO;
        loop {
            let n = match client.read(&mut buffer) {
                Ok(n) if n > 0 => n,
                _ => break,
            };
            self.requests.fetch_add(1, Ordering::SeqCst);
            if self.mode() == Mode::BlackHole || self.is_forgotten(id) {
                continue;
            }
            match self.spring(&buffer[..n]) {
                Some(Fault::CutBefore) => break,
                Some(Fault::Late(by)) => thread::sleep(by),
                Some(Fault::Orphan(by)) => {
                    let _ = client.shutdown(Shutdown::Both);
                    thread::sleep(by);
                }
                Some(Fault::LateEnd(by)) => end_after = by,
                Some(Fault::Forget) => self.forget(),
                Some(fault) => *pending.0.lock().expect("pending") = Some(fault),
                None => {}
            }
            self.pause();
            self.up.fetch_add(n as u64, Ordering::SeqCst);
            if self.write(&mut server, &buffer[..n]).is_err() {
                break;
            }
        }
        if self.is_forgotten(id) {
            return;
        }
        thread::sleep(end_after);
        let _ = server.shutdown(Shutdown::Both);
        let _ = client.shutdown(Shutdown::Both);
    }

    fn answers(&self, id: u64, mut server: TcpStream, mut client: TcpStream, pending: &Pending) {
        let mut buffer = vec![0; 64 * 1024];
        let mut swallowing = false;
        loop {
            let n = match server.read(&mut buffer) {
                Ok(n) if n > 0 => n,
                _ => break,
            };
            let fault = if is_housekeeping(&buffer[..n]) {
                None
            } else {
                pending.0.lock().expect("pending").take()
            };
            match fault {
                Some(Fault::CutAfter) => break,
                Some(Fault::Swallow) => swallowing = true,
                Some(Fault::LateReply(by)) => thread::sleep(by),
                Some(
                    Fault::CutBefore
                    | Fault::Late(_)
                    | Fault::Orphan(_)
                    | Fault::LateEnd(_)
                    | Fault::Forget,
                )
                | None => {}
            }
            if swallowing || self.mode() == Mode::BlackHole || self.is_forgotten(id) {
                continue;
            }
            self.pause();
            self.down.fetch_add(n as u64, Ordering::SeqCst);
            if self.write(&mut client, &buffer[..n]).is_err() {
                break;
            }
        }
        if self.is_forgotten(id) {
            return;
        }
        let _ = server.shutdown(Shutdown::Both);
        let _ = client.shutdown(Shutdown::Both);
    }

    fn write(&self, to: &mut TcpStream, bytes: &[u8]) -> io::Result<()> {
        if !self.split.load(Ordering::SeqCst) {
            return to.write_all(bytes);
        }
        bytes.chunks(100).try_for_each(|piece| {
            thread::sleep(Duration::from_millis(1));
            to.write_all(piece)
        })
    }

    fn pause(&self) {
        let by = *self.delay.lock().expect("delay");
        if !by.is_zero() {
            thread::sleep(by);
        }
    }
}

/// Binds the port. Another process that checks whether the port is free may own it for an instant.
fn bind(address: (Ipv4Addr, u16)) -> TcpListener {
    for _ in 0..50 {
        if let Ok(listener) = TcpListener::bind(address) {
            return listener;
        }
        thread::sleep(Duration::from_millis(20));
    }
    TcpListener::bind(address).expect("the proxy's port")
}

/// Returns whether these bytes contain only HTTP/2 frames that answer no request: SETTINGS, PING,
/// WINDOW_UPDATE.
fn is_housekeeping(mut bytes: &[u8]) -> bool {
    if bytes.is_empty() {
        return false;
    }
    while !bytes.is_empty() {
        let Some((&[a, b, c, kind, flags, ..], _)) = bytes.split_first_chunk::<9>() else {
            return false;
        };
        let length = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
        let fits = match kind {
            4 => length % 6 == 0 && (length > 0 || flags == 1),
            6 => length == 8,
            8 => length == 4,
            _ => false,
        };
        let Some(rest) = bytes.get(9 + length..).filter(|_| fits) else {
            return false;
        };
        bytes = rest;
    }
    true
}
