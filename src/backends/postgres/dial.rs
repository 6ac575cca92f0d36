//! Connects to the server with a socket of this module, which lets a session lock outlive a killed
//! dlock.

use std::os::fd::{AsFd as _, OwnedFd};

use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::UnixStream,
};

use crate::{
    backends::{net, sql::SqlServer},
    lock::Result,
};

/// A byte stream of any kind.
pub(super) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// Connects, and returns the stream and a duplicate of its socket.
pub(super) async fn dial(server: &SqlServer) -> Result<(Box<dyn Stream>, OwnedFd)> {
    match server {
        SqlServer::Unix { path, port } => {
            let socket = path.join(format!(".s.PGSQL.{port}"));
            let stream = UnixStream::connect(socket)
                .await
                .map_err(net::unreachable)?;
            let again = stream
                .as_fd()
                .try_clone_to_owned()
                .map_err(net::unreachable)?;
            Ok((Box::new(stream), again))
        }
        SqlServer::Tcp { host, port } => {
            let stream = net::dial(host, *port).await?;
            let again = stream
                .as_fd()
                .try_clone_to_owned()
                .map_err(net::unreachable)?;
            Ok((Box::new(stream), again))
        }
    }
}
