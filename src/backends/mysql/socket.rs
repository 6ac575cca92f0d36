//! The socket of a connection that sqlx opens and hides.
//!
//! The guardian needs the socket, so that a session lock outlives a killed dlock; and
//! the socket's state saves requests over a dead connection. The socket is identified by its absence before the
//! connection and by its peer.

use std::{
    collections::HashSet,
    ffi::OsString,
    fs, io,
    os::{
        fd::{AsRawFd as _, OwnedFd, RawFd},
        unix::ffi::OsStringExt as _,
    },
    path::PathBuf,
    time::Duration,
};

use filedescriptor::FileDescriptor;
use rustix::{
    fs::OFlags,
    net::{AddressFamily, SocketAddrUnix, getpeername, sockopt},
};

use crate::backends::sql::SqlServer;

/// The open sockets, by the names that the kernel gives them and never reuses.
#[derive(Debug, Default)]
pub(super) struct Sockets(HashSet<String>);

impl Sockets {
    /// Returns the sockets of this process.
    pub(super) fn of_this_process() -> Self {
        Self(all().into_iter().map(|(_, name)| name).collect())
    }

    /// Returns the socket that is new since then and connected to `server`; `None` unless there is exactly one.
    pub(super) fn newest(&self, server: &SqlServer) -> Option<OwnedFd> {
        let new = all().into_iter().filter(|(_, name)| !self.0.contains(name));
        // Another thread may have closed a socket meanwhile, and another socket may have its number.
        let same = |(number, name)| duplicate(number).ok().filter(|socket| name_of(socket.as_raw_fd()) == Some(name));
        let mut ours = new.filter_map(same).filter(|socket| leads_to(socket, server));
        let found = ours.next()?;
        ours.next().is_none().then_some(found)
    }
}

/// Whether /proc lists this process's sockets.
pub(super) fn has_proc() -> bool {
    fs::read_dir("/proc/self/fd").is_ok()
}

/// Returns the open sockets by number and name; none without /proc.
fn all() -> Vec<(RawFd, String)> {
    let Ok(entries) = fs::read_dir("/proc/self/fd") else { return Vec::new() };
    let read = |entry: io::Result<fs::DirEntry>| {
        let number = entry.ok()?.file_name().to_str()?.parse().ok()?;
        Some((number, name_of(number)?))
    };
    entries.filter_map(read).collect()
}

/// Returns a socket's name; `None` for another descriptor.
fn name_of(number: RawFd) -> Option<String> {
    let name = fs::read_link(format!("/proc/self/fd/{number}")).ok()?.to_str()?.to_owned();
    name.starts_with("socket:").then_some(name)
}

fn duplicate(number: RawFd) -> io::Result<OwnedFd> {
    let file = FileDescriptor::dup(&number).and_then(|copy| copy.as_file()).map_err(io::Error::other)?;
    Ok(file.into())
}

/// Whether the socket is non-blocking, as Tokio's are, and connected to `server`.
fn leads_to(socket: &OwnedFd, server: &SqlServer) -> bool {
    let nonblocking = rustix::fs::fcntl_getfl(socket).is_ok_and(|flags| flags.contains(OFlags::NONBLOCK));
    let Ok(Some(peer)) = getpeername(socket) else { return false };
    nonblocking
        && match server {
            SqlServer::Unix { path, .. } => SocketAddrUnix::try_from(peer).is_ok_and(|peer| unix_path(&peer).as_deref() == Some(path)),
            SqlServer::Tcp { port, .. } => std::net::SocketAddr::try_from(peer).is_ok_and(|peer| peer.port() == *port),
        }
}

fn unix_path(peer: &SocketAddrUnix) -> Option<PathBuf> {
    let bytes = peer.path_bytes()?.to_vec();
    Some(OsString::from_vec(bytes).into())
}

/// Ready when the socket has data or its end. Never ready if the socket can't be watched.
pub(super) async fn readable(socket: &OwnedFd) {
    let watch = async {
        let copy = socket.try_clone()?;
        match sockopt::socket_domain(socket)? {
            AddressFamily::UNIX => tokio::net::UnixStream::from_std(copy.into())?.readable().await,
            _ => tokio::net::TcpStream::from_std(copy.into())?.readable().await,
        }
    };
    let watched: io::Result<()> = watch.await;
    if watched.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Sends small packets at once: waiting to fill a packet would cost 40 ms. A failure only costs time.
pub(super) fn no_delay(socket: &OwnedFd) {
    let _ = sockopt::set_tcp_nodelay(socket, true);
}

/// Sets whether closing the connection discards undelivered data instead of delivering it. A Unix socket has no
/// undelivered data. After a failure, TCP delivers the data.
pub(super) fn drop_unsent_on_close(socket: &OwnedFd, drop: bool) {
    let _ = sockopt::set_socket_linger(socket, drop.then_some(Duration::ZERO));
}
