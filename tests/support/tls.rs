//! A certificate authority of the tests, new for each test.

use std::{
    fs,
    path::{Path, PathBuf},
};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

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
        let mut authority = CertificateParams::new(Vec::<String>::new()).expect("no names");
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        authority
            .distinguished_name
            .push(rcgen::DnType::CommonName, "dlock test authority");
        let issuer = CertifiedIssuer::self_signed(authority, KeyPair::generate().expect("a key"))
            .expect("an authority");
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let key = KeyPair::generate().expect("a key");
        let certificate = CertificateParams::new(names)
            .expect("names")
            .signed_by(&key, &issuer)
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
