//! A host that seems to be off.

use std::{
    net::{Ipv4Addr, SocketAddr, TcpStream},
    os::fd::OwnedFd,
    time::Duration,
};

use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::ports;

/// A port that drops packets, so that connections are never answered. The port ends with this
/// value.
pub struct Deaf {
    pub port: u16,
    /// The listener, whose accept queue is full and never drained.
    _queue: (OwnedFd, Vec<TcpStream>),
}

impl Deaf {
    pub fn new() -> Self {
        let socket = rustix::net::socket_with(
            AddressFamily::INET,
            SocketType::STREAM,
            SocketFlags::CLOEXEC,
            None,
        )
        .expect("a socket");
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, ports::free()));
        // The listeners of std do the same.
        rustix::net::sockopt::set_socket_reuseaddr(&socket, true).expect("a socket");
        rustix::net::bind(&socket, &address).expect("a free port");
        rustix::net::listen(&socket, 0).expect("a listener");
        let mut queue = Vec::new();
        while let Ok(stream) = TcpStream::connect_timeout(&address, Duration::from_millis(200)) {
            queue.push(stream);
        }
        Self {
            port: address.port(),
            _queue: (socket, queue),
        }
    }
}
