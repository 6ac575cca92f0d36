//! Free TCP ports for servers.

use std::{
    net::{Ipv4Addr, SocketAddrV4},
    os::{linux::net::SocketAddrExt as _, unix::net},
    sync::{Mutex, PoisonError},
};

use rustix::net::{
    AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt::set_socket_reuseaddr,
};

/// Below the kernel's range of ephemeral ports, so that no connection takes a port meanwhile.
const FIRST: u16 = 10_500;
/// Each test process owns blocks of ports, so no other one takes a port while its listener is
/// restarted.
const BLOCK: u16 = 50;
const BLOCKS: u16 = 430;

/// The blocks of this process, and how many of their ports were handed out, counted through all
/// rounds.
struct Ports {
    blocks: Vec<(u16, net::UnixListener)>,
    next: usize,
}

static PORTS: Mutex<Ports> = Mutex::new(Ports {
    blocks: Vec::new(),
    next: 0,
});

/// Returns a port of 127.0.0.1 without a listener. A port is handed out again only when no block is
/// left.
pub fn free() -> u16 {
    PORTS.lock().unwrap_or_else(PoisonError::into_inner).free()
}

impl Ports {
    fn free(&mut self) -> u16 {
        for _ in 0..BLOCKS * BLOCK {
            let (nth, within) = (
                self.next / usize::from(BLOCK),
                self.next % usize::from(BLOCK),
            );
            if nth >= self.blocks.len() && !self.claim() {
                assert!(
                    !self.blocks.is_empty(),
                    "other processes own all ports from {FIRST} on"
                );
                self.next = 0;
                continue;
            }
            self.next += 1;
            let port = FIRST
                + self.blocks[nth].0 * BLOCK
                + u16::try_from(within).expect("below the block's length");
            if is_free(port) {
                return port;
            }
        }
        panic!("no free port from {FIRST} on");
    }

    /// Claims one more block for the lifetime of this process. Returns whether a block was left.
    fn claim(&mut self) -> bool {
        let from = u16::try_from(std::process::id() % u32::from(BLOCKS)).expect("below the count");
        let claimed = (0..BLOCKS)
            .map(|nth| (from + nth) % BLOCKS)
            .find_map(|block| {
                let name = net::SocketAddr::from_abstract_name(format!("dlock-test-ports-{block}"))
                    .expect("a short name");
                Some((block, net::UnixListener::bind_addr(&name).ok()?))
            });
        let found = claimed.is_some();
        self.blocks.extend(claimed);
        found
    }
}

/// Whether a server can listen at this port. A listener would tell as well, but a process that
/// another test is just starting has it too, until it runs its program, and keeps the server from
/// the port. A socket that does not listen keeps no server from it.
fn is_free(port: u16) -> bool {
    let socket = socket_with(
        AddressFamily::INET,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )
    .expect("a socket");
    set_socket_reuseaddr(&socket, true).expect("a socket");
    bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, port)).is_ok()
}
