//! A TCP proxy between a client and its server, with faults that strike on command.
//!
//! It counts a request as one read from the client: clients here ask, then wait for the answer.

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

/// What happens to all connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Everything goes through.
    Pass,
    /// Connections are accepted, and nothing that either side says arrives.
    BlackHole,
    /// Connections are refused, and those there are were cut.
    Refuse,
}

/// What happens to one request that a trap is set for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The connection is cut before the server sees it.
    CutBefore,
    /// The server answers, and the connection is cut instead of delivering that.
    CutAfter,
    /// The server answers, and neither that nor anything later on this connection is delivered.
    Swallow,
    /// The server sees it so much later.
    Late(Duration),
    /// The client gets the answer so much later.
    LateReply(Duration),
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
    connections: AtomicU64,
    requests: AtomicU64,
    up: AtomicU64,
    down: AtomicU64,
}

/// A proxy on a port of its own; it ends with this value.
pub struct Proxy {
    /// Where it listens.
    pub host: Ipv4Addr,
    pub port: u16,
    target: SocketAddr,
    shared: Arc<Shared>,
    listener: Option<TcpListener>,
}

impl Proxy {
    /// Listens on a free port and passes everything on to `target` on this host.
    pub fn to(target: u16) -> Self {
        Self::at(Ipv4Addr::LOCALHOST, target)
    }

    /// The same, listening at another address of this host.
    pub fn at(host: Ipv4Addr, target: u16) -> Self {
        let mut proxy =
            Self { host, port: ports::free(), target: (Ipv4Addr::LOCALHOST, target).into(), shared: Arc::default(), listener: None };
        proxy.listen();
        proxy
    }

    fn listen(&mut self) {
        let listener = bind((self.host, self.port));
        let (accepting, shared, target) = (listener.try_clone().expect("a listener"), Arc::clone(&self.shared), self.target);
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
            // The only way to wake a blocked accept; std has no word for it.
            let _ = rustix::net::shutdown(&listener, rustix::net::Shutdown::Both);
        }
    }

    /// Changes what happens to all connections from now on.
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

    /// Cuts the connections that there are; new ones are served.
    pub fn cut(&self) {
        for (_, (client, server)) in self.shared.open.lock().expect("open").drain() {
            let _ = client.shutdown(Shutdown::Both);
            let _ = server.shutdown(Shutdown::Both);
        }
    }

    /// Delays everything in both directions.
    pub fn delay(&self, by: Duration) {
        *self.shared.delay.lock().expect("delay") = by;
    }

    /// Delivers everything in small pieces, in both directions.
    pub fn split(&self, on: bool) {
        self.shared.split.store(on, Ordering::SeqCst);
    }

    /// Takes back the traps that nothing fell into.
    pub fn disarm(&self) {
        self.shared.traps.lock().expect("traps").clear();
    }

    /// Sets a trap for the next request that contains `needle`; an empty one is any request.
    pub fn trap(&self, needle: impl AsRef<[u8]>, fault: Fault) {
        self.trap_nth(needle, 0, 1, fault);
    }

    /// Sets a trap for `times` requests that contain `needle`, after letting `skip` of them pass.
    pub fn trap_nth(&self, needle: impl AsRef<[u8]>, skip: usize, times: usize, fault: Fault) {
        self.shared.traps.lock().expect("traps").push(Trap { needle: needle.as_ref().to_vec(), skip, times, fault });
    }

    /// How many requests fell into a trap: a test of faults must see that they struck.
    pub fn sprung(&self) -> usize {
        self.shared.sprung.load(Ordering::SeqCst)
    }

    pub fn connections(&self) -> u64 {
        self.shared.connections.load(Ordering::SeqCst)
    }

    pub fn requests(&self) -> u64 {
        self.shared.requests.load(Ordering::SeqCst)
    }

    /// Bytes to the server and from it.
    pub fn bytes(&self) -> (u64, u64) {
        (self.shared.up.load(Ordering::SeqCst), self.shared.down.load(Ordering::SeqCst))
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.unlisten();
        self.cut();
    }
}

/// What the reading side of one connection tells the writing side about the next answer.
#[derive(Default)]
struct Pending(Mutex<Option<Fault>>);

impl Shared {
    fn mode(&self) -> Mode {
        self.mode.lock().expect("mode").unwrap_or(Mode::Pass)
    }

