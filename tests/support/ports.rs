//! Free TCP ports for servers.

use std::{
    net::{Ipv4Addr, TcpListener},
    sync::atomic::{AtomicU16, Ordering},
};

/// Below the range that the kernel takes the near ends of connections from, so that none is taken meanwhile.
/// More than one run of all tests asks for: a port whose listener is away for a moment must not be given to another.
const FIRST: u16 = 10_500;
const COUNT: u16 = 21_500;

/// A port of 127.0.0.1 that nobody listens on.
///
/// Test processes start at different places of the range, so that they seldom ask for the same port.
pub fn free() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let offset = u16::try_from(std::process::id() * 37 % u32::from(COUNT)).expect("below the count");
    for _ in 0..COUNT {
        let port = FIRST + (offset.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed))) % COUNT;
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
    panic!("no free port from {FIRST} on");
}
