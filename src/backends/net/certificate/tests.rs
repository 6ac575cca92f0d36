use std::{fs, path::PathBuf, sync::Arc};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, date_time_ymd,
};
use rustls::{RootCertStore, ServerConfig, pki_types::PrivateKeyDer, server::WebPkiClientVerifier};
use tokio::io::AsyncWriteExt as _;
use tokio_rustls::TlsAcceptor;

use super::*;
use crate::{
    backends::net::tls::{Handshake, Tls, Trust},
    lock::Result,
};

static WORDS: TlsWords = TlsWords {
    unverified: Some("?tls=any"),
    ..TlsWords::of_scheme("store://")
};

fn params(names: &[&str]) -> CertificateParams {
    let names: Vec<_> = names.iter().map(ToString::to_string).collect();
    CertificateParams::new(names).unwrap()
}

fn authority() -> CertifiedIssuer<'static, KeyPair> {
    let mut params = params(&[]);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params
        .distinguished_name
        .push(DnType::CommonName, "an authority");
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// A server's certificate and key, and a file of the authorities that its clients trust.
struct Case {
    certificate: rcgen::Certificate,
    key: KeyPair,
    trusted: Option<String>,
}

/// A certificate of an authority that is trusted.
fn signed(params: &CertificateParams) -> Case {
    let (authority, key) = (authority(), KeyPair::generate().unwrap());
    Case {
        certificate: params.signed_by(&key, &authority).unwrap(),
        key,
        trusted: Some(authority.pem()),
    }
}

/// A certificate that signs itself, which no client trusts.
fn self_signed(params: &CertificateParams) -> Case {
    let key = KeyPair::generate().unwrap();
    Case {
        certificate: params.self_signed(&key).unwrap(),
        key,
        trusted: None,
    }
}

/// Does the handshake with `db1`.
async fn shake(case: &Case, trust: Trust, asks: bool) -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let file = |pem: &String| -> PathBuf {
        let file = folder.path().join("ca.pem");
        fs::write(&file, pem).unwrap();
        file
    };
    let options = Tls {
        ca_file: case.trusted.as_ref().map(file),
        ..Tls::default()
    };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let server = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[&rustls::version::TLS12])
        .unwrap();
    let server = if asks {
        let mut roots = RootCertStore::empty();
        roots.add(authority().der().clone()).unwrap();
        let roots = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
        server.with_client_cert_verifier(roots.build().unwrap())
    } else {
        server.with_no_client_auth()
    };
    let key = PrivateKeyDer::try_from(case.key.serialize_der()).unwrap();
    let server = server.with_single_cert(vec![case.certificate.der().clone()], key);
    let acceptor = TlsAcceptor::from(Arc::new(server.unwrap()));
    let (ours, theirs) = tokio::io::duplex(64 << 10);
    let handshake = Handshake::new(&options, trust, "db1", &WORDS)?;
    let (shaken, _) = tokio::join!(handshake.shake(ours), acceptor.accept(theirs));
    shaken.map(|_| ())
}

#[tokio::test]
async fn each_refused_certificate_has_its_words() {
    let of = |change: &dyn Fn(&mut CertificateParams)| {
        let mut params = params(&["db1"]);
        change(&mut params);
        params
    };
    let expired = of(&|params| params.not_after = date_time_ymd(2025, 11, 22));
    let early = of(&|params| params.not_before = date_time_ymd(2120, 1, 1));
    let ca = of(&|params| params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained));
    let client =
        of(&|params| params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth]);
    let many = params(&["10.0.0.1", "pg1", "*.b", "c", "d"]);
    let stranger = |trusted| Case {
        trusted,
        ..signed(&params(&["db1"]))
    };
    let is = "the server's certificate ";
    let unknown = "no authority that is trusted here has signed the server's certificate";
    for (case, expected, hint) in [
        (self_signed(&params(&["db1"])), "is self-signed", "?cacert="),
        (self_signed(&ca), "is an authority's, not a server's", "CA:"),
        (signed(&expired), "expired on 2025-11-22", "clock"),
        (self_signed(&expired), "expired on 2025-11-22", "clock"),
        (signed(&early), "is not valid before 2120-01-01", "clock"),
        (
            signed(&params(&["pg1"])),
            "is for pg1, not db1",
            "subjectAltName",
        ),
        (
            signed(&many),
            "is for 10.0.0.1, pg1, *.b and 2 more, not db1",
            "name",
        ),
        (
            signed(&params(&[])),
            "names no host, so not db1",
            "subjectAltName",
        ),
        (signed(&client), "is not for servers", "serverAuth"),
        (stranger(None), unknown, "?cacert="),
        // Of the same name.
        (stranger(Some(authority().pem())), unknown, "?cacert="),
    ] {
        let expected = if expected == unknown {
            unknown.to_owned()
        } else {
            format!("{is}{expected}")
        };
        let error = shake(&case, Trust::Name, false).await.unwrap_err();
        let told = error.hint.as_deref().unwrap_or_default();
        assert_eq!((error.kind, &error.message), (Kind::Denied, &expected));
        assert!(
            told.contains(hint) && told.ends_with("; ?tls=any encrypts only, and verifies nothing"),
            "{error:?}"
        );
        assert!(shake(&case, Trust::Any, false).await.is_ok(), "{expected}");
        let only_named = expected.contains("not db1");
        let accepted = shake(&case, Trust::Authority, false).await.is_ok();
        assert_eq!(accepted, only_named, "{expected}");
    }
}

#[tokio::test]
async fn a_certificate_that_is_named_itself_is_trusted() {
    let mut case = self_signed(&params(&["db1"]));
    case.trusted = Some(case.certificate.pem());
    assert!(shake(&case, Trust::Name, false).await.is_ok());
}

#[tokio::test]
async fn a_server_that_asks_for_a_certificate_says_so() {
    let error = shake(&signed(&params(&["db1"])), Trust::Name, true).await;
    let error = error.unwrap_err();
    assert!(
        error.kind == Kind::Denied
            && !error.message.contains("Alert")
            && error.hint.is_some_and(|hint| hint.contains("?cert=FILE")),
        "{}",
        error.message
    );
}

#[tokio::test]
async fn a_server_without_tls_says_so() {
    for (answer, kind, words) in [
        (&b"-ERR Protocol error"[..], Kind::Config, "speak TLS"),
        (b"", Kind::Unavailable, "closed the connection"),
    ] {
        let (ours, mut theirs) = tokio::io::duplex(64 << 10);
        theirs.write_all(answer).await.unwrap();
        theirs.shutdown().await.unwrap();
        let handshake = Handshake::new(&Tls::default(), Trust::Name, "db1", &WORDS).unwrap();
        let error = handshake.shake(ours).await.unwrap_err();
        assert!(
            error.kind == kind && error.message.contains(words),
            "{error:?}"
        );
        let hint = error.hint.unwrap_or_default();
        assert!(hint.contains("store://"), "{hint}");
    }
}
