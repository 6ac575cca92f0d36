//! The one connection of all stores: bytes to and from a server, in clear or under TLS.

use std::{
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    path::Path,
};

use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, UnixStream},
};
use tokio_rustls::client::TlsStream;

use super::{
    dial::{dial, unreachable},
    tls::{Handshake, Tls, TlsWords, Trust},
};
use crate::lock::Result;

/// A connection to a server.
pub(in crate::backends) type Stream = Box<dyn Bytes>;

/// A byte stream of any kind, over a socket.
pub(in crate::backends) trait Bytes:
    AsyncRead + AsyncWrite + Unpin + Send
{
    fn socket(&self) -> BorrowedFd<'_>;
}

impl Bytes for TcpStream {
    fn socket(&self) -> BorrowedFd<'_> {
        self.as_fd()
    }
}

impl Bytes for UnixStream {
    fn socket(&self) -> BorrowedFd<'_> {
        self.as_fd()
    }
}

impl Bytes for TlsStream<Stream> {
    fn socket(&self) -> BorrowedFd<'_> {
        self.get_ref().0.socket()
    }
}

/// Connects to the host's first address that answers, in clear.
pub(in crate::backends) async fn connect(host: &str, port: u16) -> Result<Stream> {
    Ok(Box::new(dial(host, port).await?))
}

/// Connects to a Unix socket.
pub(in crate::backends) async fn connect_unix(path: &Path) -> Result<Stream> {
    let stream = UnixStream::connect(path).await.map_err(unreachable)?;
    Ok(Box::new(stream))
}

/// Like [`connect`], under TLS if it is wanted. The server must prove to be `host`.
pub(in crate::backends) async fn open(
    host: &str,
    port: u16,
    tls: Option<&Tls>,
    words: &'static TlsWords,
) -> Result<Stream> {
    let handshake = tls.map(|tls| Handshake::new(tls, Trust::Name, host, words));
    let handshake = handshake.transpose()?;
    let stream = connect(host, port).await?;
    match handshake {
        Some(handshake) => encrypt(stream, handshake).await,
        None => Ok(stream),
    }
}

/// Does the TLS handshake, on a stream whose next bytes it is.
pub(in crate::backends) async fn encrypt(stream: Stream, handshake: Handshake) -> Result<Stream> {
    Ok(Box::new(handshake.shake(stream).await?))
}

/// Returns a duplicate of the socket, for when the stream belongs to a client library.
pub(in crate::backends) fn socket_of(stream: &Stream) -> Result<OwnedFd> {
    stream.socket().try_clone_to_owned().map_err(unreachable)
}
