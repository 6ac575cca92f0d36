//! Servers that restart, lose data, refuse requests and run out of memory; requests that are
//! dropped.

use std::{io::Write as _, time::Duration};

use support::tls::Certificates;

use super::server::{TestServer, busy, granted, key, nested, pause, request, waiting};
use crate::{
    backends::{
        Secret, Tls,
        redis::{Redis, RedisOptions, RedisServer},
    },
    lock::{
        Backend as _, Effect, Intent, Kind, Mode, Origin, Progress, Release, Renewal, Request,
        Scope, Wake,
    },
};

#[tokio::test]
async fn without_memory_holds_are_renewed_and_released_but_not_granted() {
    let server = TestServer::start();
    let (mut a, mut b) = (server.backend(), server.backend());
    let held = request("job");
    granted(&mut a, &held).await;
    let inner = nested(&held);
    granted(&mut a, &inner).await;
    let asked = waiting("job");
    busy(&mut b, &asked).await;
    server.command(&["CONFIG", "SET", "maxmemory", "1"]);
    let error = a.try_acquire(&request("other")).await.unwrap_err();
    assert_eq!(
        (error.kind, error.effect),
        (Kind::Unavailable, Effect::NotApplied)
    );
    assert!(error.hint.is_some());
    assert_eq!(
        server.int(&["EXISTS", "dlock:other", "redisson_lock_token:{dlock:other}"]),
        0
    );
    assert_eq!(
        a.try_acquire(&nested(&held)).await.unwrap_err().effect,
        Effect::NotApplied
    );
    busy(&mut a, &waiting("job")).await;
    pause(1_000).await;
    for hold in [&inner, &held] {
        assert!(matches!(
            a.renew(&hold.key, &hold.token, None.into()).await.unwrap(),
            Renewal::Renewed { .. }
        ));
        assert!(server.int(&["PTTL", "dlock:job"]) > 9_000);
    }
    assert_eq!(
        a.release(&inner.key, &inner.token, &Scope::Hold.into())
            .await
            .unwrap(),
        Release::StillHeld(1)
    );
    assert_eq!(
        a.release(&held.key, &held.token, &Scope::Hold.into())
            .await
            .unwrap(),
        Release::Released
    );
    assert_eq!(
        b.wait(&asked, Duration::from_secs(2)).await.unwrap(),
        Wake::Changed,
        "the wake-up arrives too"
    );
    b.leave_queue(&asked).await.unwrap();
}

#[tokio::test]
async fn a_user_without_publish_rights_can_release() {
    let server = TestServer::start();
    let rights = [
        "ACL",
        "SETUSER",
        "app",
        "on",
        ">pw",
        "~dlock:*",
        "~redisson_lock_token:*",
        "resetchannels",
        "+@all",
    ];
    server.command(&rights);
    let options = RedisOptions {
        user: Some("app".into()),
        password: Some(Secret::new("pw")),
        ..server.options()
    };
    let (mut a, mut b) = (Redis::new(options.clone()), Redis::new(options));
    let (held, asked) = (request("job"), waiting("job"));
    granted(&mut a, &held).await;
    busy(&mut b, &asked).await;
    assert_eq!(
        a.release(&held.key, &held.token, &Scope::Hold.into())
            .await
            .unwrap(),
        Release::Released
    );
    assert_eq!(
        b.wait(&asked, Duration::from_secs(2)).await.unwrap(),
        Wake::Changed
    );
    granted(&mut b, &asked).await;
}

#[tokio::test]
async fn missing_rights_are_named_and_grant_nothing() {
    let server = TestServer::start();
    let as_user = |name: &str, rights: &[&str]| {
        server.command(&[&["ACL", "SETUSER", name, "on", ">pw"], rights].concat());
        Redis::new(RedisOptions {
            user: Some(name.into()),
            password: Some(Secret::new("pw")),
            ..server.options()
        })
    };
    let all_keys = ["~dlock:*", "~redisson_lock_token:*", "+@all"];
    let fewer = [
        ("fence", vec!["~dlock:*", "+@all"]),
        ("expire", [&all_keys[..], &["-pexpireat"]].concat()),
        ("hset", [&all_keys[..], &["-hset"]].concat()),
        ("eval", [&all_keys[..], &["-evalsha"]].concat()),
        (
            "read",
            vec!["~dlock:*", "%R~redisson_lock_token:*", "+@all"],
        ),
        (
            "lock",
            vec![
                "%R~dlock:job",
                "~dlock:{dlock:job}:*",
                "~redisson_lock_token:*",
                "+@all",
            ],
        ),
    ];
    for (name, rights) in fewer {
        let error = as_user(name, &rights)
            .try_acquire(&request("job"))
            .await
            .unwrap_err();
        // A script that has started may have written; the core undoes that.
        let effect = if ["expire", "hset"].contains(&name) {
            Effect::Unknown
        } else {
            Effect::NotApplied
        };
        assert_eq!(
            (error.kind, error.effect),
            (Kind::Denied, effect),
            "{name}: {error:?}"
        );
        assert_eq!(
            server.int(&["EXISTS", "dlock:job"]),
            0,
            "{name}: no lock without an expiry"
        );
    }
}

