//! The nodes in ZooKeeper: the queue of a lock, with contenders of dlock and of other libraries.

use std::time::{Duration, Instant};

use dlock::{
    lease::{self, BootClock, Limits, Outcome, WaitPolicy},
    lock::{
        Attempt, End, Kind as ErrorKind, Mode, Progress, Release, ReleaseInfo, Renewal, Request,
        Scope, Wake,
    },
};
use zookeeper_client::{Acls, Client as Admin, CreateMode};

use super::{Case, cases, history::history};
use crate::{
    lab::{Client, LONG, Lab, SLACK, key, nested, request, short, soon, stretched, waiting},
    support::{
        proxy::{Fault, Mode as Line, Proxy},
        zookeeper::tree,
    },
    targets::Kind,
};

pub fn all() -> Vec<Case> {
    let mut all = cases![Kind::is_zookeeper =>
        our_lock_has_the_form_curator_expects,
        contenders_of_other_libraries_are_waited_for,
        a_persistent_node_of_another_program_lasts_until_it_is_deleted,
        a_node_that_belongs_to_no_lock_is_an_error,
        a_removed_directory_is_created_again,
        a_node_deleted_from_outside_causes_a_drain_delay,
        a_clean_release_causes_no_drain_delay,
        a_holder_of_another_library_causes_no_drain_delay,
        a_vanished_writer_causes_a_drain_delay_for_every_reader,
        an_undone_grant_does_not_shorten_the_drain_delay,
        holders_that_vanish_in_succession_leave_few_marks,
        a_hold_is_handed_over_with_its_session,
        a_nested_hold_keeps_the_lock_of_a_dead_outer_holder,
        a_hold_released_elsewhere_is_left_to_its_nested_holds,
        a_holder_whose_session_is_just_ending_has_no_time_left,
        a_released_lock_leaves_only_its_record,
        a_newer_layout_is_refused,
        a_long_unused_record_can_be_removed,
        a_waiter_far_back_proves_rarely_that_it_lives,
    ];
    all.extend(cases![|kind| kind == Kind::ZooKeeper =>
        a_create_whose_answer_was_lost_is_found_again,
        a_waiter_whose_session_ended_queues_again,
        a_server_that_stops_answering_is_left,
        no_session_is_left_behind,
        many_waiters_survive_a_holder_that_died,
    ]);
    all
}

const ANY: Acls<'static> = Acls::anyone_all();

async fn contenders(lab: &Lab, job: &str) -> Vec<String> {
    let admin = lab.admin().await;
    let path = format!("{}/dlock/{job}", lab.chroot());
    let _ = admin.sync(&path).await;
    let mut names = admin.list_children(&path).await.unwrap_or_default();
    names.retain(|name| !name.contains("-excl-__WRIT__"));
    names.sort_by_key(|name| name[name.len() - 10..].to_owned());
    names
}

async fn delete_first(lab: &Lab, job: &str) {
    let name = contenders(lab, job).await.remove(0);
    lab.admin()
        .await
        .delete(&format!("{}/dlock/{job}/{name}", lab.chroot()), None)
        .await
        .expect("a node to delete");
}

async fn mkdir(lab: &Lab, admin: &Admin, below: &str) -> String {
    let path = format!("{}/{below}", lab.chroot());
    admin
        .mkdir(&path, &CreateMode::Persistent.with_acls(ANY))
        .await
        .expect("a directory");
    path
}

async fn our_lock_has_the_form_curator_expects(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let held = a.hold(&key("job")).await;
    b.refused(&waiting(&key("job"), LONG)).await;
    let names = contenders(lab, "job").await;
    assert_eq!(names.len(), 2);
    for name in &names {
        let (id, number) = name
            .strip_prefix("_c_")
            .expect("Curator's prefix")
            .split_once("-lock-")
            .expect("its lock name");
        assert!(id.len() == 36 && number.len() == 10, "{name}");
        assert!(
            !name.contains(&held.token.owner.to_string()),
            "the owner is a secret"
        );
    }
    let (mut c, reader) = (
        lab.client().await,
        Request {
            mode: Mode::Shared,
            ..request(&key("read"), LONG)
        },
    );
    c.take(&reader).await;
    // Curator's mutex accepts a reader as a contender: a number follows the last `lock-`.
    let name = contenders(lab, "read").await.remove(0);
    assert!(
        name.rsplit_once("lock-")
            .is_some_and(|(_, number)| number.parse::<i32>().is_ok()),
        "{name}"
    );
}

