//! The socket of a session, whose state saves requests over a dead connection.

use std::{io, os::fd::OwnedFd, time::Duration};

use rustix::net::{AddressFamily, sockopt};

/// Ready when the socket has data or its end. Never ready if the socket can't be watched.
pub(super) async fn readable(socket: &OwnedFd) {
    let watch = async {
        let copy = socket.try_clone()?;
        match sockopt::socket_domain(socket)? {
            AddressFamily::UNIX => {
                tokio::net::UnixStream::from_std(copy.into())?
                    .readable()
                    .await
            }
            _ => {
                tokio::net::TcpStream::from_std(copy.into())?
                    .readable()
                    .await
            }
        }
    };
    let watched: io::Result<()> = watch.await;
    if watched.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Sets whether closing the connection discards undelivered data instead of delivering it. A Unix
/// socket has no undelivered data. After a failure, TCP delivers the data.
pub(super) fn drop_unsent_on_close(socket: &OwnedFd, drop: bool) {
    let _ = sockopt::set_socket_linger(socket, drop.then_some(Duration::ZERO));
}