#[tokio::test]
async fn writes_of_a_failed_script_are_undone() {
    use crate::lease::{self, BootClock, Limits, WaitPolicy};
    let server = TestServer::start();
    // The script may write the lock, but may not set its expiry.
    let rights = [
        "~dlock:{dlock:job}:*",
        "+pexpireat",
        "(~* &* +@all -pexpireat)",
    ];
    server.command(&[&["ACL", "SETUSER", "app", "on", ">pw"], &rights[..]].concat());
    let user = || {
        Redis::new(RedisOptions {
            user: Some("app".into()),
            password: Some(Secret::new("pw")),
            ..server.options()
        })
    };
    for mode in [Mode::Exclusive, Mode::Shared, Mode::Permits(2)] {
        let wanted = Request {
            mode,
            ..request("job")
        };
        let error = user().try_acquire(&wanted).await.unwrap_err();
        assert_eq!(
            (error.kind, error.effect),
            (Kind::Denied, Effect::Unknown),
            "{mode:?}: {error:?}"
        );
        assert_eq!(
            server.int(&["EXISTS", "dlock:job"]),
            1,
            "{mode:?}: the lock was written"
        );
        server.command(&["FLUSHALL"]);
        let never = std::future::pending::<()>();
        let taken = lease::acquire(
            &mut user(),
            &BootClock,
            wanted,
            WaitPolicy::Try,
            Limits::DEFAULT,
            never,
            |_| {},
        )
        .await;
        assert_eq!(taken.unwrap_err().kind, Kind::Denied, "{mode:?}");
        assert_eq!(server.int(&["EXISTS", "dlock:job"]), 0, "{mode:?}");
    }
}

#[tokio::test]
async fn a_replicas_copy_of_a_hold_does_not_count() {
    let server = TestServer::start();
    let copy = TestServer::start();
    let held = request("job");
    granted(&mut server.backend(), &held).await;
    copy.command(&["REPLICAOF", "127.0.0.1", &server.port.to_string()]);
    for _ in 0..500 {
        if copy.int(&["EXISTS", "dlock:job"]) == 1 {
            break;
        }
        pause(20).await;
    }
    let error = copy
        .backend()
        .renew(&held.key, &held.token, Intent::Probe)
        .await
        .unwrap_err();
    assert!(
        error.origin == Origin::WrongServer && error.message.contains("replica"),
        "{error:?}"
    );
    // Neither does its refusal.
    server.command(&["SET", "dlock:text", "x", "PX", "60000"]);
    server.command(&[
        "HSET",
        "dlock:{dlock:ran}:starts",
        "ps",
        "9999999999999",
        "pf",
        "1",
        "pl",
        "1000000000000000",
    ]);
    pause(200).await;
    let outer = request("job");
    let wanted = [
        request("job"),
        waiting("job"),
        request("text"),
        nested(&held),
        nested(&outer),
        request("ran"),
    ];
    for mode in [Mode::Exclusive, Mode::Shared, Mode::Permits(2)] {
        for wanted in &wanted {
            let wanted = Request {
                mode,
                ..wanted.clone()
            };
            let mut client = copy.backend();
            let answer = client.try_acquire(&wanted).await;
            let error = answer.expect_err(&format!("{wanted:?}"));
            assert!(
                error.origin == Origin::WrongServer && error.effect == Effect::NotApplied,
                "{wanted:?}: {error:?}"
            );
        }
    }
    assert!(matches!(
        server
            .backend()
            .renew(&held.key, &held.token, Intent::Probe)
            .await
            .unwrap(),
        crate::lock::Renewal::Kept { .. }
    ));
}

