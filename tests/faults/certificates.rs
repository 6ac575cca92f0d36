//! Which authorities a server's certificate is checked against: the public ones, the system's, or
//! only those that the user names.

use std::path::Path;

use crate::support::{self, dlock, postgres, process::Process, redis, tls::Certificates};

/// Whether `dlock list` accepts the server's certificate on a system that trusts only the
/// authorities in the file `system`.
fn is_trusted(url: &str, system: &Path) -> bool {
    let mut command = dlock::command();
    command
        .args(["list", "-b", url])
        .env("SSL_CERT_FILE", system);
    let ended = Process::collect(command).wait(dlock::LIMIT);
    let refused = ended
        .stderr
        .contains("the server's certificate is not valid");
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
