//! A socket within this process, to which sqlx connects: it has no place in the file system, has a
//! random name, and serves one client.

use std::{
    io,
    os::{
        linux::net::SocketAddrExt as _,
        unix::net::{SocketAddr, UnixListener as StdListener},
    },
};

use tokio::net::{UnixListener, UnixStream};

use crate::{
    backends::net,
    lock::{Result, random},
};

/// The socket, until its client has come.
pub struct Loopback {
    /// The path for sqlx, without the file.
    pub path: String,
    listener: UnixListener,
}

impl Loopback {
    /// Listens on a new socket, for a client that appends `file` to its path.
    pub fn listen(file: &str) -> Result<Self> {
        let name = format!("dlock-{:016x}{:016x}", random(), random());
        let listen = || {
            let address = SocketAddr::from_abstract_name(format!("{name}{file}"))?;
            let listener = StdListener::bind_addr(&address)?;
            listener.set_nonblocking(true)?;
            UnixListener::from_std(listener)
        };
        Ok(Self {
            listener: listen().map_err(net::unreachable)?,
            path: format!("\0{name}"),
        })
    }

    /// Accepts a client of this process, and closes the socket.
    pub async fn accept(self) -> io::Result<UnixStream> {
        let this_process = i32::try_from(std::process::id()).ok();
        loop {
            let (client, _) = self.listener.accept().await?;
            if client.peer_cred()?.pid() == this_process {
                return Ok(client);
            }
        }
    }
}
