//! Connecting to a server.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::fd::OwnedFd,
    time::Duration,
};

use rustix::net::{AddressFamily, sockopt};
use tokio::net::{TcpStream, lookup_host};

use crate::lock::{Error, Kind, Result};

/// Connects to the host's first address that answers.
pub(in crate::backends) async fn dial(host: &str, port: u16) -> Result<TcpStream> {
    let mut failed = None;
    for address in resolve(host, port).await? {
        match TcpStream::connect((address, port)).await {
            Ok(stream) => {
                // Requests are a few small packets: Nagle's algorithm would cost 40 ms. A failure here only costs time.
                let _ = stream.set_nodelay(true);
                return Ok(stream);
            }
            Err(error) => failed = Some(error),
        }
    }
    Err(failed.map_or_else(unresolved, unreachable))
}

/// Resolves a host name. `localhost` and addresses skip the resolver, which would start a thread.
async fn resolve(host: &str, port: u16) -> Result<Vec<IpAddr>> {
    if let Ok(address) = host.parse() {
        return Ok(vec![address]);
    }
    if host.eq_ignore_ascii_case("localhost") {
        return Ok(vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]);
    }
    let found = lookup_host((host, port)).await.map_err(|error| unresolved().source(error))?;
    Ok(found.map(|address| address.ip()).collect())
}

/// Returns the error that there is no connection: nothing was sent.
pub(in crate::backends) fn unreachable(error: io::Error) -> Error {
    let plain = |message: &str| Error::new(Kind::Unavailable, message);
    let failure = match error.kind() {
        io::ErrorKind::ConnectionRefused => plain("nothing listens there").hint("is the server running, and is the port right?"),
        io::ErrorKind::NotFound => plain("there is no such socket").hint("is the server running, and is the path right?"),
        io::ErrorKind::PermissionDenied => Error::new(Kind::Denied, "this user may not open the server's socket"),
        io::ErrorKind::TimedOut => plain("the server did not answer"),
        io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => plain("the server's network can't be reached"),
        _ => plain("can't connect to the server"),
    };
    failure.source(error)
}

fn unresolved() -> Error {
    Error::new(Kind::Unavailable, "the server's name can't be resolved")
}

/// Makes the kernel notice within `limit` that the server's host is gone, even while nothing is sent.
pub(in crate::backends) fn keep_alive(socket: &OwnedFd, limit: Duration) -> io::Result<()> {
    if sockopt::socket_domain(socket)? == AddressFamily::UNIX {
        return Ok(());
    }
    let second = Duration::from_secs(1);
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, (limit / 3).max(second))?;
    sockopt::set_tcp_keepintvl(socket, (limit / 6).max(second))?;
    sockopt::set_tcp_keepcnt(socket, 3)?;
    sockopt::set_tcp_user_timeout(socket, u32::try_from(limit.as_millis()).unwrap_or(u32::MAX))?;
    Ok(())
}
