use std::path::Path;

use super::*;
use crate::cli::{env::Env, file::File};

fn find(url: Option<&str>, env: &[(&str, &str)], file: &str) -> Result<Target> {
    let env: Env = env.iter().copied().chain([("HOME", "/home/ana")]).collect();
    let file = File::parse(file, Path::new("c.toml")).unwrap();
    let globals = Globals { backend: url.map(str::to_owned), ..Globals::default() };
    resolve(&globals, &mut Layers::new(&env, &file, None))
}

fn redis_of(target: Target) -> RedisOptions {
    match target.backend {
        BackendConfig::Redis(options) => options,
        BackendConfig::Sqlite { .. } => panic!("not redis"),
    }
}

fn sqlite_of(target: Target) -> (PathBuf, bool) {
    match target.backend {
        BackendConfig::Sqlite { options, asked_for } => (options.path, asked_for),
        BackendConfig::Redis(_) => panic!("not sqlite"),
    }
}

#[test]
fn every_scheme_is_understood() {
    let redis = |url| redis_of(find(Some(url), &[("DLOCK_PASSWORD", "pw")], "").unwrap());
    let options = redis("rediss://ana@r1:6380/3?cacert=/ca.pem&namespace=x");
    assert_eq!(options.server, Server::Tcp { host: "r1".into(), port: 6380 });
    assert_eq!(options.tls, Some(Tls { ca_file: Some("/ca.pem".into()), ..Tls::default() }));
    assert_eq!((options.user.as_deref(), options.password, options.db), (Some("ana"), Some(Secret::new("pw")), 3));
    assert_eq!(options.namespace.as_str(), "x");
    let options = redis("redis+unix:///run/r.sock?db=2");
    assert_eq!((options.server, options.db), (Server::Unix("/run/r.sock".into()), 2));
    let options = redis("redis://[::1]");
    assert_eq!((options.server, options.tls), (Server::Tcp { host: "::1".into(), port: 6379 }, None));

    assert_eq!(sqlite_of(find(Some("sqlite:///a%20b.db"), &[], "").unwrap()), ("/a b.db".into(), true));
    assert!(sqlite_of(find(Some("local"), &[], "").unwrap()).1);
    assert!(!sqlite_of(find(None, &[], "").unwrap()).1);
}

#[test]
fn names_come_from_the_file_with_all_their_table_says() {
    let file = "backend = 'prod'\nnamespace = 'top'\n[backends.prod]\nurl = 'redis://u:in-url@r1'\ndb = 4\nnamespace = 'apps'\n[backends.b]\nurl = 'redis://r2'\npassword = 'beside'\n";
    let target = find(None, &[], file).unwrap();
    assert_eq!(target.name.as_deref(), Some("prod"));
    let options = redis_of(target);
    assert_eq!((options.db, options.password, options.namespace.as_str()), (4, Some(Secret::new("in-url")), "apps"));
    let options = redis_of(find(Some("b"), &[], file).unwrap());
    assert_eq!(options.password, Some(Secret::new("beside")));
    let options = redis_of(find(Some("b"), &[("DLOCK_PASSWORD", "nearer")], file).unwrap());
    assert_eq!(options.password, Some(Secret::new("nearer")));
}

#[test]
fn mistakes_are_refused_with_their_place_and_without_secrets() {
    let prod = "[backends.prod]\nurl = 'redis://r'\n";
    for (url, env, file, kind, start, hint) in [
        (Some("redis://u:hunter2@h"), None, "", Kind::Usage, "--backend: redis://***@h: a password on the command line", "put it into"),
        (Some("reddis://h"), None, "", Kind::Usage, "--backend: reddis://h: there is no backend", "did you mean redis"),
        (Some("mysql://u:hunter2@h"), None, "", Kind::Usage, "--backend: mysql://***@h: a password", "put it"),
        (Some("mysql://h"), None, "", Kind::Usage, "--backend: mysql://h: mysql is not supported by this version", "it supports local"),
        (
            Some("pord"),
            None,
            prod,
            Kind::Usage,
            "--backend: no backend is named \"pord\": c.toml has no [backends.pord]",
            "did you mean prod?",
        ),
        (Some("redis"), None, "", Kind::Usage, "--backend: no backend is named \"redis\"", "a URL is meant?"),
        (None, Some("redis://u:hunter2@h:x"), "", Kind::Usage, "DLOCK_BACKEND: redis://***@h:x: its port", "a URL is like"),
        (None, Some("redis://h?tls=1"), "", Kind::Usage, "DLOCK_BACKEND: redis://h: there is no parameter \"tls\"", "did you mean ttl?"),
        (None, Some("redis://h?cacert=/x"), "", Kind::Usage, "DLOCK_BACKEND: this backend has no cacert", ""),
        (None, Some("redis://h/1?db=2"), "", Kind::Usage, "DLOCK_BACKEND: redis://h/1: the database is given twice", ""),
        (None, Some("redis://h/x"), "", Kind::Usage, "DLOCK_BACKEND: redis://h/x: the database is not a number", ""),
        (None, Some("redis://"), "", Kind::Usage, "DLOCK_BACKEND: redis://: it has no host", ""),
        (None, Some("redis://ana@h"), "", Kind::Usage, "DLOCK_BACKEND: redis://***@h: there is a user but no password", "give it in"),
        (None, Some("rediss://h?cert=/x"), "", Kind::Usage, "DLOCK_BACKEND: cert and key are the two halves", ""),
        (None, Some("rediss://h?cacert=x"), "", Kind::Usage, "DLOCK_BACKEND: cacert needs an absolute path", ""),
        (None, Some("redis://a,b"), "", Kind::Usage, "DLOCK_BACKEND: redis://a,b: it names more than one server", ""),
        (None, Some("sqlite:relative"), "", Kind::Usage, "DLOCK_BACKEND: sqlite:relative: it needs the absolute path", "sqlite:///"),
        (None, Some("sqlite://host/x"), "", Kind::Usage, "DLOCK_BACKEND: sqlite://host/x: a file has no host", ""),
        (None, Some("/var/locks.db"), "", Kind::Usage, "DLOCK_BACKEND: /var/locks.db: it has no scheme", ""),
        (None, None, "backend = 'redis://h:x'", Kind::Config, "c.toml:1: backend: redis://h:x: its port", ""),
        (None, None, "backend = 'x'\n", Kind::Config, "c.toml:1: backend: no backend is named \"x\"", ""),
        (Some("a"), None, "[backends.a]\nttl = 5", Kind::Usage, "--backend: [backends.a] has no url", ""),
        (
            Some("a"),
            None,
            "[backends.a]\nurl = 'redis://h?ttl=5'\nttl = 5",
            Kind::Config,
            "c.toml:2: url: redis://h: ttl stands in the URL and beside it",
            "",
        ),
        (
            Some("a"),
            None,
            "[backends.a]\nurl = 'sqlite:///x'\npassword = 'hunter2'",
            Kind::Config,
            "c.toml:3: password: this backend has no password",
            "",
        ),
    ] {
        let env: Vec<(&str, &str)> = env.map(|value| ("DLOCK_BACKEND", value)).into_iter().collect();
        let error = find(url, &env, file).unwrap_err();
        let case = format!("{url:?} {env:?} {file:?}: {error} / {:?}", error.hint);
        assert_eq!(error.kind, kind, "{case}");
        assert!(error.to_string().starts_with(start) && error.hint.as_deref().unwrap_or_default().starts_with(hint), "{case}");
        assert!(!error.to_string().contains("hunter2"), "{case}");
    }
}
