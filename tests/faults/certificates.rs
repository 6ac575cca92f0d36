//! Whom a server's certificate is believed: the public authorities, the system's, or only those that the user names.

use std::path::Path;

use crate::support::{self, dlock, postgres, process::Process, redis, tls::Certificates};

/// Whether `dlock list` goes on past the server's certificate, on a system that trusts the authorities of that file.
fn is_believed(url: &str, system: &Path) -> bool {
    let mut command = dlock::command();
    command.args(["list", "-b", url]).env("SSL_CERT_FILE", system);
    let ended = Process::collect(command).wait(dlock::LIMIT);
    let refused = ended.stderr.contains("the server's certificate is not valid");
    assert!(refused || !ended.stderr.contains("certificate"), "{}", ended.stderr);
    assert_eq!(refused, ended.code() != 0, "{}", ended.stderr);
    !refused
}

/// `named` begins what names a file of authorities in the URL.
fn of_the_system_unless_others_are_named(url: &str, named: &str, ours: &Path) {
    let folder = support::folder();
    let theirs = &Certificates::make(folder.path(), &["127.0.0.1"]).ca;
    assert!(!is_believed(url, theirs) && is_believed(url, ours));
    assert!(!is_believed(&format!("{url}{named}{}", theirs.display()), ours), "a named authority is the only one");
    assert!(is_believed(&format!("{url}{named}{}", ours.display()), theirs));
}

#[test]
fn redis_by_an_authority_of_the_system() {
    let server = redis::Redis::with(redis::Options { tls_names: vec!["127.0.0.1"], ..Default::default() });
    let ours = &server.certificates.as_ref().unwrap().ca;
    of_the_system_unless_others_are_named(&format!("rediss://127.0.0.1:{}", server.tls_port), "?cacert=", ours);
}

#[test]
fn postgresql_by_an_authority_of_the_system() {
    if let Some(why) = postgres::missing() {
        return support::skip("postgresql_by_an_authority_of_the_system", &why);
    }
    let server = postgres::Postgres::with(postgres::Options { tls_names: vec!["127.0.0.1"], ..Default::default() });
    let ours = &server.certificates.as_ref().unwrap().ca;
    let url = server.url("postgres");
    assert_eq!(dlock::run(&url, &["init"]).code(), 0);
    for mode in ["verify-full", "verify-ca"] {
        of_the_system_unless_others_are_named(&format!("{url}?sslmode={mode}"), "&sslrootcert=", ours);
    }
}
