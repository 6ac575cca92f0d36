//! TLS over a connected stream. Verification can't be turned off.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem, pem::PemObject as _},
};
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, client::TlsStream};

use crate::lock::{Error, Kind, Result};

/// TLS. The server's certificate is always verified, against its host name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// Certificates (PEM) of the only authorities to trust, instead of the public ones.
    pub ca_file: Option<PathBuf>,
    /// The client's own certificate chain (PEM), for servers that ask for one; with `key_file`.
    pub cert_file: Option<PathBuf>,
    /// The private key (PEM) of `cert_file`.
    pub key_file: Option<PathBuf>,
}

/// Shakes hands with the server, which must prove to be `host`. `in_clear` begins the URLs of the same store without TLS.
pub(in crate::backends) async fn wrap(options: &Tls, host: &str, stream: TcpStream, in_clear: &str) -> Result<TlsStream<TcpStream>> {
    let name = ServerName::try_from(host.to_owned())
        .map_err(|error| Error::new(Kind::Config, "the host's name can't be one in a certificate").source(error))?;
    let connector = TlsConnector::from(Arc::new(config(options)?));
    connector.connect(name, stream).await.map_err(|error| failed(error, in_clear))
}

/// What a handshake is begun with.
pub(in crate::backends) fn config(options: &Tls) -> Result<ClientConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::new(Kind::Internal, "TLS can't be set up").source(error))?
        .with_root_certificates(roots(options.ca_file.as_deref())?);
    match (&options.cert_file, &options.key_file) {
        (None, None) => Ok(builder.with_no_client_auth()),
        (Some(cert), Some(key)) => builder
            .with_client_auth_cert(certificates(cert)?, private_key(key)?)
            .map_err(|error| Error::new(Kind::Config, "the client certificate and its key don't fit").source(error)),
        _ => Err(Error::new(Kind::Config, "a client certificate needs both cert and key")),
    }
}

/// The authorities to trust: those of a file, or the public ones.
pub(in crate::backends) fn roots(file: Option<&Path>) -> Result<RootCertStore> {
    let Some(file) = file else {
        return Ok(RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() });
    };
    let mut roots = RootCertStore::empty();
    for certificate in certificates(file)? {
        roots
            .add(certificate)
            .map_err(|error| Error::new(Kind::Config, format!("{}: no authority's certificate", file.display())).source(error))?;
    }
    Ok(roots)
}

pub(in crate::backends) fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let read = || CertificateDer::pem_file_iter(file)?.collect::<Result<Vec<_>, pem::Error>>();
    match read() {
        Ok(certificates) if certificates.is_empty() => Err(Error::new(Kind::Config, format!("{}: no certificate in it", file.display()))),
        Ok(certificates) => Ok(certificates),
        Err(error) => Err(unreadable(file, "certificate", error)),
    }
}

pub(in crate::backends) fn private_key(file: &Path) -> Result<PrivateKeyDer<'static>> {
    PrivateKeyDer::from_pem_file(file).map_err(|error| unreadable(file, "private key", error))
}

/// The cause may quote the file, so of the private key's it is left out.
fn unreadable(file: &Path, what: &str, error: pem::Error) -> Error {
    let why = match error {
        pem::Error::Io(error) => error.to_string(),
        _ => format!("no {what} in PEM form in it"),
    };
    Error::new(Kind::Config, format!("{}: {why}", file.display()))
}

/// The TLS handshake failed: nothing was sent.
fn failed(error: io::Error, in_clear: &str) -> Error {
    let cause = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    let failure = match cause {
        Some(rustls::Error::InvalidCertificate(why)) => Error::new(Kind::Denied, format!("the server's certificate is not valid: {why}"))
            .hint(
                "an authority of your own is named with ?cacert=FILE; the host, as the URL, a sentinel or a node names it, must be one that \
                 the certificate names",
            ),
        Some(rustls::Error::AlertReceived(alert)) => Error::new(Kind::Denied, format!("the server ended the TLS handshake: {alert:?}"))
            .hint("if it asks for a client certificate, ?cert=FILE&key=FILE give it"),
        Some(rustls::Error::InvalidMessage(_)) => {
            Error::new(Kind::Config, "the server doesn't speak TLS on this port").hint(format!("{in_clear} connects without TLS"))
        }
        _ => Error::new(Kind::Unavailable, "the connection ended in the TLS handshake"),
    };
    failure.source(error)
}
