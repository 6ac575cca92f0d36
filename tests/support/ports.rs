//! Free TCP ports for servers.

use std::{
    net::{Ipv4Addr, TcpListener},
    os::{linux::net::SocketAddrExt as _, unix::net},
    sync::{Mutex, PoisonError},
};

/// Below the range that the kernel takes the near ends of connections from, so that none is taken meanwhile.
const FIRST: u16 = 10_500;
/// The ports come in blocks, each of one process: no other test process asks for a port while its listener is away for a moment.
const BLOCK: u16 = 50;
const BLOCKS: u16 = 430;

/// The blocks of this process, and how many of their ports were given away, counted on through all rounds.
struct Ports {
    blocks: Vec<(u16, net::UnixListener)>,
    next: usize,
}

static PORTS: Mutex<Ports> = Mutex::new(Ports { blocks: Vec::new(), next: 0 });

/// A port of 127.0.0.1 that nothing listens on. A port that was given away comes again only when no block is left.
pub fn free() -> u16 {
    PORTS.lock().unwrap_or_else(PoisonError::into_inner).free()
}

impl Ports {
    fn free(&mut self) -> u16 {
        for _ in 0..BLOCKS * BLOCK {
            let (nth, within) = (self.next / usize::from(BLOCK), self.next % usize::from(BLOCK));
            if nth >= self.blocks.len() && !self.claim() {
                assert!(!self.blocks.is_empty(), "other processes have all ports from {FIRST} on");
                self.next = 0;
                continue;
            }
            self.next += 1;
            let port = FIRST + self.blocks[nth].0 * BLOCK + u16::try_from(within).expect("below the block's length");
            if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
                return port;
            }
        }
        panic!("no free port from {FIRST} on");
    }

    /// Takes one more block, for as long as this process lives.
    fn claim(&mut self) -> bool {
        let from = u16::try_from(std::process::id() % u32::from(BLOCKS)).expect("below the count");
        let claimed = (0..BLOCKS).map(|nth| (from + nth) % BLOCKS).find_map(|block| {
            let name = net::SocketAddr::from_abstract_name(format!("dlock-test-ports-{block}")).expect("a short name");
            Some((block, net::UnixListener::bind_addr(&name).ok()?))
        });
        let found = claimed.is_some();
        self.blocks.extend(claimed);
        found
    }
}
