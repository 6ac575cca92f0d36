//! Which authorities a server's certificate is checked against: the public ones, the system's, or
//! only those that the user names. And what is said of a certificate that is refused.

use std::{
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    path::Path,
    sync::Arc,
    thread,
};

use rustls::{
    ServerConfig, ServerConnection,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};

use crate::support::{
    self, dlock, postgres,
    process::Process,
    redis,
    tls::{Certificates, Flaw},
};

/// Whether `dlock list` accepts the server's certificate on a system that trusts only the
/// authorities in the file `system`.
fn is_trusted(url: &str, system: &Path) -> bool {
    let mut command = dlock::command();
    command
        .args(["list", "-b", url])
        .env("SSL_CERT_FILE", system);
    let ended = Process::collect(command).wait(dlock::LIMIT);
    let refused = ended.stderr.contains("has signed the server's certificate");
    assert!(
        refused || !ended.stderr.contains("certificate"),
        "{}",
        ended.stderr
    );
    assert_eq!(refused, ended.code() != 0, "{}", ended.stderr);
    !refused
}

/// `named` is the URL parameter that names a file of authorities, up to the file's path.
fn a_named_authority_replaces_the_systems(url: &str, named: &str, ours: &Path) {
    let folder = support::folder();
    let theirs = &Certificates::make(folder.path(), &["127.0.0.1"]).ca;
    assert!(!is_trusted(url, theirs) && is_trusted(url, ours));
    assert!(
        !is_trusted(&format!("{url}{named}{}", theirs.display()), ours),
        "a named authority is the only one"
    );
    assert!(is_trusted(
        &format!("{url}{named}{}", ours.display()),
        theirs
    ));
}

#[test]
fn redis_trusts_an_authority_of_the_system() {
    let server = redis::Redis::with(redis::Options {
        tls_names: vec!["127.0.0.1"],
        ..Default::default()
    });
    let ours = &server.certificates.as_ref().unwrap().ca;
    a_named_authority_replaces_the_systems(
        &format!("rediss://127.0.0.1:{}", server.tls_port),
        "?cacert=",
        ours,
    );
}

#[test]
fn postgresql_trusts_an_authority_of_the_system() {
    if let Some(why) = postgres::missing() {
        return support::skip("postgresql_trusts_an_authority_of_the_system", &why);
    }
    let server = postgres::Postgres::with(postgres::Options {
        tls_names: vec!["127.0.0.1"],
        ..Default::default()
    });
    let ours = &server.certificates.as_ref().unwrap().ca;
    let url = server.url("postgres");
    assert_eq!(dlock::run(&url, &["init"]).code(), 0);
    for mode in ["verify-full", "verify-ca"] {
        a_named_authority_replaces_the_systems(
            &format!("{url}?sslmode={mode}"),
            "&sslrootcert=",
            ours,
        );
    }
}

/// What a server and its client say in clear before they encrypt.
type Prelude = fn(&mut TcpStream) -> std::io::Result<()>;

const NOTHING: Prelude = |_| Ok(());

fn of_postgresql(client: &mut TcpStream) -> std::io::Result<()> {
    client.read_exact(&mut [0; 8])?;
    client.write_all(b"S")
}

fn of_mysql(client: &mut TcpStream) -> std::io::Result<()> {
    // Every feature is offered.
    let greeting = [
        &b"\x0a8.0.36\0\x07\0\0\0nonce678\0\xff\xff\x2d\x02\0\xff\xdf\x15"[..],
        &[0; 10],
        b"nonce6789012\0mysql_native_password\0",
    ]
    .concat();
    let length = u8::try_from(greeting.len()).expect("short");
    client.write_all(&[&[length, 0, 0, 0][..], &greeting].concat())?;
    client.read_exact(&mut [0; 36])
}

