//! What the stores ask of a connection's socket beside its bytes, also while the bytes belong to a
//! client library.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    net::{AddressFamily, sockopt},
};
use tokio::net::{TcpStream, UnixStream};

/// Whether the server's end is open, as far as this host knows.
pub(in crate::backends) fn is_open(socket: &impl AsFd) -> bool {
    has_none_of(PollFlags::RDHUP, socket)
}

/// Like [`is_open`], and nothing was received that was not read yet.
pub(in crate::backends) fn is_quiet(socket: &impl AsFd) -> bool {
    has_none_of(PollFlags::IN | PollFlags::RDHUP, socket)
}

fn has_none_of(flags: PollFlags, socket: &impl AsFd) -> bool {
    let mut events = [PollFd::new(socket, flags)];
    matches!(poll(&mut events, Some(&Timespec::default())), Ok(0))
}

/// Ready when the socket has data or its end. Never ready if the socket can't be watched.
pub(in crate::backends) async fn readable(socket: &OwnedFd) {
    let watch = async {
        let copy = socket.try_clone()?;
        if sockopt::socket_domain(socket)? == AddressFamily::UNIX {
            UnixStream::from_std(copy.into())?.readable().await
        } else {
            TcpStream::from_std(copy.into())?.readable().await
        }
    };
    let watched: io::Result<()> = watch.await;
    if watched.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Sets whether closing the connection discards undelivered data instead of delivering it. A Unix
/// socket has no undelivered data. After a failure, TCP delivers the data.
pub(in crate::backends) fn drop_unsent_on_close(socket: &impl AsFd, drop: bool) {
    let _ = sockopt::set_socket_linger(socket, drop.then_some(Duration::ZERO));
}

/// Makes the kernel notice within `limit` that the server's host is gone, even while nothing is
/// sent. A failure only costs time.
pub(in crate::backends) fn keep_alive(socket: &OwnedFd, limit: Duration) {
    let second = Duration::from_secs(1);
    let set = || {
        if sockopt::socket_domain(socket)? == AddressFamily::UNIX {
            return Ok(());
        }
        sockopt::set_socket_keepalive(socket, true)?;
        sockopt::set_tcp_keepidle(socket, (limit / 3).max(second))?;
        sockopt::set_tcp_keepintvl(socket, (limit / 6).max(second))?;
        sockopt::set_tcp_keepcnt(socket, 3)?;
        sockopt::set_tcp_user_timeout(socket, u32::try_from(limit.as_millis()).unwrap_or(u32::MAX))
    };
    let _: rustix::io::Result<()> = set();
}