async fn contenders_of_other_libraries_are_waited_for(lab: &Lab) {
    let admin = lab.admin().await;
    let families = [
        (
            "curator",
            "_c_8743c9c0-0795-4907-87fd-6c719a6b4586-lock-",
            false,
        ),
        (
            "write",
            "_c_8743c9c0-0795-4907-87fd-6c719a6b4586-__WRIT__",
            false,
        ),
        (
            "read",
            "_c_8743c9c0-0795-4907-87fd-6c719a6b4586-__READ__",
            true,
        ),
        ("go", "_c_8743c9c0079549078 7fd6c719a6b4586-lock-", false),
        ("kazoo", "8743c9c00795490787fd6c719a6b4586__lock__", false),
        (
            "kazoo-read",
            "8743c9c00795490787fd6c719a6b4586__rlock__",
            true,
        ),
    ];
    for (job, name, shared) in families {
        let path = mkdir(lab, &admin, &format!("dlock/{job}")).await;
        let node = format!("{path}/{name}");
        let (_, number) = admin
            .create(
                &node,
                b"10.0.0.7",
                &CreateMode::EphemeralSequential.with_acls(ANY),
            )
            .await
            .expect("a node");
        let mut a = lab.client().await;
        let busy = a.refused(&request(&key(job), LONG)).await;
        assert!(
            busy.holders.len() == 1
                && busy.holders[0].foreign
                && busy.holders[0].metadata.is_none(),
            "{job}: {busy:?}"
        );
        assert_eq!(
            busy.holders[0].mode,
            if shared {
                Mode::Shared
            } else {
                Mode::Exclusive
            },
            "{job}"
        );
        let reader = Request {
            mode: Mode::Shared,
            ..request(&key(job), LONG)
        };
        assert_eq!(
            matches!(a.attempt(&reader).await, Attempt::Granted(_)),
            shared,
            "{job}: readers share the lock"
        );
        a.0.release(&key(job), &reader.token, &Scope::Tree.into())
            .await
            .expect("release");
        let wanted = waiting(&key(job), LONG);
        assert!(a.refused(&wanted).await.notifies);
        let free = async {
            lab.pass(SLACK).await;
            admin
                .delete(&format!("{node}{number}"), None)
                .await
                .expect("its node");
            Instant::now()
        };
        let (grant, freed) = tokio::join!(a.wait_for(&wanted, LONG), free);
        assert!(freed.elapsed() < soon(), "{job}: {:?}", freed.elapsed());
        assert_eq!(
            grant.drain_delay,
            Duration::ZERO,
            "{job}: other libraries leave no marks"
        );
    }
}

async fn a_persistent_node_of_another_program_lasts_until_it_is_deleted(lab: &Lab) {
    let admin = lab.admin().await;
    for (job, mode) in [
        ("lasting", CreateMode::PersistentSequential),
        ("session", CreateMode::EphemeralSequential),
    ] {
        let node = mkdir(lab, &admin, &format!("dlock/{job}")).await + "/lock-";
        let (_, number) = admin
            .create(&node, b"10.0.0.7", &mode.with_acls(ANY))
            .await
            .expect("a node");
        let mut a = lab.client().await;
        let busy = a.refused(&request(&key(job), LONG)).await;
        for holder in [&busy.holders[0], &a.inspect(&key(job)).await.holders[0]] {
            assert!(holder.foreign && holder.expires_in.is_none(), "{holder:?}");
            assert_eq!(
                holder.removal,
                (job == "lasting").then(|| format!("delete '{node}{number}' in zkCli.sh"))
            );
        }
    }
}

