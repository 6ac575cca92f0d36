//! TLS over a connection. A store's URL says what is verified ([`Trust`]); without a word of it, all
//! is.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{self, CryptoProvider},
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem, pem::PemObject as _},
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::{TlsConnector, client::TlsStream};

pub(in crate::backends) use super::certificate::TlsWords;
use crate::lock::{Error, Kind, Result};

/// The files of TLS.
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

/// What a server must prove.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::backends) enum Trust {
    /// Nothing: only listeners are kept out.
    Any,
    /// A certificate of a trusted authority, for any host.
    Authority,
    /// A certificate of a trusted authority for this host.
    Name,
}

/// A TLS handshake that is ready to begin: all its files are read.
pub(in crate::backends) struct Handshake {
    connector: TlsConnector,
    name: ServerName<'static>,
    words: &'static TlsWords,
}

impl Handshake {
    pub(in crate::backends) fn new(
        options: &Tls,
        trust: Trust,
        host: &str,
        words: &'static TlsWords,
    ) -> Result<Self> {
        let name = ServerName::try_from(host.to_owned()).map_err(|error| {
            Error::new(
                Kind::Config,
                "the host's name can't be one in a certificate",
            )
            .source(error)
        })?;
        let mut config = config(options, trust)?;
        config.alpn_protocols = words.protocol.map(<[u8]>::to_vec).into_iter().collect();
        Ok(Self {
            connector: TlsConnector::from(Arc::new(config)),
            name,
            words,
        })
    }

    pub(super) async fn shake<S: AsyncRead + AsyncWrite + Unpin>(
        self,
        stream: S,
    ) -> Result<TlsStream<S>> {
        let shaken = self.connector.connect(self.name, stream).await;
        shaken.map_err(|error| self.words.handshake(error))
    }
}

fn config(options: &Tls, trust: Trust) -> Result<ClientConfig> {
    let provider = Arc::new(crypto::ring::default_provider());
    let verifier = Verifier::new(trust, options.ca_file.as_deref(), &provider)?;
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::new(Kind::Internal, "TLS can't be set up").source(error))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier));
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

/// The verifier of a server's certificate and name: against the authorities of a file, or else the
/// public ones, which are compiled in, and the system's (`SSL_CERT_FILE`, `SSL_CERT_DIR` or the
/// usual places).
///
/// The system's authorities are read only for a certificate that no public authority has signed:
/// reading them takes longer than a run.
#[derive(Debug)]
struct Verifier {
    trust: Trust,
    authorities: Arc<WebPkiServerVerifier>,
    /// Whether the authorities are those of a file.
    named: bool,
    system: OnceLock<Option<Arc<WebPkiServerVerifier>>>,
    provider: Arc<CryptoProvider>,
}

impl Verifier {
    fn new(trust: Trust, file: Option<&Path>, provider: &Arc<CryptoProvider>) -> Result<Self> {
        let mut roots = RootCertStore::empty();
        let file = file.filter(|_| trust != Trust::Any);
        match file {
            None => roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
            Some(file) => {
                for certificate in certificates(file)? {
                    roots.add(certificate).map_err(|error| {
                        Error::new(
                            Kind::Config,
                            format!("{}: no authority's certificate", file.display()),
                        )
                        .source(error)
                    })?;
                }
            }
        }
        let authorities = of_roots(roots, provider)
            .ok_or_else(|| Error::new(Kind::Config, "no authority's certificate to check with"))?;
        Ok(Self {
            trust,
            authorities,
            named: file.is_some(),
            system: OnceLock::new(),
            provider: Arc::clone(provider),
        })
    }

    fn system(&self) -> Option<&WebPkiServerVerifier> {
        let read = || {
            let mut roots = RootCertStore::empty();
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            of_roots(roots, &self.provider)
        };
        self.system.get_or_init(read).as_deref()
    }
}

fn of_roots(
    roots: RootCertStore,
    provider: &Arc<CryptoProvider>,
) -> Option<Arc<WebPkiServerVerifier>> {
    WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider))
        .build()
        .ok()
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if self.trust == Trust::Any {
            return Ok(ServerCertVerified::assertion());
        }
        let by = |authorities: &WebPkiServerVerifier| {
            authorities.verify_server_cert(end_entity, intermediates, name, ocsp, now)
        };
        let unknown = rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer);
        let mut answer = by(&self.authorities);
        if !self.named
            && answer.as_ref().is_err_and(|error| *error == unknown)
            && let Some(system) = self.system()
        {
            answer = by(system);
        }
        match answer {
            // The name is checked last, after the chain.
            Err(rustls::Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) if self.trust == Trust::Authority => Ok(ServerCertVerified::assertion()),
            Err(error) if error == unknown && is_self_signed(end_entity) => {
                Err(CertificateError::ApplicationVerificationFailure.into())
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
        let known = &self.provider.signature_verification_algorithms;
        crypto::verify_tls12_signature(message, cert, signature, known)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.provider.signature_verification_algorithms;
        crypto::verify_tls13_signature(message, cert, signature, known)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        let known = &self.provider.signature_verification_algorithms;
        known.supported_schemes()
    }
}

fn is_self_signed(certificate: &CertificateDer<'_>) -> bool {
    webpki::EndEntityCert::try_from(certificate)
        .is_ok_and(|certificate| certificate.issuer() == certificate.subject())
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
