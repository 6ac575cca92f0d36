//! Proxies that count the packets of one client and strike exactly one of them. A packet is what
//! one read returns, in either direction; all connections to all servers of the store count
//! together.

use std::{
    io::{Read as _, Write as _},
    net::{Ipv4Addr, Shutdown, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::{self, sleep},
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    net::sockopt::set_socket_linger,
    process::Signal,
};

use crate::{
    liveness::now,
    round::{Slot, lock},
    scenes::Mode,
    support::process,
};

/// The fault for one packet.
pub struct Strike {
    pub mode: Mode,
    /// The number of the packet, from 1.
    pub packet: usize,
    /// The contender that signals go to.
    pub victim: Arc<Vec<Slot>>,
}

#[derive(Default)]
struct Shared {
    strike: Mutex<Option<Strike>>,
    packets: AtomicUsize,
    connections: AtomicUsize,
    /// Connections with lower numbers swallow everything.
    first_alive: AtomicUsize,
    /// Until when new connections swallow everything too.
    outage: Mutex<Option<Instant>>,
    /// When the struck packet was read, and when its fault is over.
    hit: Mutex<Option<(u64, u64)>>,
    /// The servers' ports and the proxies' ports, if replies contain them.
    named: Vec<(u16, u16)>,
    over: AtomicBool,
}

/// One proxy per server.
pub struct Packets {
    pub ports: Vec<u16>,
    listeners: Vec<TcpListener>,
    shared: Arc<Shared>,
}

impl Packets {
    /// Starts proxies in front of these ports. If `named`, replies contain the servers' ports,
    /// which are replaced.
    pub fn to(servers: &[u16], named: bool) -> Self {
        let listeners: Vec<TcpListener> = servers
            .iter()
            .map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port of this host"))
            .collect();
        let ports: Vec<u16> = listeners
            .iter()
            .map(|listener| listener.local_addr().expect("an address").port())
            .collect();
        let named = if named {
            servers.iter().copied().zip(ports.iter().copied()).collect()
        } else {
            Vec::new()
        };
        let shared = Arc::new(Shared {
            named,
            ..Shared::default()
        });
        for (listener, server) in listeners.iter().zip(servers.iter().copied()) {
            let (accepting, shared) = (
                listener.try_clone().expect("a listener"),
                Arc::clone(&shared),
            );
            thread::spawn(move || {
                // Ends when `drop` shuts the socket down.
                while let Ok((client, _)) = accepting.accept() {
                    let shared = Arc::clone(&shared);
                    thread::spawn(move || serve(&shared, client, server));
                }
            });
        }
        Self {
            ports,
            listeners,
            shared,
        }
    }

    pub fn arm(&self, strike: Strike) {
        *lock(&self.shared.strike) = Some(strike);
    }

    /// Returns how many packets were exchanged.
    pub fn count(&self) -> usize {
        self.shared.packets.load(Ordering::SeqCst)
    }

    /// Returns when the fault happened and when it was over, if the packet came.
    pub fn hit(&self) -> Option<(u64, u64)> {
        *lock(&self.shared.hit)
    }
}

impl Drop for Packets {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::SeqCst);
        for listener in &self.listeners {
            let _ = rustix::net::shutdown(listener, rustix::net::Shutdown::Both);
        }
    }
}

/// What happens to a packet and its connection.
enum Fate {
    Deliver,
    /// Is lost with all that follows on this connection.
    Swallow,
    /// So many bytes are delivered, and the connection ends.
    End {
        delivered: usize,
        reset: bool,
    },
    /// Is delivered late, and what follows in its direction after it.
    Late(Duration),
}

impl Shared {
    fn swallows(&self, connection: usize) -> bool {
        connection < self.first_alive.load(Ordering::SeqCst)
    }

    fn fate(&self, connection: usize, length: usize) -> Fate {
        let number = self.packets.fetch_add(1, Ordering::SeqCst) + 1;
        let strike = lock(&self.strike);
        match &*strike {
            _ if self.swallows(connection) => Fate::Swallow,
            Some(strike) if strike.packet == number => self.strike(strike, length),
            _ => Fate::Deliver,
        }
    }

    fn strike(&self, strike: &Strike, length: usize) -> Fate {
        let lasts = strike.mode.lasts();
        *lock(&self.hit) = Some((
            now(),
            now() + u64::try_from(lasts.as_nanos()).unwrap_or_default(),
        ));
        match strike.mode {
            Mode::Rst => Fate::End {
                delivered: 0,
                reset: true,
            },
            Mode::After => Fate::End {
                delivered: length,
                reset: true,
            },
            Mode::Half => Fate::End {
                delivered: length / 2,
                reset: true,
            },
            Mode::Fin => Fate::End {
                delivered: 0,
                reset: false,
            },
            Mode::Hole => Fate::Swallow,
            Mode::Out | Mode::Outage => {
                *lock(&self.outage) = Some(Instant::now() + lasts);
                self.first_alive
                    .store(self.connections.load(Ordering::SeqCst), Ordering::SeqCst);
                Fate::Swallow
            }
            Mode::Late => Fate::Late(lasts),
            Mode::Kill => signal(&strike.victim, Signal::KILL),
            Mode::Term => signal(&strike.victim, Signal::TERM),
            Mode::Stop => {
                let victim = Arc::clone(&strike.victim);
                thread::spawn(move || {
                    sleep(lasts);
                    signal(&victim, Signal::CONT);
                });
                signal(&strike.victim, Signal::STOP)
            }
        }
    }