/// Starts a server that shows this certificate, and is nothing else. Returns its port.
fn front(files: &Certificates, prelude: Prelude) -> u16 {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let chain = vec![CertificateDer::from_pem_file(&files.certificate).expect("a certificate")];
    let key = PrivateKeyDer::from_pem_file(&files.key).expect("a key");
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .expect("a certificate and its key");
    let config = Arc::new(config);
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let port = listener.local_addr().expect("an address").port();
    thread::spawn(move || {
        while let Ok((mut client, _)) = listener.accept() {
            let config = Arc::clone(&config);
            thread::spawn(move || {
                prelude(&mut client)?;
                let mut tls = ServerConnection::new(config).expect("a server");
                tls.complete_io(&mut client).map(drop)
            });
        }
    });
    port
}

/// Every store with TLS says of each certificate what is wrong with it, and what helps there.
#[test]
fn a_refused_certificate_is_explained_on_every_store() {
    let scheme = ["?cacert=FILE", ""];
    let postgresql = ["?sslrootcert=FILE", "?sslmode=require"];
    let mysql = ["?ssl-ca=FILE", "?ssl-mode=REQUIRED"];
    let stores: [(&str, &str, Prelude, [&str; 2]); 9] = [
        ("rediss://HOST", "?cacert=", NOTHING, scheme),
        (
            "rediss+sentinel://HOST/mymaster",
            "?cacert=",
            NOTHING,
            scheme,
        ),
        ("rediss+cluster://HOST", "?cacert=", NOTHING, scheme),
        ("redlocks://HOST,HOST,HOST", "?cacert=", NOTHING, scheme),
        ("tairs://HOST", "?cacert=", NOTHING, scheme),
        ("etcds://HOST", "?cacert=", NOTHING, scheme),
        ("zookeepers://HOST", "?cacert=", NOTHING, scheme),
        (
            "postgres://ana@HOST/app?sslmode=verify-full",
            "&sslrootcert=",
            of_postgresql,
            postgresql,
        ),
        (
            "mysql://ana@HOST/app?ssl-mode=VERIFY_IDENTITY",
            "&ssl-ca=",
            of_mysql,
            mysql,
        ),
    ];
    let (here, pg1) = (&["127.0.0.1"][..], &["pg1"][..]);
    let is = "the server's certificate";
    let unknown_issuer = "no authority that is trusted here has signed the server's certificate";
    let cases = [
        (
            here,
            Flaw::SelfSigned,
            false,
            format!("{is} is self-signed"),
        ),
        (
            here,
            Flaw::Authority,
            false,
            format!("{is} is an authority's, not a server's"),
        ),
        (
            here,
            Flaw::Expired,
            true,
            format!("{is} expired on 2025-11-22"),
        ),
        (
            here,
            Flaw::Early,
            true,
            format!("{is} is not valid before 2120-01-01"),
        ),
        (
            pg1,
            Flaw::None,
            true,
            format!("{is} is for pg1, not 127.0.0.1"),
        ),
        (here, Flaw::None, false, unknown_issuer.into()),
    ];
    for (names, flaw, named, expected) in cases {
        let folder = support::folder();
        let files = Certificates::flawed(folder.path(), names, flaw);
        for (url, authority, prelude, [trusts, only_encrypts]) in &stores {
            let mut at = (*url).to_owned();
            while at.contains("HOST") {
                let host = format!("127.0.0.1:{}", front(&files, *prelude));
                at = at.replacen("HOST", &host, 1);
            }
            if named {
                at = format!("{at}{authority}{}", files.ca.display());
            }
            let ended = dlock::run(&at, &["list"]);
            let about = format!("{url}, {flaw:?}: {}", ended.stderr);
            assert_eq!(ended.code(), 78, "{about}");
            assert!(ended.stderr.contains(&expected), "{about}");
            assert!(ended.stderr.contains(only_encrypts), "{about}");
            let helps = expected == unknown_issuer || flaw == Flaw::SelfSigned;
            assert_eq!(ended.stderr.contains(trusts), helps, "{about}");
        }
    }
}