    fn serve(self: &Arc<Self>, client: TcpStream, target: SocketAddr) {
        let id = self.connections.fetch_add(1, Ordering::SeqCst);
        let Ok(server) = TcpStream::connect(target) else {
            return; // dropping `client` closes it, as a server that is gone would
        };
        let (Ok(client2), Ok(server2)) = (client.try_clone(), server.try_clone()) else { return };
        let _ = (client.set_nodelay(true), server.set_nodelay(true));
        if let (Ok(c), Ok(s)) = (client.try_clone(), server.try_clone()) {
            self.open.lock().expect("open").insert(id, (c, s));
        }
        let pending = Arc::new(Pending::default());
        let (up, down) = (Arc::clone(self), Arc::clone(self));
        let answers = Arc::clone(&pending);
        thread::spawn(move || {
            up.requests(client, server, &pending);
            up.open.lock().expect("open").remove(&id);
        });
        thread::spawn(move || down.answers(server2, client2, &answers));
    }

    fn spring(&self, request: &[u8]) -> Option<Fault> {
        if is_housekeeping(request) {
            return None;
        }
        let mut traps = self.traps.lock().expect("traps");
        let matches = |trap: &Trap| trap.needle.is_empty() || request.windows(trap.needle.len()).any(|part| part == trap.needle);
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

    fn requests(&self, mut client: TcpStream, mut server: TcpStream, pending: &Pending) {
        let mut buffer = vec![0; 64 * 1024];
        loop {
            let n = match client.read(&mut buffer) {
                Ok(n) if n > 0 => n,
                _ => break,
            };
            self.requests.fetch_add(1, Ordering::SeqCst);
            if self.mode() == Mode::BlackHole {
                continue;
            }
            match self.spring(&buffer[..n]) {
                Some(Fault::CutBefore) => break,
                Some(Fault::Late(by)) => thread::sleep(by),
                Some(fault) => *pending.0.lock().expect("pending") = Some(fault),
                None => {}
            }
            self.pause();
            self.up.fetch_add(n as u64, Ordering::SeqCst);
            if self.write(&mut server, &buffer[..n]).is_err() {
                break;
            }
        }
        let _ = server.shutdown(Shutdown::Both);
        let _ = client.shutdown(Shutdown::Both);
    }

    fn answers(&self, mut server: TcpStream, mut client: TcpStream, pending: &Pending) {
        let mut buffer = vec![0; 64 * 1024];
        let mut swallowing = false;
        loop {
            let n = match server.read(&mut buffer) {
                Ok(n) if n > 0 => n,
                _ => break,
            };
            let fault = if is_housekeeping(&buffer[..n]) { None } else { pending.0.lock().expect("pending").take() };
            match fault {
                Some(Fault::CutAfter) => break,
                Some(Fault::Swallow) => swallowing = true,
                Some(Fault::LateReply(by)) => thread::sleep(by),
                Some(Fault::CutBefore | Fault::Late(_)) | None => {}
            }
            if swallowing || self.mode() == Mode::BlackHole {
                continue;
            }
            self.pause();
            self.down.fetch_add(n as u64, Ordering::SeqCst);
            if self.write(&mut client, &buffer[..n]).is_err() {
                break;
            }
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

/// Somebody who looks whether the port is free has it for an instant.
fn bind(address: (Ipv4Addr, u16)) -> TcpListener {
    for _ in 0..50 {
        if let Ok(listener) = TcpListener::bind(address) {
            return listener;
        }
        thread::sleep(Duration::from_millis(20));
    }
    TcpListener::bind(address).expect("the proxy's port")
}

/// Whether these bytes are nothing but HTTP/2 frames that answer no request: SETTINGS, PING, WINDOW_UPDATE.
fn is_housekeeping(mut bytes: &[u8]) -> bool {
    if bytes.is_empty() {
        return false;
    }
    while !bytes.is_empty() {
        let Some((&[a, b, c, kind, flags, ..], _)) = bytes.split_first_chunk::<9>() else { return false };
        let length = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
        let fits = match kind {
            4 => length % 6 == 0 && (length > 0 || flags == 1),
            6 => length == 8,
            8 => length == 4,
            _ => false,
        };
        let Some(rest) = bytes.get(9 + length..).filter(|_| fits) else { return false };
        bytes = rest;
    }
    true
}
