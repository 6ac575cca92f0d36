//! The rights that `doctor --print-grants` prints: enough for their role, and no more.

use std::time::Duration;

use dlock::{
    backends::{
        Secret, etcd,
        kit::Configured,
        mysql, postgres, redis,
        redlock::Redlock,
        zookeeper::{ZooKeeper, ZooKeeperOptions},
    },
    lock::{
        Amendment, Break, Effect, Intent, Kind as ErrorKind, Mode, Note, PASSWORD, Progress,
        Release, Renewal, Result, Role, RunState, Scope, Which,
    },
};
use zookeeper_client::{Acl, AuthId, Client as Admin, CreateMode, Permission};

use super::{
    Case, cases,
    run_policy::{asking, once},
};
use crate::{
    lab::{Client, LONG, Lab, SLACK, key, nested, request, runner, short, soon, waiting},
    support::{self, cluster::Cluster, sentinel::Deployment},
    targets::{Kind, options},
};

pub fn all() -> Vec<Case> {
    let mut all = cases!(|kind| kind == Kind::Redis => redis_users_have_the_rights_they_need, users_are_confined_to_their_namespace);
    all.extend(cases!(|kind| kind == Kind::Sentinel => sentinel_users_have_the_rights_they_need));
    all.extend(cases!(|kind| kind == Kind::Cluster => cluster_users_have_the_rights_they_need));
    all.extend(cases!(|kind| kind == Kind::Redlock => redlock_users_have_the_rights_they_need));
    all.extend(cases!(Kind::is_postgres => postgres_roles_have_the_rights_they_need));
    all.extend(cases!(Kind::speaks_mysql => mariadb_users_have_the_rights_they_need));
    all.extend(cases!(|kind| kind == Kind::Etcd => etcd_users_have_the_rights_they_need));
    all.extend(cases!(|kind| kind == Kind::ZooKeeper => a_zookeeper_login_has_the_rights_it_needs));
    all
}

const ROLES: [Role; 3] = [Role::Run, Role::View, Role::Break];

/// Does everything that users with just these rights do. `open` makes a client for the user of a
/// role.
async fn use_rights(lab: &Lab, has_view: bool, open: impl Fn(&str) -> Client) {
    for user in ["dlock-run", "dlock-break"] {
        let (mut a, mut b) = (open(user), open(user));
        let job = key("job");
        let first = dlock::lock::Request {
            metadata: Some(runner("web1")),
            ..asking("job", &once(LONG, 9, true))
        };
        let fence = a.take(&first).await.fence;
        assert!(
            b.0.amend(&job, Amendment::Warn(fence, 1))
                .await
                .expect("a warning"),
            "{user}"
        );
        a.renewed(&first, None).await;
        let second = dlock::lock::Request {
            metadata: Some(runner("web2")),
            ..waiting(&job, LONG)
        };
        assert_eq!(
            b.refused(&second).await.position,
            Some(1),
            "{user} is not in the queue"
        );
        let release = async {
            lab.pass(Duration::from_millis(300)).await;
            a.end_run(&first, RunState::Failed).await;
            tokio::time::Instant::now()
        };
        let taken = async {
            let grant = b.wait_for(&second, LONG).await;
            (grant, tokio::time::Instant::now())
        };
        let (freed, (grant, got)) = tokio::join!(release, taken);
        assert!(got.duration_since(freed) < soon(), "{user} was not woken");
        let start = a.record(&job).await.start.expect("a start");
        assert_eq!(
            (start.fence, start.state),
            (fence, RunState::Failed),
            "{user} could not record the outcome"
        );
        if lab.kind.crosses_processes() && lab.kind != Kind::ZooKeeper {
            let inner = nested(&second);
            a.take(&inner).await;
            assert_eq!(a.release(&inner, Scope::Hold).await, Release::StillHeld(1));
        }
        for name in [user, "dlock-view"]
            .into_iter()
            .filter(|name| has_view || *name == user)
        {
            let mut viewer = open(name);
            let state = viewer.inspect(&job).await;
            for which in [Which::All, Which::Kept] {
                viewer
                    .0
                    .known("", which, &Progress::default())
                    .await
                    .unwrap_or_else(|error| panic!("known: {error:?}"));
            }
            assert_eq!(state.holders.len(), 1, "{name} sees {state:?}");
            assert_eq!(
                (state.holders[0].fence, &state.holders[0].metadata),
                (Some(grant.fence), &Some(runner("web2")))
            );
            assert!(state.waiters.is_empty());
            assert_eq!(viewer.keys("").await, ["job"]);
            let verified = viewer
                .0
                .renew(&job, &second.token, Intent::Probe)
                .await
                .expect("verify");
            assert!(matches!(verified, Renewal::Kept { .. }), "{verified:?}");
            match viewer.0.history(&job).await {
                Ok(history) => assert!(
                    history
                        .past
                        .iter()
                        .any(|past| past.metadata == Some(runner("web1"))),
                    "{name} sees {history:?}"
                ),
                Err(error) => assert_eq!(error.kind, ErrorKind::Unsupported, "{error:?}"),
            }
        }
        if has_view {
            assert_read_only(&mut open("dlock-view"), &second).await;
        }
        b.renewed(&second, None).await;
        let skip = Note::Skipped {
            host: "web3".into(),
            reason: "busy".into(),
            at_ms: 1_700_000_000_000,
        };
        assert_done_or_unsupported(a.0.amend(&job, Amendment::Note(&skip)).await);
        b.free(&second).await;
        if lab.kind.permits() || lab.kind == Kind::Redlock {
            use_shares(lab, user, &open).await;
        }
        if user == "dlock-break" {
            mark_and_evict(&mut a, &mut b).await;
        }
    }
}

