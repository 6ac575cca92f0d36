//! Opens a connection, under TLS as PostgreSQL's protocol negotiates it.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::{failure, options::TLS};
use crate::{
    backends::{
        net::{self, Stream, tls::Handshake},
        sql::{SqlOptions, SqlServer, TlsMode},
    },
    lock::Result,
};

/// The request for TLS: its length, and a number in place of a version.
const REQUEST: [u8; 8] = [0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f];

/// Connects, and encrypts the connection if there is a handshake. The login is not bound to the TLS
/// channel, since that needs the hash of the certificate.
pub(super) async fn dial(options: &SqlOptions, handshake: Option<Handshake>) -> Result<Stream> {
    let mut stream = match &options.server {
        SqlServer::Unix { path, port } => {
            net::connect_unix(&path.join(format!(".s.PGSQL.{port}"))).await?
        }
        SqlServer::Tcp { host, port } => net::connect(host, *port).await?,
    };
    let Some(handshake) = handshake else {
        return Ok(stream);
    };
    let asked = async {
        stream.write_all(&REQUEST).await?;
        stream.flush().await?;
        stream.read_u8().await
    };
    match asked.await.map_err(net::unreachable)? {
        b'S' => net::encrypt(stream, handshake).await,
        b'N' if options.tls == TlsMode::Prefer => Ok(stream),
        b'N' => Err(TLS.no_tls()),
        _ => Err(failure::no_postgres()),
    }
}
