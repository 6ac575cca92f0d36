//! A socket within this process, to which sqlx connects: it has no place in the file system, and
//! serves one client.

use std::{
    io,
    os::{
        linux::net::SocketAddrExt as _,
        unix::net::{SocketAddr, UnixListener as StdListener},
    },
};

use tokio::net::{UnixListener, UnixStream};

/// Listens on a socket of this name.
pub fn listen(name: &str) -> io::Result<UnixListener> {
    let listener = StdListener::bind_addr(&SocketAddr::from_abstract_name(name)?)?;
    listener.set_nonblocking(true)?;
    UnixListener::from_std(listener)
}

/// Accepts a client of this process, and closes the socket.
pub async fn accept(listener: UnixListener) -> io::Result<UnixStream> {
    let this_process = i32::try_from(std::process::id()).ok();
    loop {
        let (client, _) = listener.accept().await?;
        if client.peer_cred()?.pid() == this_process {
            return Ok(client);
        }
    }
}