/// Takes shares, one of whose holders crashes, and waits for them in order.
async fn use_shares(lab: &Lab, user: &str, open: &impl Fn(&str) -> Client) {
    for mode in [Mode::Shared, Mode::Permits(2)]
        .into_iter()
        .filter(|mode| *mode == Mode::Shared || lab.kind.permits())
    {
        let job = key(&format!("{mode:?} of {user}"));
        let (mut a, mut b, mut c) = (open(user), open(user), open(user));
        let one = dlock::lock::Request {
            mode,
            ..request(&job, LONG)
        };
        a.take(&one).await;
        b.take(&dlock::lock::Request {
            mode,
            ..lab.expiring(&job, short())
        })
        .await;
        let writer = dlock::lock::Request {
            fair: lab.kind.fair(),
            ..waiting(&job, LONG)
        };
        c.refused(&writer).await;
        b.refused(&dlock::lock::Request {
            mode,
            ..waiting(&job, LONG)
        })
        .await;
        lab.outlast(short()).await;
        a.renewed(&one, None).await;
        let mut view = open("dlock-view");
        assert!(matches!(
            view.0.renew(&job, &one.token, Intent::Probe).await,
            Ok(Renewal::Kept { .. })
        ));
        assert_eq!(view.inspect(&job).await.holders.len(), 1);
        let freed = async {
            lab.pass(SLACK).await;
            a.free(&one).await;
            tokio::time::Instant::now()
        };
        let (_, freed) = tokio::join!(c.wait_for(&writer, LONG), freed);
        assert!(freed.elapsed() < soon(), "{user} was not woken");
        c.free(&writer).await;
    }
}

/// Checks that a break succeeded, or that the store doesn't support it.
fn assert_done_or_unsupported(done: Result<bool>) {
    match done {
        Ok(marking) => assert!(marking),
        Err(error) => assert_eq!(error.kind, ErrorKind::Unsupported, "{error:?}"),
    }
}

/// Marks a hold, and evicts it.
async fn mark_and_evict(a: &mut Client, b: &mut Client) {
    let decision = Break {
        by: "ana@ops1".into(),
        why: Some("NFS".into()),
        seen: false,
    };
    let job = key("to break");
    let held = request(&job, LONG);
    let fence = a.take(&held).await.fence;
    assert_done_or_unsupported(b.0.amend(&job, Amendment::Mark(fence, &decision)).await);
    assert_done_or_unsupported(b.0.amend(&job, Amendment::Evict(fence, &decision)).await);
    // The release over a killed session may fail.
    let _ =
        a.0.release(&held.key, &held.token, &Scope::Tree.into())
            .await;
}