/// Each proof is a write on all servers, and a long queue would keep them busy with nothing else.
async fn a_waiter_far_back_proves_rarely_that_it_lives(lab: &Lab) {
    let admin = lab.admin().await;
    let path = mkdir(lab, &admin, "dlock/job").await;
    let mut others = Vec::new();
    // A reader has the lock: behind an exclusive holder no waiter is judged.
    for n in 0..=220 {
        let form = if n == 0 { "__rlock__" } else { "__lock__" };
        let node = format!("{path}/8743c9c00795490787fd6c719a6b4586{form}");
        let (_, number) = admin
            .create(
                &node,
                b"10.0.0.7",
                &CreateMode::EphemeralSequential.with_acls(ANY),
            )
            .await
            .expect("a node");
        others.push(format!("{node}{number}"));
    }
    let (mut a, mut b, job) = (lab.client().await, lab.client().await, key("job"));
    let (first, second) = (waiting(&job, LONG), waiting(&job, LONG));
    assert_eq!(a.refused(&first).await.position, Some(221));
    assert_eq!(b.refused(&second).await.position, Some(222));
    let place = contenders(lab, "job").await[221].clone();
    let wait_for_long = async |client: &mut Client, wanted: &Request, time: Duration| {
        let began = Instant::now();
        while began.elapsed() < time {
            client
                .wait(wanted, time.saturating_sub(began.elapsed()))
                .await;
            client.refused(wanted).await;
        }
    };
    let time = Duration::from_secs(14);
    tokio::join!(
        wait_for_long(&mut a, &first, time),
        wait_for_long(&mut b, &second, time)
    );
    assert_eq!(
        contenders(lab, "job").await[221],
        place,
        "a living waiter lost its position"
    );
    let meta = format!("{}/dlock.meta", lab.chroot());
    let proofs = admin.list_children(&meta).await.expect("the records");
    let proofs = proofs
        .iter()
        .filter(|name| name.starts_with("%wait-"))
        .collect::<Vec<_>>();
    assert_eq!(proofs.len(), 2);
    for proof in proofs {
        let (data, stat) = admin
            .get_data(&format!("{meta}/{proof}"))
            .await
            .expect("a proof");
        assert!(data == b"7500" && stat.version <= 2, "{stat:?}");
    }
    // The first one dies, and the queue moves on to it.
    for other in others {
        admin.delete(&other, None).await.expect("its node");
    }
    let began = Instant::now();
    b.wait_for(&second, LONG / 2).await;
    crate::support::say(&format!(
        "zookeeper: a waiter that died far back blocked the queue for {:?}; 18 s are allowed",
        began.elapsed()
    ));
}

async fn a_node_that_belongs_to_no_lock_is_an_error(lab: &Lab) {
    let admin = lab.admin().await;
    let path = mkdir(lab, &admin, "dlock/brokers").await;
    admin
        .create(
            &format!("{path}/ids"),
            b"",
            &CreateMode::Persistent.with_acls(ANY),
        )
        .await
        .expect("a node");
    let before = tree(&admin, &lab.chroot()).await;
    let mut a = lab.client().await;
    for wanted in [
        request(&key("brokers"), LONG),
        waiting(&key("brokers"), LONG),
    ] {
        let error = a.0.try_acquire(&wanted).await.expect_err("no lock");
        assert_eq!(error.kind, ErrorKind::Data, "{error:?}");
        assert_eq!(a.renew(&wanted, None).await, Renewal::NotHeld);
        assert_eq!(a.release(&wanted, Scope::Tree).await, Release::NotHeld);
        a.leave_queue(&wanted).await;
    }
    assert_eq!(
        a.0.inspect(&key("brokers"))
            .await
            .expect_err("no lock")
            .kind,
        ErrorKind::Data
    );
    assert!(a.keys("").await.is_empty());
    assert_eq!(tree(&admin, &lab.chroot()).await, before);
}

/// The server also removes containers that are empty for a while.
async fn a_removed_directory_is_created_again(lab: &Lab) {
    let admin = lab.admin().await;
    let mut last = 0;
    for whole in [false, true, false] {
        let mut a = lab.client().await;
        let held = request(&key("job"), LONG);
        let fence = a.take(&held).await.fence;
        assert!(fence.0 > last, "queue numbers start again, fences don't");
        last = fence.0;
        a.free(&held).await;
        let chroot = &lab.chroot();
        admin
            .delete(&format!("{chroot}/dlock/job"), None)
            .await
            .expect("an empty directory");
        if whole {
            admin
                .delete(&format!("{chroot}/dlock"), None)
                .await
                .expect("an empty directory");
        }
        assert_eq!(
            lab.client().await.inspect(&key("job")).await.last_fence,
            Some(fence),
            "the fence is stored elsewhere"
        );
    }
}