    /// Replaces the servers' ports by the proxies'. All have five digits, so that no length in a
    /// reply changes.
    fn rename(&self, data: &mut [u8]) {
        for (server, proxy) in &self.named {
            let (old, new) = (
                server.to_string().into_bytes(),
                proxy.to_string().into_bytes(),
            );
            assert_eq!(old.len(), new.len(), "ports of the same length");
            let digit = |at: Option<&u8>| at.is_some_and(u8::is_ascii_digit);
            for at in 0..(data.len() + 1).saturating_sub(old.len()) {
                let end = at + old.len();
                let alone = !digit(at.checked_sub(1).and_then(|before| data.get(before)))
                    && !digit(data.get(end));
                if alone && data[at..end] == old[..] {
                    data[at..end].copy_from_slice(&new);
                }
            }
        }
    }
}

/// Sends the signal to the first contender's dlock.
fn signal(slots: &[Slot], which: Signal) -> Fate {
    if let Some((_, pid)) = *lock(&slots[0]) {
        process::signal(pid, which);
    }
    Fate::Deliver
}

/// A connection of the client, and the one to the server that belongs to it.
struct Link<'a> {
    shared: &'a Shared,
    number: usize,
    /// The client and the server.
    ends: [TcpStream; 2],
    /// Whether nothing comes from this end any more.
    ended: [bool; 2],
    /// A late packet of this end; until it is delivered, nothing else is read from there.
    held: [Option<(Vec<u8>, Instant)>; 2],
    swallows: bool,
}

fn serve(shared: &Shared, client: TcpStream, server: u16) {
    let number = shared.connections.fetch_add(1, Ordering::SeqCst);
    let swallows = lock(&shared.outage).is_some_and(|until| Instant::now() < until);
    let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, server)) else {
        return;
    };
    let mut link = Link {
        shared,
        number,
        ends: [client, server],
        ended: [false; 2],
        held: [None, None],
        swallows,
    };
    for end in &link.ends {
        let _ = end.set_nodelay(true);
    }
    while !link.is_over() && !shared.over.load(Ordering::SeqCst) {
        link.deliver_late();
        for from in link.wait() {
            if !link.ended[from] {
                link.pass(from);
            }
        }
    }
}

impl Link<'_> {
    /// A server doesn't notice that a client behind a hole is gone.
    fn is_over(&self) -> bool {
        let late = self.held.iter().any(Option::is_some);
        self.ended.contains(&true) && !late && !self.swallows && !self.shared.swallows(self.number)
    }

    fn send(&mut self, from: usize, data: &[u8]) {
        self.ended[from] |= (&self.ends[1 - from]).write_all(data).is_err();
    }

    fn deliver_late(&mut self) {
        for from in 0..2 {
            if let Some((data, _)) = self.held[from].take_if(|(_, due)| *due <= Instant::now()) {
                self.send(from, &data);
            }
        }
    }

    /// Waits a moment, and returns the ends with something to read.
    fn wait(&self) -> Vec<usize> {
        let open: Vec<usize> = (0..2)
            .filter(|from| !self.ended[*from] && self.held[*from].is_none())
            .collect();
        let mut polled: Vec<PollFd<'_>> = open
            .iter()
            .map(|from| PollFd::new(&self.ends[*from], PollFlags::IN))
            .collect();
        let _ = poll(
            &mut polled,
            Some(&Timespec {
                tv_sec: 0,
                tv_nsec: 20_000_000,
            }),
        );
        open.into_iter()
            .zip(&polled)
            .filter(|(_, fd)| !fd.revents().is_empty())
            .map(|(from, _)| from)
            .collect()
    }

    /// Passes one packet on.
    fn pass(&mut self, from: usize) {
        let mut data = vec![0; 64 * 1024];
        let length = (&self.ends[from]).read(&mut data).unwrap_or_default();
        data.truncate(length);
        if length == 0 {
            self.ended[from] = true;
            if !self.swallows && !self.shared.swallows(self.number) {
                let _ = self.ends[1 - from].shutdown(Shutdown::Write);
            }
            return;
        }
        if from == 1 {
            self.shared.rename(&mut data);
        }
        match if self.swallows {
            Fate::Swallow
        } else {
            self.shared.fate(self.number, length)
        } {
            Fate::Deliver => self.send(from, &data),
            Fate::Swallow => self.swallows = true,
            Fate::Late(by) => self.held[from] = Some((data, Instant::now() + by)),
            Fate::End { delivered, reset } => {
                self.send(from, &data[..delivered]);
                self.end(reset);
            }
        }
    }

    /// Ends both sides. A socket without linger is reset when it is closed.
    fn end(&mut self, reset: bool) {
        // What was delivered is read before.
        sleep(Duration::from_millis(4));
        for end in self.ends.iter().filter(|_| reset) {
            let _ = set_socket_linger(end, Some(Duration::ZERO));
        }
        self.ended = [true; 2];
    }
}
