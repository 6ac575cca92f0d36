//! TLS over a connected stream. Verification can't be turned off.

use std::{
    io,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::CryptoProvider,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem, pem::PemObject as _},
};
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, client::TlsStream};

use crate::lock::{Error, Kind, Result};

/// TLS. The server's certificate is always verified, against its host name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// Certificates (PEM) of the only authorities to trust, instead of the public ones and the
    /// system's.
    pub ca_file: Option<PathBuf>,
    /// The client's own certificate chain (PEM), for servers that ask for one; with `key_file`.
    pub cert_file: Option<PathBuf>,
    /// The private key (PEM) of `cert_file`.
    pub key_file: Option<PathBuf>,
}

/// Does the TLS handshake; the server must prove to be `host`. `in_clear` is the URL scheme of the
/// same store without TLS.
pub(in crate::backends) async fn wrap(
    options: &Tls,
    host: &str,
    stream: TcpStream,
    in_clear: &str,
) -> Result<TlsStream<TcpStream>> {
    let name = ServerName::try_from(host.to_owned()).map_err(|error| {
        Error::new(
            Kind::Config,
            "the host's name can't be one in a certificate",
        )
        .source(error)
    })?;
    let connector = TlsConnector::from(Arc::new(config(options)?));
    connector
        .connect(name, stream)
        .await
        .map_err(|error| failed(error, in_clear))
}

/// Returns the configuration for a handshake.
pub(in crate::backends) fn config(options: &Tls) -> Result<ClientConfig> {
    config_with(options, |authority| authority)
}

/// Like [`config`], but `check` may wrap or replace the verifier of the server's certificate.
pub(in crate::backends) fn config_with(
    options: &Tls,
    check: impl FnOnce(Arc<dyn ServerCertVerifier>) -> Arc<dyn ServerCertVerifier>,
) -> Result<ClientConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = check(verifier(options.ca_file.as_deref(), &provider)?);
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::new(Kind::Internal, "TLS can't be set up").source(error))?
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    match (&options.cert_file, &options.key_file) {
        (None, None) => Ok(builder.with_no_client_auth()),
        (Some(cert), Some(key)) => builder
            .with_client_auth_cert(certificates(cert)?, private_key(key)?)
            .map_err(|error| {
                Error::new(Kind::Config, "the client certificate and its key don't fit")
                    .source(error)
            }),
        _ => Err(Error::new(
            Kind::Config,
            "a client certificate needs both cert and key",
        )),
    }
}

/// Returns the verifier of a server's certificate and name: against the authorities of a file, or
/// else the public ones and the system's.
fn verifier(
    file: Option<&Path>,
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<dyn ServerCertVerifier>> {
    let Some(file) = file else {
        let compiled = RootCertStore {
            roots: webpki_roots::TLS_SERVER_ROOTS.to_vec(),
        };
        let compiled = of_roots(compiled, provider)
            .ok_or_else(|| Error::new(Kind::Internal, "TLS can't be set up"))?;
        return Ok(Arc::new(TrustedRoots {
            compiled,
            system: OnceLock::new(),
            provider: Arc::clone(provider),
        }));
    };
    let mut roots = RootCertStore::empty();
    for certificate in certificates(file)? {
        roots.add(certificate).map_err(|error| {
            Error::new(
                Kind::Config,
                format!("{}: no authority's certificate", file.display()),
            )
            .source(error)
        })?;
    }
    Ok(of_roots(roots, provider)
        .ok_or_else(|| Error::new(Kind::Config, "no authority's certificate to check with"))?)
}

fn of_roots(
    roots: RootCertStore,
    provider: &Arc<CryptoProvider>,
) -> Option<Arc<WebPkiServerVerifier>> {
    WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider))
        .build()
        .ok()
}

/// The public authorities, which are compiled in, and the system's (`SSL_CERT_FILE`, `SSL_CERT_DIR`
/// or the usual places).
///
/// The system's authorities are read only for a certificate that no public authority has signed:
/// reading them takes longer than a run.
#[derive(Debug)]
struct TrustedRoots {
    compiled: Arc<WebPkiServerVerifier>,
    system: OnceLock<Option<Arc<WebPkiServerVerifier>>>,
    provider: Arc<CryptoProvider>,
}

impl TrustedRoots {
    fn system(&self) -> Option<&WebPkiServerVerifier> {
        let read = || {
            let mut roots = RootCertStore::empty();
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            of_roots(roots, &self.provider)
        };
        self.system.get_or_init(read).as_deref()
    }
}

impl ServerCertVerifier for TrustedRoots {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> std::result::Result<ServerCertVerified, rustls::Error> {
        match self
            .compiled
            .verify_server_cert(end_entity, intermediates, name, ocsp, now)
        {
            Err(error @ rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer)) => {
                match self.system() {
                    Some(system) => {
                        system.verify_server_cert(end_entity, intermediates, name, ocsp, now)
                    }
                    None => Err(error),
                }
            }
            answer => answer,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        self.compiled
            .verify_tls12_signature(message, cert, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        self.compiled
            .verify_tls13_signature(message, cert, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.compiled.supported_verify_schemes()
    }
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let read = || CertificateDer::pem_file_iter(file)?.collect::<Result<Vec<_>, pem::Error>>();
    match read() {
        Ok(certificates) if certificates.is_empty() => Err(Error::new(
            Kind::Config,
            format!("{}: no certificate in it", file.display()),
        )),
        Ok(certificates) => Ok(certificates),
        Err(error) => Err(unreadable(file, "certificate", error)),
    }
}

fn private_key(file: &Path) -> Result<PrivateKeyDer<'static>> {
    PrivateKeyDer::from_pem_file(file).map_err(|error| unreadable(file, "private key", error))
}

/// Returns the error. A parse error may quote the file, so it is left out.
fn unreadable(file: &Path, what: &str, error: pem::Error) -> Error {
    let why = match error {
        pem::Error::Io(error) => error.to_string(),
        _ => format!("no {what} in PEM form in it"),
    };
    Error::new(Kind::Config, format!("{}: {why}", file.display()))
}

/// Returns the error that the TLS handshake failed: nothing was sent.
fn failed(error: io::Error, in_clear: &str) -> Error {
    let cause = error
        .get_ref()
        .and_then(|inner| inner.downcast_ref::<rustls::Error>());
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
