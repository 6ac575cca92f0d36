//! Reaching the server: a socket that is ours, since session locks must outlive a killed dlock by way of it.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::fd::{AsFd as _, OwnedFd},
    time::Duration,
};

use rustix::net::sockopt;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, UnixStream, lookup_host},
};

use super::failure;
use crate::{backends::sql::Server, lock::Result};

/// A byte stream of any kind.
pub(super) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// Connects; the stream, and its socket once more.
pub(super) async fn dial(server: &Server) -> Result<(Box<dyn Stream>, OwnedFd)> {
    match server {
        Server::Unix { path, port } => {
            let socket = path.join(format!(".s.PGSQL.{port}"));
            let stream = UnixStream::connect(socket).await.map_err(failure::unreachable)?;
            let again = stream.as_fd().try_clone_to_owned().map_err(failure::unreachable)?;
            Ok((Box::new(stream), again))
        }
        Server::Tcp { host, port } => {
            let stream = dial_tcp(host, *port).await?;
            let again = stream.as_fd().try_clone_to_owned().map_err(failure::unreachable)?;
            Ok((Box::new(stream), again))
        }
    }
}

/// Connects to the first address that answers.
async fn dial_tcp(host: &str, port: u16) -> Result<TcpStream> {
    let mut failed = None;
    for address in resolve(host, port).await? {
        match TcpStream::connect((address, port)).await {
            Ok(stream) => {
                // Requests are one small packet each: waiting to fill it would cost 40 ms. A refusal only costs time.
                let _ = stream.set_nodelay(true);
                return Ok(stream);
            }
            Err(error) => failed = Some(error),
        }
    }
    Err(failed.map_or_else(|| failure::unresolved(None), failure::unreachable))
}

/// `localhost` and addresses need no resolver, which would start a thread.
async fn resolve(host: &str, port: u16) -> Result<Vec<IpAddr>> {
    if let Ok(address) = host.parse() {
        return Ok(vec![address]);
    }
    if host.eq_ignore_ascii_case("localhost") {
        return Ok(vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]);
    }
    let found = lookup_host((host, port)).await.map_err(|error| failure::unresolved(Some(error)))?;
    Ok(found.map(|address| address.ip()).collect())
}

/// Has the kernel notice within `limit` that the server's host is gone, also while nothing is sent.
pub(super) fn keep_alive(socket: &OwnedFd, limit: Duration) -> io::Result<()> {
    if sockopt::socket_domain(socket)? == rustix::net::AddressFamily::UNIX {
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
