//! The parameters of a TLS handshake, with the modes of libpq and MySQL's clients.
//!
//! If the user names an authority, no other one is trusted.

use std::sync::Arc;

use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    pki_types::{CertificateDer, ServerName, UnixTime},
};

use tokio_rustls::TlsConnector;

use super::{SqlOptions, TlsMode};
use crate::{
    backends::net,
    lock::{Error, Kind, Result},
};

/// Returns the parameters for `options`.
///
/// # Errors
/// A file that can't be read, or contains no certificate or key.
fn config(options: &SqlOptions) -> Result<ClientConfig> {
    net::tls::config_with(&options.files, |authority| match options.tls {
        TlsMode::VerifyFull => authority,
        // As with libpq: a named authority is checked in every mode.
        mode => Arc::new(Lenient {
            authority,
            checks: mode == TlsMode::VerifyCa || options.files.ca_file.is_some(),
        }),
    })
}

/// Returns what a handshake with `host` needs.
///
/// # Errors
/// As [`config`], or if no certificate can be for the host's name.
pub fn connector(options: &SqlOptions, host: &str) -> Result<(TlsConnector, ServerName<'static>)> {
    let name = ServerName::try_from(host.to_owned()).map_err(|error| {
        Error::new(
            Kind::Config,
            "the host's name can't be one in a certificate",
        )
        .source(error)
    })?;
    Ok((TlsConnector::from(Arc::new(config(options)?)), name))
}

/// The verifier of `prefer`, `require` and `verify-ca`, which checks no host name, and without an
/// authority nothing.
#[derive(Debug)]
struct Lenient {
    authority: Arc<dyn ServerCertVerifier>,
    checks: bool,
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
        if !self.checks {
            return Ok(ServerCertVerified::assertion());
        }
        match self
            .authority
            .verify_server_cert(end_entity, intermediates, name, ocsp, now)
        {
            // The name is checked last, after the chain.
            Err(rustls::Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            answer => answer,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.authority
            .verify_tls12_signature(message, cert, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.authority
            .verify_tls13_signature(message, cert, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.authority.supported_verify_schemes()
    }
}