async fn a_node_deleted_from_outside_causes_a_drain_delay(lab: &Lab) {
    let (mut a, mut b, mut c) = (lab.client().await, lab.client().await, lab.client().await);
    let job = key("job");
    let held = a.hold(&job).await;
    let wanted = waiting(&job, LONG);
    b.refused(&wanted).await;
    let noticed = async {
        a.0.watch(&job, &held.token).await;
        Instant::now()
    };
    let delete = async {
        lab.pass(SLACK).await;
        delete_first(lab, "job").await;
        Instant::now()
    };
    let (noticed, deleted, grant) = tokio::join!(noticed, delete, b.wait_for(&wanted, LONG));
    assert!(
        noticed.saturating_duration_since(deleted) < soon(),
        "{noticed:?} {deleted:?}"
    );
    assert_eq!(a.renew(&held, None).await, Renewal::NotHeld);
    assert_eq!(a.release(&held, Scope::Tree).await, Release::NotHeld);
    assert_eq!(
        grant.drain_delay,
        Duration::from_millis(500),
        "the old holder's command may need that long to end"
    );
    assert_eq!(
        b.take(&wanted).await.drain_delay,
        grant.drain_delay,
        "a repeated request returns the same grant"
    );
    b.free(&wanted).await;
    // The release removed the rest of the vanished hold.
    assert_eq!(
        c.take(&request(&job, LONG)).await.drain_delay,
        Duration::ZERO
    );
}

async fn a_clean_release_causes_no_drain_delay(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let job = key("job");
    for _ in 0..3 {
        let held = a.hold(&job).await;
        a.take(&nested(&held)).await;
        let wanted = waiting(&job, LONG);
        b.refused(&wanted).await;
        a.release(&held, Scope::Tree).await;
        let grant = b.wait_for(&wanted, LONG).await;
        assert_eq!(grant.drain_delay, Duration::ZERO);
        b.free(&wanted).await;
    }
    // A waiter that leaves the queue without a hold causes no drain delay either.
    let held = a.hold(&job).await;
    let (unwanted, wanted) = (waiting(&job, LONG), waiting(&job, LONG));
    let mut c = lab.client().await;
    b.refused(&unwanted).await;
    c.refused(&wanted).await;
    delete_last_but_one(lab).await;
    a.free(&held).await;
    assert_eq!(c.wait_for(&wanted, LONG).await.drain_delay, Duration::ZERO);
}

async fn delete_last_but_one(lab: &Lab) {
    let names = contenders(lab, "job").await;
    let path = format!("{}/dlock/job/{}", lab.chroot(), names[names.len() - 2]);
    lab.admin()
        .await
        .delete(&path, None)
        .await
        .expect("a node to delete");
}

async fn a_holder_of_another_library_causes_no_drain_delay(lab: &Lab) {
    let admin = lab.admin().await;
    let path = mkdir(lab, &admin, "dlock/job").await;
    let node = format!("{path}/_c_8743c9c0-0795-4907-87fd-6c719a6b4586-lock-");
    let (_, number) = admin
        .create(&node, b"", &CreateMode::EphemeralSequential.with_acls(ANY))
        .await
        .expect("a node");
    let mut a = lab.client().await;
    a.refused(&request(&key("job"), LONG)).await;
    admin
        .delete(&format!("{node}{number}"), None)
        .await
        .expect("its node");
    assert_eq!(
        a.take(&request(&key("job"), LONG)).await.drain_delay,
        Duration::ZERO
    );
}

async fn a_vanished_writer_causes_a_drain_delay_for_every_reader(lab: &Lab) {
    let mut a = lab.client().await;
    a.hold(&key("job")).await;
    delete_first(lab, "job").await;
    let reader = || Request {
        mode: Mode::Shared,
        ..request(&key("job"), LONG)
    };
    let (mut b, mut c) = (lab.client().await, lab.client().await);
    assert_eq!(
        b.take(&reader()).await.drain_delay,
        Duration::from_millis(500)
    );
    assert_eq!(
        c.take(&reader()).await.drain_delay,
        Duration::from_millis(500)
    );
}

async fn an_undone_grant_does_not_shorten_the_drain_delay(lab: &Lab) {
    lab.client().await.hold(&key("job")).await;
    delete_first(lab, "job").await;
    let mut b = lab.client().await;
    for _ in 0..3 {
        let hasty = request(&key("job"), LONG);
        assert_eq!(b.take(&hasty).await.drain_delay, Duration::from_millis(500));
        assert_eq!(
            b.0.release(&hasty.key, &hasty.token, &ReleaseInfo::UNDO)
                .await
                .expect("release"),
            Release::Released
        );
    }
    let patient = request(&key("job"), LONG);
    assert_eq!(
        b.take(&patient).await.drain_delay,
        Duration::from_millis(500)
    );
    b.free(&patient).await;
    assert_eq!(history(&mut b, &key("job")).await.past.len(), 2);
    assert_eq!(
        b.take(&request(&key("job"), LONG)).await.drain_delay,
        Duration::ZERO
    );
}

