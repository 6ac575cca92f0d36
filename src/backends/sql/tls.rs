//! What a TLS handshake is begun with, as libpq and MySQL's clients mean their modes.
//!
//! An authority that the user names is the only one that is trusted then.

use std::sync::Arc;

use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::CryptoProvider,
    pki_types::{CertificateDer, ServerName, UnixTime},
};

use super::{Options, TlsMode};
use crate::{
    backends::net::tls::{certificates, private_key, roots},
    lock::{Error, Kind, Result},
};

/// What `options` ask for.
///
/// # Errors
/// A file that can't be read, or has nothing of use in it.
pub fn config(options: &Options) -> Result<ClientConfig> {
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
        Check::Full => builder.with_root_certificates(roots(options.ca_file.as_deref())?),
        Check::Authority | Check::Nothing => {
            let authority = match check {
                Check::Nothing => None,
                _ => Some(
                    WebPkiServerVerifier::builder_with_provider(Arc::new(roots(options.ca_file.as_deref())?), Arc::clone(&provider))
                        .build()
                        .map_err(|error| Error::new(Kind::Config, "no authority's certificate to check with").source(error))?,
                ),
            };
            builder.dangerous().with_custom_certificate_verifier(Arc::new(Lenient { authority, provider }))
        }
    };
    match (&options.cert_file, &options.key_file) {
        (None, None) => Ok(builder.with_no_client_auth()),
        (Some(cert), Some(key)) => builder
            .with_client_auth_cert(certificates(cert)?, private_key(key)?)
            .map_err(|error| Error::new(Kind::Config, "the client certificate and its key don't fit").source(error)),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backends::sql::Server;

    #[test]
    fn a_named_authority_is_the_only_one() {
        let mut options = Options::new(Server::Tcp { host: "db".into(), port: 1 });
        assert!(roots(options.ca_file.as_deref()).unwrap().len() > 50, "the public ones");
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ca.pem");
        let mut params = rcgen::CertificateParams::new(Vec::<String>::new()).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let ours = params.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap();
        std::fs::write(&file, ours.pem()).unwrap();
        options.ca_file = Some(file);
        assert_eq!(roots(options.ca_file.as_deref()).unwrap().len(), 1);
    }
}