/// Checks that a read-only user changes nothing, even with another client's token.
async fn assert_read_only(view: &mut Client, held: &dlock::lock::Request) {
    let other = key("other");
    let taken = request(&other, LONG);
    let error = view
        .0
        .try_acquire(&taken)
        .await
        .expect_err("a read-only user took a lock");
    assert!(!error.is_transient(), "{error:?}");
    if error.effect != Effect::NotApplied {
        // The core undoes an attempt with an unknown outcome too.
        let _ = view
            .0
            .release(&other, &taken.token, &Scope::Hold.into())
            .await;
    }
    // A session that took something may end a little later.
    for _ in 0..50 {
        if view.inspect(&other).await.holders.is_empty() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(view.inspect(&other).await.holders.is_empty());
    assert!(
        !matches!(
            view.0
                .release(&held.key, &held.token, &Scope::Tree.into())
                .await,
            Ok(Release::Released)
        ),
        "released a lock"
    );
    assert_eq!(view.inspect(&held.key).await.holders.len(), 1);
}

/// Runs the printed line of each role on a server.
fn set_users(server: &support::redis::Redis, options: &impl Configured) {
    for role in ROLES {
        let text = options.grants(role).text.replace(PASSWORD, "pw");
        assert_eq!(text.lines().count(), 1, "{text}");
        let words: Vec<&str> = text.split_whitespace().collect();
        assert_eq!(server.text(&words), "OK", "{text}");
    }
}

/// Checks the server's own log of denied commands, since dlock ignores some of these errors.
fn assert_nothing_refused<'a>(servers: impl IntoIterator<Item = &'a support::redis::Redis>) {
    for server in servers {
        let log = format!("{:?}", server.command(&["ACL", "LOG"]));
        for user in ["dlock-run", "dlock-break"] {
            assert!(!log.contains(user), "{log}");
        }
    }
}

fn as_user(options: &redis::RedisOptions, user: &str) -> redis::RedisOptions {
    redis::RedisOptions {
        user: Some(user.into()),
        password: Some(Secret::new("pw")),
        ..options.clone()
    }
}

async fn redis_users_have_the_rights_they_need(lab: &Lab) {
    let options = redis::RedisOptions::new(redis::RedisServer::Tcp {
        host: "127.0.0.1".into(),
        port: lab.store().port(),
    });
    set_users(lab.redis(), &options);
    use_rights(lab, true, |user| {
        Client(Box::new(redis::Redis::new(as_user(&options, user))))
    })
    .await;
    assert_nothing_refused([lab.redis()]);
}

async fn users_are_confined_to_their_namespace(lab: &Lab) {
    let options = |namespace| redis::RedisOptions {
        namespace: dlock::lock::Namespace::new(namespace).expect("a namespace"),
        ..redis::RedisOptions::new(redis::RedisServer::Tcp {
            host: "127.0.0.1".into(),
            port: lab.store().port(),
        })
    };
    set_users(lab.redis(), &options("one"));
    let stranger = as_user(&options("other"), "dlock-run");
    let mut stranger = Client(Box::new(redis::Redis::new(stranger)));
    let error = stranger
        .0
        .try_acquire(&request(&key("job"), LONG))
        .await
        .expect_err("another namespace's");
    assert_eq!(error.kind, dlock::lock::Kind::Denied, "{error:?}");
}

async fn sentinel_users_have_the_rights_they_need(lab: &Lab) {
    let deployment = Deployment::start();
    let mut options = options::<redis::RedisOptions>(&deployment.url(), "dlock");
    options.replicas = Some(redis::Replicas {
        count: 1,
        within: Duration::from_secs(2),
    });
    for server in &deployment.servers {
        set_users(server, &options);
    }
    use_rights(lab, true, |user| {
        Client(Box::new(redis::Redis::new(as_user(&options, user))))
    })
    .await;
    assert_nothing_refused(&deployment.servers);
}

async fn cluster_users_have_the_rights_they_need(lab: &Lab) {
    let cluster = Cluster::start();
    let options = options::<redis::RedisOptions>(&cluster.url(), "dlock");
    for server in &cluster.nodes {
        set_users(server, &options);
    }
    use_rights(lab, true, |user| {
        Client(Box::new(redis::Redis::new(as_user(&options, user))))
    })
    .await;
    assert_nothing_refused(&cluster.nodes);
}