async fn holders_that_vanish_in_succession_leave_few_marks(lab: &Lab) {
    // No holder ever releases.
    let (mut fences, mut clients) = (Vec::new(), Vec::new());
    for n in 0..40 {
        let mut a = lab.client().await;
        let asked = Request {
            detached: n % 2 == 0,
            ..request(&key("job"), LONG)
        };
        let grant = a.take(&asked).await;
        assert_eq!(
            grant.drain_delay,
            Duration::from_millis(if n == 0 { 0 } else { 500 })
        );
        fences.push(Some(grant.fence));
        clients.push(a);
        delete_first(lab, "job").await;
    }
    let meta = lab
        .admin()
        .await
        .list_children(&format!("{}/dlock.meta/job", lab.chroot()))
        .await
        .expect("nodes");
    assert!(
        meta.iter().filter(|name| name.starts_with("held-")).count() < 20,
        "{meta:?}"
    );
    let past = history(&mut clients[0], &key("job")).await.past;
    assert!(
        past.iter()
            .map(|past| past.fence)
            .eq(fences.into_iter().rev()),
        "{past:?}"
    );
    assert!(past.iter().all(|past| past.end == End::Expired));
}

async fn a_hold_is_handed_over_with_its_session(lab: &Lab) {
    let (mut a, mut b, mut c) = (lab.client().await, lab.client().await, lab.client().await);
    let job = key("job");
    let mut held = Request {
        detached: true,
        ..request(&job, short() * 2)
    };
    let bare = held.clone();
    let grant = a.take(&held).await;
    drop(a);
    held.token = held.token.reveal().parse().expect("a token");
    assert_eq!(
        b.renew(&held, None).await,
        Renewal::NotHeld,
        "without its session the token holds nothing"
    );
    held.token.session = grant.session;
    assert!(grant.session.is_some());
    for _ in 0..3 {
        lab.pass(short() * 3 / 2).await;
        assert_eq!(b.renewed(&held, None).await, grant.fence);
    }
    // The token as text is enough.
    held.token = held.token.reveal().parse().expect("a token");
    assert_eq!(c.renewed(&held, None).await, grant.fence);
    assert_eq!(
        b.release(&bare, Scope::Hold).await,
        Release::Released,
        "this client has taken over the session already"
    );
    assert_eq!(c.renew(&held, None).await, Renewal::NotHeld);
    // The detached hold expires by itself.
    let mut other = Request {
        detached: true,
        ..request(&job, short())
    };
    other.token.session = c.take(&other).await.session;
    lab.outlast(short()).await;
    assert_eq!(b.renew(&other, None).await, Renewal::NotHeld);
    b.hold(&job).await;
}

/// As with `--leftover leave`: the outer process is gone, and a nested hold keeps the lock beyond
/// the outer lease.
async fn a_nested_hold_keeps_the_lock_of_a_dead_outer_holder(lab: &Lab) {
    let (mut a, mut b, mut c) = (lab.client().await, lab.client().await, lab.client().await);
    let job = key("job");
    let outer = request(&job, short());
    a.take(&outer).await;
    let inner = Request {
        ttl: crate::lab::ttl(LONG),
        ..nested(&outer)
    };
    b.take(&inner).await;
    assert_eq!(a.release(&outer, Scope::Hold).await, Release::StillHeld(1));
    drop(a);
    assert!(
        c.left(&job).await <= short(),
        "the remaining lease without renewals of the nested hold"
    );
    for _ in 0..5 {
        match b.renew(&inner, None).await {
            Renewal::Renewed { ttl, .. } => {
                assert_eq!(ttl.get(), short(), "the TTL is that of the shorter session");
            }
            other => panic!("{other:?}"),
        }
        c.refused(&request(&job, LONG)).await;
        lab.pass(short() / 2).await;
    }
    b.free(&inner).await;
    c.hold(&job).await;
}

/// The servers remove a session's ephemeral nodes one by one.
async fn a_hold_released_elsewhere_is_left_to_its_nested_holds(lab: &Lab) {
    for renews in [true, false] {
        let (mut a, mut b, mut c) = (lab.client().await, lab.client().await, lab.client().await);
        let job = key(&format!("{renews}"));
        let mut held = Request {
            detached: true,
            ..request(&job, LONG)
        };
        held.token.session = a.take(&held).await.session;
        let inner = nested(&held);
        c.take(&inner).await;
        b.renewed(&held, None).await;
        assert_eq!(b.release(&held, Scope::Hold).await, Release::StillHeld(1));
        // The process that took the hold doesn't know of its release.
        if renews {
            assert_eq!(a.renew(&held, None).await, Renewal::NotHeld);
        }
        assert_eq!(a.release(&held, Scope::Tree).await, Release::NotHeld);
        lab.pass(SLACK).await;
        c.renewed(&inner, None).await;
        lab.client().await.refused(&request(&job, LONG)).await;
        c.free(&inner).await;
        lab.client().await.hold(&job).await;
    }
}