#[tokio::test]
async fn credentials_are_checked_first_and_never_shown() {
    // The server's default user needs no password: after a refused login dlock must not continue as
    // that user.
    let server = TestServer::start();
    server.command(&[
        "ACL", "SETUSER", "app", "on", ">hunter2", "~*", "&*", "+@all",
    ]);
    let with = |user: Option<&str>, password: Option<&str>| {
        Redis::new(RedisOptions {
            user: user.map(Into::into),
            password: password.map(Secret::new),
            db: 3,
            ..server.options()
        })
    };
    granted(&mut with(Some("app"), Some("hunter2")), &request("job")).await;
    assert_eq!(
        server.int(&["EXISTS", "dlock:job"]),
        0,
        "the lock is in database 3"
    );
    for (user, password) in [
        (Some("app"), Some("hunter3")),
        (None, Some("hunter3")),
        (Some("nobody"), Some("hunter3")),
        (Some("app"), None),
    ] {
        let mut backend = with(user, password);
        let error = backend.try_acquire(&request("other")).await.unwrap_err();
        assert!(
            matches!(error.kind, Kind::Denied | Kind::Config) && error.effect == Effect::NotApplied,
            "{error:?}"
        );
        assert!(
            error.hint.is_some()
                && !format!("{error:?} {error} {}", backend.identity().url).contains("hunter"),
            "{error:?}"
        );
    }
    assert!(
        !format!(
            "{:?}",
            RedisOptions {
                password: Some(Secret::new("hunter2")),
                ..server.options()
            }
        )
        .contains("hunter")
    );
    assert_eq!(
        server.int(&["DBSIZE"]),
        0,
        "nothing was taken with a refused login"
    );
    server.command(&["CONFIG", "SET", "requirepass", "swordfish"]);
    for mut backend in [with(None, None), server.backend()] {
        let error = backend.try_acquire(&request("job")).await.unwrap_err();
        assert_eq!(
            (error.kind, error.effect),
            (Kind::Denied, Effect::NotApplied),
            "{error:?}"
        );
    }
}

#[tokio::test]
async fn a_counter_ahead_of_the_clock_goes_on_counting() {
    let server = TestServer::start();
    let mut a = server.backend();
    server.command(&["SET", "redisson_lock_token:{dlock:job}", "9007199254740980"]);
    assert_eq!(
        granted(&mut a, &request("job")).await.fence.0,
        9_007_199_254_740_981
    );
    server.command(&["SET", "redisson_lock_token:{dlock:x}", "9007199254740991"]);
    assert_eq!(
        a.try_acquire(&request("x")).await.unwrap_err().kind,
        Kind::Data
    );
    assert_eq!(server.int(&["EXISTS", "dlock:x"]), 0);
}

#[tokio::test]
async fn an_unreachable_server() {
    let server = TestServer::start();
    let mut a = server.backend();
    let held = request("job");
    granted(&mut a, &held).await;
    server.kill();
    for _ in 0..2 {
        let error = a
            .renew(&held.key, &held.token, None.into())
            .await
            .unwrap_err();
        assert_eq!(
            (error.kind, error.effect),
            (Kind::Unavailable, Effect::NotApplied)
        );
    }
    let no_socket = RedisOptions::new(RedisServer::Unix("/nonexistent/none.sock".into()));
    assert_eq!(
        Redis::new(no_socket)
            .inspect(&key("job"))
            .await
            .unwrap_err()
            .kind,
        Kind::Unavailable
    );
    let no_name = RedisOptions::new(RedisServer::Tcp {
        host: "no-such-host.invalid".into(),
        port: 6379,
    });
    assert_eq!(
        Redis::new(no_name)
            .list("", &Progress::default())
            .await
            .unwrap_err()
            .kind,
        Kind::Unavailable
    );
}

#[tokio::test]
async fn a_request_without_an_answer_may_have_happened() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut a = Redis::new(RedisOptions::new(RedisServer::Tcp {
        host: "localhost".into(),
        port,
    }));
    let asked = request("job");
    let (error, ()) = tokio::join!(a.try_acquire(&asked), async {
        let (mut client, _) = listener.accept().await.unwrap();
        let mut byte = [0; 1];
        tokio::io::AsyncReadExt::read_exact(&mut client, &mut byte)
            .await
            .unwrap();
    });
    let error = error.unwrap_err();
    assert_eq!(
        (error.kind, error.effect),
        (Kind::Unavailable, Effect::Unknown)
    );
    // The same for an answer that isn't valid.
    let (error, ()) = tokio::join!(a.try_acquire(&asked), async {
        let (mut client, _) = listener.accept().await.unwrap();
        tokio::io::AsyncWriteExt::write_all(&mut client, b"HTTP/1.1 400 Bad Request\r\n\r\n")
            .await
            .unwrap();
    });
    assert_eq!(error.unwrap_err().effect, Effect::Unknown);
}

#[tokio::test]
async fn a_replica_and_a_cluster_node_are_refused() {
    let master = TestServer::start();
    let replica = TestServer::with(&[&format!("replicaof 127.0.0.1 {}", master.port)]);
    let error = replica
        .backend()
        .try_acquire(&request("job"))
        .await
        .unwrap_err();
    assert_eq!(
        (error.kind, error.effect, error.origin),
        (Kind::Config, Effect::NotApplied, Origin::WrongServer),
        "{error:?}"
    );
    let node = TestServer::with(&[
        "cluster-enabled yes",
        &format!("cluster-port {}", support::ports::free()),
    ]);
    let error = node
        .backend()
        .try_acquire(&request("job"))
        .await
        .unwrap_err();
    assert!(
        matches!(error.kind, Kind::Unavailable | Kind::Config),
        "{error:?}"
    );
}