async fn redlock_users_have_the_rights_they_need(lab: &Lab) {
    let options = lab.options::<dlock::backends::redlock::RedlockOptions>("dlock");
    for n in 0..options.nodes.len() {
        set_users(&lab.redlock()[n], &options);
    }
    use_rights(lab, true, |user| {
        let nodes = options
            .nodes
            .iter()
            .map(|node| as_user(node, user))
            .collect();
        Client(Box::new(Redlock::new(
            dlock::backends::redlock::RedlockOptions {
                nodes,
                ..options.clone()
            },
        )))
    })
    .await;
    for n in 0..options.nodes.len() {
        assert_nothing_refused([&lab.redlock()[n]]);
    }
}

async fn postgres_roles_have_the_rights_they_need(lab: &Lab) {
    lab.isolate();
    let options = lab.postgres_options("dlock");
    for role in ROLES {
        lab.postgres().sql(&options.grants(role).text);
    }
    use_rights(lab, true, |user| {
        let mut options = options.clone();
        options.sql.user = Some(user.into());
        Client(postgres::backend(options))
    })
    .await;
}

async fn mariadb_users_have_the_rights_they_need(lab: &Lab) {
    lab.isolate();
    let options = lab.mysql_options("dlock");
    for role in ROLES {
        lab.mariadb()
            .sql(&options.grants(role).text.replace(PASSWORD, "pw"));
    }
    use_rights(lab, true, |user| {
        let mut options = options.clone();
        options.sql.user = Some(user.into());
        options.sql.password = Some(Secret::new("pw"));
        Client(mysql::backend(options))
    })
    .await;
}

async fn etcd_users_have_the_rights_they_need(lab: &Lab) {
    let mut server = support::etcd::Etcd::plain();
    let options = etcd::EtcdOptions::new(
        server
            .ports()
            .iter()
            .map(|port| ("127.0.0.1".into(), *port))
            .collect(),
    );
    for role in ROLES {
        for line in options.grants(role).text.replace(PASSWORD, "pw").lines() {
            let words: Vec<&str> = line.split(' ').skip(1).collect();
            server.ctl(&words);
        }
    }
    server.authenticate("somebody", "else", &[]);
    use_rights(lab, true, |user| {
        let options = etcd::EtcdOptions {
            user: Some(user.into()),
            password: Some(Secret::new("pw")),
            ..options.clone()
        };
        Client(Box::new(etcd::Etcd::new(options)))
    })
    .await;
}

async fn a_zookeeper_login_has_the_rights_it_needs(lab: &Lab) {
    let admin = lab.admin().await;
    let options: ZooKeeperOptions = lab.options("dlock");
    // Both roles write, so they share the nodes that one of them created.
    let text = options.grants(Role::Run).text.replace(PASSWORD, "pw");
    for line in text.lines() {
        zk_cli(&admin, line).await;
    }
    assert!(
        options.grants(Role::View).text.is_empty() && !options.grants(Role::View).notes.is_empty()
    );
    use_rights(lab, false, |_| {
        Client(Box::new(ZooKeeper::new(ZooKeeperOptions {
            login: Some(("dlock-run".into(), Secret::new("pw"))),
            ..options.clone()
        })))
    })
    .await;
    let mut stranger = lab.client().await;
    let error = stranger
        .0
        .try_acquire(&request(&key("job"), LONG))
        .await
        .expect_err("a client without a login took a lock");
    assert_eq!(error.kind, dlock::lock::Kind::Denied, "{error:?}");
}

/// Does what zkCli.sh does with a line.
async fn zk_cli(admin: &Admin, line: &str) {
    let words: Vec<&str> = line.split(' ').collect();
    match *words {
        ["addauth", scheme, proof] => admin.auth(scheme, proof.as_bytes()).await.expect("auth"),
        ["create", path] => {
            let made = admin
                .create(
                    path,
                    &[],
                    &CreateMode::Persistent.with_acls(zookeeper_client::Acls::anyone_all()),
                )
                .await;
            assert!(
                matches!(made, Ok(_) | Err(zookeeper_client::Error::NodeExists)),
                "{line}: {made:?}"
            );
        }
        ["setAcl", path, "auth::cdrwa"] => {
            let acl = [Acl::new(Permission::ALL, AuthId::authed())];
            admin
                .set_acl(path, &acl, None)
                .await
                .unwrap_or_else(|error| panic!("{line}: {error}"));
        }
        _ => panic!("{line}"),
    }
}