async fn a_holder_whose_session_is_just_ending_has_no_time_left(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let job = key("job");
    a.hold(&job).await;
    let admin = lab.admin().await;
    let meta = format!("{}/dlock.meta/job", lab.chroot());
    admin
        .sync(&meta)
        .await
        .expect("a server that is up to date");
    let holds = admin
        .list_children(&meta)
        .await
        .expect("the nodes next to the lock");
    let hold = holds
        .iter()
        .find(|name| name.starts_with("hold-"))
        .expect("the node that renewals write");
    admin
        .delete(&format!("{meta}/{hold}"), None)
        .await
        .expect("a node to delete");
    assert_eq!(
        b.refused(&request(&job, LONG)).await.expires_in,
        Some(Duration::ZERO)
    );
    assert!(
        b.refused(&waiting(&job, LONG))
            .await
            .expires_in
            .is_some_and(|left| left < soon())
    );
}

async fn a_released_lock_leaves_only_its_record(lab: &Lab) {
    let mut a = lab.client().await;
    let held = a.hold(&key("a/b")).await;
    a.take(&nested(&held)).await;
    let mut b = lab.client().await;
    b.refused(&request(&key("a/b"), LONG)).await;
    let wanted = waiting(&key("a/b"), LONG);
    b.refused(&wanted).await;
    b.leave_queue(&wanted).await;
    a.release(&held, Scope::Tree).await;
    drop((a, b));
    let chroot = lab.chroot();
    let admin = lab.admin().await;
    let left = [
        format!("{chroot}/dlock.meta/a%2Fb"),
        format!("{chroot}/dlock/a%2Fb"),
        format!("{chroot}/dlock.meta"),
        format!("{chroot}/dlock"),
        chroot.clone(),
        // The history.
        format!("{chroot}/dlock.meta/%fine"),
        format!("{chroot}/dlock.meta/%fine/a%2Fb"),
    ];
    // Nodes that were created to learn the server's time end with their sessions.
    let until = Instant::now() + Duration::from_secs(8);
    loop {
        let mut nodes = tree(&admin, &chroot).await;
        nodes.retain(|node| !left.contains(node) && !node.starts_with(&format!("{}/", left[6])));
        if nodes.is_empty() {
            break;
        }
        assert!(Instant::now() < until, "{nodes:?}");
        lab.pass(SLACK).await;
    }
}

