//! TLS over a connected stream, as PostgreSQL's protocol negotiates it.

use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_rustls::TlsConnector;

use super::{dial::Stream, failure};
use crate::{
    backends::sql::{SqlOptions, SqlServer, TlsMode, tls},
    lock::{Error, Kind, Result},
};

/// How to encrypt a connection.
pub(super) struct PostgresTls {
    connector: TlsConnector,
    name: ServerName<'static>,
    /// Whether to connect in clear to a server that doesn't speak TLS.
    optional: bool,
}

/// The request for TLS: its length, and a number in place of a version.
const REQUEST: [u8; 8] = [0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f];

impl PostgresTls {
    /// Returns what `options` need for TLS; `None`, with no file read, if they need none.
    pub(super) fn new(options: &SqlOptions) -> Result<Option<Self>> {
        let SqlServer::Tcp { host, .. } = &options.server else {
            return Ok(None);
        };
        if options.tls == TlsMode::Disable {
            return Ok(None);
        }
        let (connector, name) = tls::connector(options, host)?;
        Ok(Some(Self {
            connector,
            name,
            optional: options.tls == TlsMode::Prefer,
        }))
    }

    /// Encrypts the stream. The login is not bound to the TLS channel, since that needs the hash of
    /// the certificate.
    pub(super) async fn shake_hands(self, mut stream: Box<dyn Stream>) -> Result<Box<dyn Stream>> {
        let asked = async {
            stream.write_all(&REQUEST).await?;
            stream.flush().await?;
            stream.read_u8().await
        };
        match asked.await.map_err(failure::closed)? {
            b'S' => Ok(Box::new(
                self.connector
                    .connect(self.name, stream)
                    .await
                    .map_err(failure::handshake)?,
            )),
            b'N' if self.optional => Ok(stream),
            b'N' => Err(Error::new(Kind::Config, "the server speaks no TLS")
                .hint("?sslmode=disable connects in clear")),
            _ => Err(failure::no_postgres()),
        }
    }
}