#[tokio::test]
async fn over_tls_the_certificate_is_verified() {
    let folder = support::folder();
    let file = |name: &str| folder.path().join(name);
    let certificates = Certificates::make(folder.path(), &["localhost"]);
    let server = TestServer::over_tls(certificates.clone());
    let tls_port = server.tls_port;
    let with = |host: &str, port, tls| {
        Redis::new(RedisOptions {
            tls: Some(tls),
            ..RedisOptions::new(RedisServer::Tcp {
                host: host.into(),
                port,
            })
        })
    };
    let known = || Tls {
        ca_file: Some(certificates.ca.clone()),
        cert_file: Some(certificates.certificate.clone()),
        key_file: Some(certificates.key.clone()),
    };
    let held = request("job");
    let mut a = with("localhost", tls_port, known());
    granted(&mut a, &held).await;
    assert_eq!(a.identity().url, format!("rediss://localhost:{tls_port}"));
    assert_eq!(
        a.release(&held.key, &held.token, &Scope::Hold.into())
            .await
            .unwrap(),
        Release::Released
    );

    let untrusted = Tls {
        ca_file: None,
        ..known()
    };
    let no_client = Tls {
        cert_file: None,
        key_file: None,
        ..known()
    };
    let mut broken = std::fs::File::create(file("broken.pem")).unwrap();
    broken.write_all(b"no certificate").unwrap();
    for (mut backend, kind, why) in [
        (
            with("localhost", tls_port, untrusted),
            Kind::Denied,
            "unknown authority",
        ),
        (
            with("127.0.0.1", tls_port, known()),
            Kind::Denied,
            "another name",
        ),
        (
            with(
                "localhost",
                tls_port,
                Tls {
                    ca_file: Some(file("broken.pem")),
                    ..known()
                },
            ),
            Kind::Config,
            "no CA in the file",
        ),
        (
            with(
                "localhost",
                tls_port,
                Tls {
                    ca_file: Some(file("none.pem")),
                    ..known()
                },
            ),
            Kind::Config,
            "no file",
        ),
        (
            with(
                "localhost",
                tls_port,
                Tls {
                    key_file: None,
                    ..known()
                },
            ),
            Kind::Config,
            "half a pair",
        ),
    ] {
        let error = backend.try_acquire(&held).await.unwrap_err();
        assert_eq!(
            (error.kind, error.effect),
            (kind, Effect::NotApplied),
            "{why}: {error:?}"
        );
    }
    // In TLS 1.3 the server rejects a missing client certificate only after the handshake.
    let error = with("localhost", tls_port, no_client)
        .try_acquire(&held)
        .await
        .unwrap_err();
    assert!(
        matches!(error.kind, Kind::Denied | Kind::Unavailable),
        "{error:?}"
    );
    // A Redis without TLS takes the handshake for an incomplete command and doesn't answer: the
    // caller's timeout ends the attempt.
    let mut mistaken = with("localhost", server.port, known());
    assert!(
        tokio::time::timeout(Duration::from_millis(100), mistaken.try_acquire(&held))
            .await
            .is_err()
    );
    // Plain text to a port with TLS.
    let error = Redis::new(RedisOptions::new(RedisServer::Tcp {
        host: "localhost".into(),
        port: tls_port,
    }))
    .try_acquire(&held)
    .await
    .unwrap_err();
    assert!(error.hint.unwrap_or_default().contains("rediss://"));
}

/// A dropped acquire must not be executed later; a dropped release may.
#[tokio::test]
async fn a_dropped_acquire_is_cancelled_and_a_dropped_release_is_not() {
    use std::{io::Read as _, net::TcpListener};
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let end_of = |listener: TcpListener| {
        let (mut peer, _) = listener.accept().unwrap();
        let mut all = [0; 4096];
        loop {
            match peer.read(&mut all) {
                Ok(0) => return Ok(()),
                Ok(_) => {}
                Err(error) => return Err(error.kind()),
            }
        }
    };
    let asked = request("job");
    for takes in [true, false] {
        let mut silent = Redis::new(RedisOptions::new(RedisServer::Tcp {
            host: "127.0.0.1".into(),
            port,
        }));
        let ours = listener.try_clone().unwrap();
        let peer = std::thread::spawn(move || end_of(ours));
        let limit = Duration::from_millis(200);
        let given_up = if takes {
            tokio::time::timeout(limit, silent.try_acquire(&asked))
                .await
                .is_err()
        } else {
            tokio::time::timeout(
                limit,
                silent.release(&asked.key, &asked.token, &Scope::Hold.into()),
            )
            .await
            .is_err()
        };
        assert!(given_up);
        drop(silent);
        assert_eq!(peer.join().unwrap().is_err(), takes);
    }
}