async fn a_newer_layout_is_refused(lab: &Lab) {
    let mut a = lab.client().await;
    let held = a.hold(&key("job")).await;
    let name = contenders(lab, "job").await.remove(0);
    let path = format!("{}/dlock/job/{name}", lab.chroot());
    let admin = lab.admin().await;
    admin
        .set_data(&path, br#"{"dlock":"3.0"}"#, None)
        .await
        .expect("its data");
    let mut b = lab.client().await;
    for error in [
        b.0.try_acquire(&request(&key("job"), LONG)).await.err(),
        b.0.inspect(&key("job")).await.err(),
    ] {
        assert_eq!(error.expect("refused").kind, ErrorKind::Layout);
    }
    admin
        .set_data(&path, br#"{"dlock":"2.9","more":1}"#, None)
        .await
        .expect("its data");
    b.refused(&request(&key("job"), LONG)).await;
    a.free(&held).await;
}

async fn a_long_unused_record_can_be_removed(lab: &Lab) {
    let mut a = lab.client().await;
    let held = a.hold(&key("held")).await;
    let used = a.hold(&key("used")).await;
    a.free(&used).await;
    lab.pass(Duration::from_millis(500)).await;
    assert_eq!(
        a.0.collect(LONG, &Progress::default()).await.expect("gc"),
        Some(0)
    );
    assert_eq!(history(&mut a, &key("used")).await.past.len(), 1);
    assert_eq!(
        a.0.collect(Duration::from_millis(100), &Progress::default())
            .await
            .expect("gc"),
        Some(1),
        "one lock: its record and its history"
    );
    assert_eq!(a.inspect(&key("used")).await.last_fence, None);
    assert_eq!(history(&mut a, &key("used")).await.past, []);
    let before = used.token;
    let again = request(&key("used"), LONG);
    assert_ne!(before, again.token);
    a.take(&again).await;
    a.renewed(&held, None).await;
}

const LIMITS: Limits<'static> = Limits::of(Duration::from_secs(2));

async fn a_create_whose_answer_was_lost_is_found_again(lab: &Lab) {
    let mut other = lab.client().await;
    for fault in [Fault::CutBefore, Fault::CutAfter, Fault::Swallow] {
        let job = key(&format!("job-{fault:?}"));
        let held = other.hold(&job).await;
        let proxy = Proxy::to(lab.store().port());
        let mut a = lab.through(proxy.port);
        proxy.trap(lab.kind.marks().taking, fault);
        let wanted = waiting(&job, LONG);
        let never = std::future::pending::<()>();
        let take = lease::acquire(
            &mut *a.0,
            &BootClock,
            wanted,
            WaitPolicy::For(LONG),
            LIMITS,
            never,
            |_| {},
        );
        let free = async {
            lab.pass(LIMITS.attempt() * 2).await;
            let names = contenders(lab, job.as_str()).await;
            assert_eq!(
                names.len(),
                2,
                "{fault:?}: one waiter has one position: {names:?}"
            );
            other.free(&held).await;
        };
        let (outcome, ()) = tokio::join!(take, free);
        let Ok(Outcome::Granted(lease)) = outcome else {
            panic!("{outcome:?}")
        };
        assert_eq!(proxy.sprung(), 1);
        assert_eq!(
            a.0.release(&job, &lease.token, &Scope::Tree.into())
                .await
                .expect("release"),
            Release::Released
        );
        assert!(contenders(lab, job.as_str()).await.is_empty());
    }
}

async fn a_waiter_whose_session_ended_queues_again(lab: &Lab) {
    let (mut a, mut c) = (lab.client().await, lab.client().await);
    let job = key("job");
    let held = a.hold(&job).await;
    let mut proxy = Proxy::to(lab.store().port());
    let mut b = lab.through(proxy.port);
    let (lost, after) = (waiting(&job, short()), waiting(&job, LONG));
    assert_eq!(b.refused(&lost).await.position, Some(1));
    assert_eq!(c.refused(&after).await.position, Some(2));
    proxy.set(Line::BlackHole);
    lab.outlast(short() * 2).await;
    assert_eq!(contenders(lab, "job").await.len(), 2);
    proxy.set(Line::Pass);
    proxy.cut();
    // The waiter learns of the loss while it waits, or with its next request after the connection
    // broke.
    let mut wake = loop {
        match b.0.wait(&lost, Duration::from_secs(5)).await {
            Err(error) if error.is_transient() => lab.pass(Duration::from_millis(20)).await,
            answer => break answer.expect("wait"),
        }
    };
    assert_eq!(wake, Wake::Changed);
    assert_eq!(
        b.refused(&lost).await.position,
        Some(2),
        "the waiter is at the end of the queue"
    );
    a.free(&held).await;
    c.wait_for(&after, LONG).await;
    wake = b.wait(&lost, SLACK).await;
    assert_eq!(wake, Wake::TimedOut);
    c.free(&after).await;
    b.wait_for(&lost, LONG).await;
}

/// An unanswered renewal is repeated over another connection, and the session continues.
async fn a_server_that_stops_answering_is_left(lab: &Lab) {
    let mut proxy = Proxy::to(lab.store().port());
    let mut a = lab.through(proxy.port);
    let job = key("job");
    let held = request(&job, LONG);
    let fence = a.take(&held).await.fence;
    proxy.set(Line::BlackHole);
    assert!(
        tokio::time::timeout(SLACK, a.0.renew(&job, &held.token, None.into()))
            .await
            .is_err()
    );
    proxy.set(Line::Pass);
    let before = proxy.connections();
    let began = Instant::now();
    assert_eq!(a.renewed(&held, None).await, fence);
    assert!(
        began.elapsed() < soon() && proxy.connections() > before,
        "{:?}",
        began.elapsed()
    );
}

/// Completed calls and dropped calls both end their sessions.
async fn no_session_is_left_behind(lab: &Lab) {
    lab.isolate();
    let servers = lab.zookeeper();
    let sessions = || servers.nodes[0].counted("zk_global_sessions");
    let before = sessions().expect("a count of sessions");
    let mut a = lab.client().await;
    let (job, other) = (key("job"), key("other"));
    for _ in 0..5 {
        // A refused request, a waiter that leaves, nested holds, and releases of a hold and of a
        // tree.
        let held = a.hold(&job).await;
        lab.client().await.refused(&request(&job, LONG)).await;
        let mut b = lab.client().await;
        let wanted = waiting(&job, LONG);
        b.refused(&wanted).await;
        b.leave_queue(&wanted).await;
        let inner = nested(&held);
        b.take(&inner).await;
        assert_eq!(b.release(&inner, Scope::Hold).await, Release::StillHeld(1));
        a.take(&nested(&held)).await;
        a.release(&held, Scope::Tree).await;
        // A hold that passes to its nested hold.
        let held = a.hold(&job).await;
        let inner = nested(&held);
        b.take(&inner).await;
        assert_eq!(a.release(&held, Scope::Hold).await, Release::StillHeld(1));
        b.renewed(&inner, None).await;
        b.free(&inner).await;
        // Detached holds that other processes use.
        let mut held = Request {
            detached: true,
            ..request(&other, LONG)
        };
        held.token.session = a.take(&held).await.session;
        lab.client().await.renewed(&held, None).await;
        lab.client().await.free(&held).await;
        assert_eq!(
            lab.client().await.renew(&held, None).await,
            Renewal::NotHeld
        );
        let held = Request {
            detached: true,
            ..request(&other, LONG)
        };
        a.take(&held).await;
        a.free(&held).await;
        a.inspect(&job).await;
        a.keys("").await;
    }
    for moment in [0, 50, 100, 200, 400, 800, 1500, 3000].map(Duration::from_micros) {
        let mut b = lab.client().await;
        let wanted = request(&job, LONG);
        let _ = tokio::time::timeout(moment, b.0.try_acquire(&wanted)).await;
        b.release(&wanted, Scope::Hold).await;
        let _ = tokio::time::timeout(moment, b.0.inspect(&job)).await;
        let _ = tokio::time::timeout(moment, b.0.list("", &Progress::default())).await;
    }
    // Nested holds of a released tree end with their processes.
    let began = Instant::now();
    while sessions().is_none_or(|count| count > before + 5) {
        assert!(
            began.elapsed() < stretched(Duration::from_secs(2)),
            "{before} {:?} {:?}",
            sessions(),
            servers.nodes[0].word("dump")
        );
        lab.pass(SLACK).await;
    }
    drop(a);
}

/// The end of the holder's session wakes one waiter, and no other.
async fn many_waiters_survive_a_holder_that_died(lab: &Lab) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let files = getrlimit(Resource::Nofile);
    let _ = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: files.maximum,
            ..files
        },
    );
    if files.maximum.is_some_and(|most| most < 8192) {
        return crate::support::skip(
            "many_waiters_survive_a_holder_that_died",
            "too few files may be open",
        );
    }
    lab.isolate();
    let servers = lab.zookeeper();
    let packets = || {
        servers.nodes[0]
            .counted("zk_packets_received")
            .unwrap_or_default()
    };
    let mut holder = lab.client().await;
    let job = key("job");
    holder.take(&request(&job, short() * 4)).await;
    let began = Instant::now();
    let mut waiters = std::collections::VecDeque::new();
    let count = crate::support::many_waiters();
    for _ in 0..count {
        let (mut client, wanted) = (lab.client().await, waiting(&job, LONG));
        client.refused(&wanted).await;
        waiters.push_back((client, wanted));
    }
    let joined = began.elapsed();
    drop(holder);
    let died = Instant::now();
    let (mut first, wanted) = waiters.pop_front().expect("a waiter");
    let grant = first.wait_for(&wanted, LONG).await;
    let took = died.elapsed();
    assert_eq!(grant.drain_delay, Duration::from_millis(500));
    assert!(took < short() * 5 + soon(), "{took:?}");
    for (other, wanted) in &mut waiters {
        assert_eq!(
            other.wait(wanted, Duration::ZERO).await,
            Wake::TimedOut,
            "only one waiter is woken"
        );
    }
    let before = packets();
    let began = Instant::now();
    let mut holding = (first, wanted);
    for _ in 0..20 {
        let (mut next, wanted) = waiters.pop_front().expect("a waiter");
        holding.0.free(&holding.1).await;
        next.wait_for(&wanted, LONG).await;
        holding = (next, wanted);
    }
    let each = began.elapsed() / 20;
    crate::support::say(&format!(
        "{count} waiters joined in {joined:?}; the first was granted the lock {took:?} after a holder with a lease of 4 s died; \
         then {each:?} and {} packets for each hand-over, including the waiters' keep-alives",
        (packets() - before) / 20
    ));
}
