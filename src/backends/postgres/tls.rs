//! TLS as PostgreSQL's clients name it, over a connected stream.

use std::{path::Path, sync::Arc};

use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::CryptoProvider,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem, pem::PemObject as _},
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_rustls::TlsConnector;

use super::{dial::Stream, failure};
use crate::{
    backends::sql::{Options, Server, TlsMode},
    lock::{Error, Kind, Result},
};

/// How to encrypt a connection.
pub(super) struct Tls {
    connector: TlsConnector,
    name: ServerName<'static>,
    /// A server that doesn't speak it is believed in clear.
    optional: bool,
}

/// Asks the server for TLS: its length, and a number in the place of a version.
const REQUEST: [u8; 8] = [0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f];

impl Tls {
    /// What `options` ask for; nothing is read from disk otherwise.
    pub(super) fn new(options: &Options) -> Result<Option<Self>> {
        let Server::Tcp { host, .. } = &options.server else { return Ok(None) };
        if options.tls == TlsMode::Disable {
            return Ok(None);
        }
        let name = ServerName::try_from(host.clone())
            .map_err(|error| Error::new(Kind::Config, "the host's name can't be one in a certificate").source(error))?;
        let connector = TlsConnector::from(Arc::new(config(options)?));
        Ok(Some(Self { connector, name, optional: options.tls == TlsMode::Prefer }))
    }

    /// Has the stream encrypted. The password is not bound to it: PostgreSQL's proof of that needs the certificate's own hash.
    pub(super) async fn shake_hands(self, mut stream: Box<dyn Stream>) -> Result<Box<dyn Stream>> {
        let asked = async {
            stream.write_all(&REQUEST).await?;
            stream.flush().await?;
            stream.read_u8().await
        };
        match asked.await.map_err(failure::closed)? {
            b'S' => Ok(Box::new(self.connector.connect(self.name, stream).await.map_err(failure::handshake)?)),
            b'N' if self.optional => Ok(stream),
            b'N' => Err(Error::new(Kind::Config, "the server speaks no TLS").hint("?sslmode=disable connects in clear")),
            _ => Err(failure::no_postgres()),
        }
    }
}

fn config(options: &Options) -> Result<ClientConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::new(Kind::Internal, "TLS can't be set up").source(error))?;
    // As with libpq: whoever names an authority has it checked, in whatever mode.
    let check = match options.tls {
        TlsMode::VerifyFull => Check::Full,
        TlsMode::Disable | TlsMode::Prefer | TlsMode::Require if options.ca_file.is_none() => Check::Nothing,
        _ => Check::Authority,
    };
    let builder = match check {
        Check::Full => builder.with_root_certificates(roots(options)?),
        Check::Authority | Check::Nothing => {
            let authority = match check {
                Check::Nothing => None,
                _ => Some(
                    WebPkiServerVerifier::builder_with_provider(Arc::new(roots(options)?), Arc::clone(&provider))
                        .build()
                        .map_err(|error| Error::new(Kind::Config, "no authority's certificate to check with").source(error))?,
                ),
            };
            builder.dangerous().with_custom_certificate_verifier(Arc::new(Lenient { authority, provider }))
        }
    };
    match (&options.cert_file, &options.key_file) {
        (None, None) => Ok(builder.with_no_client_auth()),
        (Some(cert), Some(key)) => {
            let key_der = PrivateKeyDer::from_pem_file(key).map_err(|error| unreadable(key, "private key", error))?;
            builder
                .with_client_auth_cert(certificates(cert)?, key_der)
                .map_err(|error| Error::new(Kind::Config, "the client certificate and its key don't fit").source(error))
        }
        _ => Err(Error::new(Kind::Config, "a client certificate needs both cert and key")),
    }
}

#[derive(Clone, Copy)]
enum Check {
    Full,
    Authority,
    Nothing,
}

/// What `prefer`, `require` and `verify-ca` stand for: no host name is checked, and without an authority nothing.
#[derive(Debug)]
struct Lenient {
    authority: Option<Arc<WebPkiServerVerifier>>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Lenient {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let Some(authority) = &self.authority else { return Ok(ServerCertVerified::assertion()) };
        match authority.verify_server_cert(end_entity, intermediates, name, ocsp, now) {
            // Found out last, after the chain was checked.
            Err(rustls::Error::InvalidCertificate(CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. })) => {
                Ok(ServerCertVerified::assertion())
            }
            answer => answer,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(message, cert, signature, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(message, cert, signature, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

fn roots(options: &Options) -> Result<RootCertStore> {
    let Some(file) = &options.ca_file else {
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

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let read = || CertificateDer::pem_file_iter(file)?.collect::<Result<Vec<_>, pem::Error>>();
    match read() {
        Ok(certificates) if certificates.is_empty() => Err(Error::new(Kind::Config, format!("{}: no certificate in it", file.display()))),
        Ok(certificates) => Ok(certificates),
        Err(error) => Err(unreadable(file, "certificate", error)),
    }
}

/// The cause may quote the file, so of the private key's it is left out.
fn unreadable(file: &Path, what: &str, error: pem::Error) -> Error {
    let why = match error {
        pem::Error::Io(error) => error.to_string(),
        _ => format!("no {what} in PEM form in it"),
    };
    Error::new(Kind::Config, format!("{}: {why}", file.display()))
}
