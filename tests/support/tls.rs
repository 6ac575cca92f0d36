//! A certificate authority of the tests, new for each test.

use std::{
    fs,
    path::{Path, PathBuf},
};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, date_time_ymd};

/// What is wrong with a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    None,
    /// It signs itself.
    SelfSigned,
    /// It signs itself, as an authority would.
    Authority,
    /// It expired on 2025-11-22.
    Expired,
    /// It is not valid before 2120-01-01.
    Early,
}

/// A server's certificate and key, and the authority that signed the certificate.
#[derive(Clone, Debug)]
pub struct Certificates {
    pub ca: PathBuf,
    pub certificate: PathBuf,
    pub key: PathBuf,
}

impl Certificates {
    /// Creates an authority and a certificate for `names` in `folder`.
    pub fn make(folder: &Path, names: &[&str]) -> Self {
        Self::flawed(folder, names, Flaw::None)
    }

    pub fn flawed(folder: &Path, names: &[&str], flaw: Flaw) -> Self {
        let mut authority = CertificateParams::new(Vec::<String>::new()).expect("no names");
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        authority
            .distinguished_name
            .push(rcgen::DnType::CommonName, "dlock test authority");
        let issuer = CertifiedIssuer::self_signed(authority, KeyPair::generate().expect("a key"))
            .expect("an authority");
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(names).expect("names");
        match flaw {
            Flaw::None | Flaw::SelfSigned => {}
            Flaw::Authority => params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained),
            Flaw::Expired => params.not_after = date_time_ymd(2025, 11, 22),
            Flaw::Early => params.not_before = date_time_ymd(2120, 1, 1),
        }
        let certificate = match flaw {
            Flaw::SelfSigned | Flaw::Authority => params.self_signed(&key),
            _ => params.signed_by(&key, &issuer),
        }
        .expect("a certificate");
        let files = Self {
            ca: folder.join("ca.pem"),
            certificate: folder.join("server.pem"),
            key: folder.join("server.key"),
        };
        fs::write(&files.ca, issuer.pem()).expect("ca.pem");
        fs::write(&files.certificate, certificate.pem()).expect("server.pem");
        fs::write(&files.key, key.serialize_pem()).expect("server.key");
        files
    }
}
