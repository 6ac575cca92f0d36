//! The keys under a lock's name in etcd: those of dlock, of other libraries, and of dead clients.

use std::time::Duration;

use dlock::lock::{
    Amendment, Attempt, End, Entry, Fence, Kind as ErrorKind, Mode, Progress, Release, ReleaseInfo,
    Renewal, Request, Scope, Wake,
};
use futures_util::future::join_all;
use tokio::time::{Instant, timeout};

use super::{
    Case, cases,
    history::{broken, history},
};
use crate::{
    lab::{
        Client, LONG, Lab, SLACK, key, nested, request, runner, short, soon, stretched, waiting,
    },
    support::proxy::{Fault, Proxy},
    targets::Kind,
};

pub fn all() -> Vec<Case> {
    cases![|kind| kind == Kind::Etcd =>
        a_hold_is_one_key_in_its_folder,
        a_foreign_holder_is_busy_and_waited_for,
        foreign_readers_share_with_readers_only,
        a_key_without_a_lease_is_an_error,
        keys_in_subfolders_block_no_lock,
        a_newer_layout_is_refused_by_etcds_readers,
        a_key_deleted_by_an_administrator_is_not_held,
        a_lease_revoked_by_an_administrator_is_not_held,
        a_holder_notices_that_its_key_is_gone,
        a_waiter_whose_key_was_deleted_queues_again,
        a_waiter_whose_lease_ended_queues_again,
        a_lease_that_is_just_over_has_an_end,
        a_vanished_holders_successor_has_a_drain_delay,
        a_released_grant_does_not_shorten_the_drain_delay,
        the_drain_delay_is_passed_on_to_the_next_waiter,
        holders_that_vanish_in_succession_leave_few_records,
        a_foreign_holders_successor_has_no_drain_delay,
        a_waiter_is_woken_after_a_compaction,
        only_the_last_fence_and_the_history_remain,
        unused_records_are_collected,
        a_token_can_not_be_derived_from_stored_data,
        a_shared_hold_is_not_entered_exclusively,
        a_dead_queue_monitor_is_replaced,
        only_the_front_waiters_are_probed,
        a_waiter_probed_before_it_listens_answers,
    ]
}

/// Returns the lock's folder in the server.
fn folder(lab: &Lab, job: &str) -> String {
    format!("{}/{job}/", lab.namespace("dlock"))
}

/// Puts a key on a lease of one minute, as another library does, and returns the lease.
fn put(lab: &Lab, name: &str) -> String {
    let granted = lab.etcd().ctl(&["lease", "grant", "60"]);
    let lease = granted
        .split_whitespace()
        .nth(1)
        .expect("a lease")
        .to_owned();
    lab.etcd()
        .ctl(&["put", "--lease", &lease, &name.replace("LEASE", &lease), ""]);
    lease
}

fn keys(lab: &Lab) -> Vec<String> {
    lab.etcd().keys(&lab.namespace(""))
}

fn shared(of: Request) -> Request {
    Request {
        mode: Mode::Shared,
        ..of
    }
}

async fn a_hold_is_one_key_in_its_folder(lab: &Lab) {
    let mut a = lab.client().await;
    let held = Request {
        metadata: Some(runner("web1")),
        ..request(&key("job"), LONG)
    };
    let grant = a.take(&held).await;
    a.take(&nested(&held)).await;
    a.renewed(&held, None).await;
    let etcd = lab.etcd();
    let names = etcd.keys(&folder(lab, "job"));
    assert_eq!(names.len(), 1, "{names:?}");
    let lease = names[0]
        .strip_prefix(&format!("{}write/", folder(lab, "job")))
        .expect("a writer");
    assert!(
        etcd.leases().contains(&format!("{lease:0>16}")),
        "{lease} {:?}",
        etcd.leases()
    );
    let fields = etcd.ctl(&["get", &names[0], "-w", "fields"]);
    let field = |name: &str| {
        let line = fields
            .lines()
            .find(|line| line.starts_with(&format!("\"{name}\"")))
            .expect("a field");
        line.split(" : ").nth(1).expect("a value").to_owned()
    };
    // A second put would let waiters of other libraries overtake.
    assert_eq!(
        (field("CreateRevision"), field("ModRevision")),
        (grant.fence.to_string(), grant.fence.to_string())
    );
    assert_eq!(
        i64::from_str_radix(lease, 16).expect("hex").to_string(),
        field("Lease")
    );
}

async fn a_foreign_holder_is_busy_and_waited_for(lab: &Lab) {
    let lease = put(lab, &format!("{}LEASE", folder(lab, "job")));
    let mut a = lab.client().await;
    let wanted = waiting(&key("job"), LONG);
    let busy = a.refused(&request(&key("job"), LONG)).await;
    assert!(
        busy.holders.len() == 1 && busy.holders[0].foreign && busy.notifies,
        "{busy:?}"
    );
    assert!(
        busy.expires_in
            .is_some_and(|left| left <= Duration::from_secs(60)),
        "{busy:?}"
    );
    assert_eq!(a.keys("").await, ["job"]);
    // A foreign holder can't be broken: it does not read the mark.
    let fence = busy.holders[0].fence.expect("a fence");
    let broken = [
        a.0.amend(&key("job"), Amendment::Mark(fence, &broken("NFS")))
            .await,
        a.0.amend(&key("job"), Amendment::Evict(fence, &broken("NFS")))
            .await,
    ];
    assert!(
        broken
            .iter()
            .all(|answer| matches!(answer, Err(error) if error.kind == ErrorKind::Unsupported)),
        "{broken:?}"
    );
    a.refused(&wanted).await;
    let revoke = async {
        lab.pass(SLACK).await;
        lab.etcd().ctl(&["lease", "revoke", &lease]);
        Instant::now()
    };
    let (_, gone) = tokio::join!(a.wait_for(&wanted, LONG), revoke);
    assert!(gone.elapsed() < soon(), "{:?}", gone.elapsed());
}

async fn foreign_readers_share_with_readers_only(lab: &Lab) {
    let mut a = lab.client().await;
    // etcd's read-write lock names readers after the time in nanoseconds.
    put(
        lab,
        &format!("{}read/1732190000000000000", folder(lab, "job")),
    );
    a.refused(&request(&key("job"), LONG)).await;
    let reader = shared(request(&key("job"), LONG));
    a.take(&reader).await;
    put(
        lab,
        &format!("{}write/1732190000000000001", folder(lab, "job")),
    );
    a.renewed(&reader, None).await;
    // The queue is in order: a reader behind a writer waits for that writer.
    a.refused(&shared(request(&key("job"), LONG))).await;
    a.free(&reader).await;
    let state = a.inspect(&key("job")).await;
    assert_eq!(
        (state.holders.len(), state.waiters.len()),
        (1, 1),
        "{state:?}"
    );
}

async fn a_key_without_a_lease_is_an_error(lab: &Lab) {
    let name = format!("{}1234abcd", folder(lab, "job"));
    lab.etcd().ctl(&["put", &name, "not a lock"]);
    let mut a = lab.client().await;
    for wanted in [request(&key("job"), LONG), waiting(&key("job"), LONG)] {
        let error =
            a.0.try_acquire(&wanted)
                .await
                .expect_err("cron would skip every run silently");
        assert_eq!(error.kind, ErrorKind::Data, "{error:?}");
        let hint = error.hint.expect("a hint");
        assert!(hint.contains(&format!("etcdctl del '{name}'")), "{hint}");
        a.leave_queue(&wanted).await;
    }
    assert_eq!(keys(lab), [&*name]);
    // What keeps every run from the lock is held, for all commands.
    let listed = a.0.list("", &Progress::default()).await.expect("list");
    for state in [&a.inspect(&key("job")).await, &listed[0]] {
        let [holder] = &*state.holders else {
            panic!("{state:?}");
        };
        assert!(holder.foreign && holder.expires_in.is_none(), "{holder:?}");
        assert_eq!(holder.removal, Some(format!("etcdctl del '{name}'")));
    }
    // In an empty namespace, it may be anything.
    assert!(lab.client_in("").await.keys("").await.is_empty());
    lab.etcd().ctl(&["del", &name]);
    a.hold(&key("job")).await;
}

async fn keys_in_subfolders_block_no_lock(lab: &Lab) {
    // A key of `etcdctl lock job/1`, and a key of another program.
    put(lab, &format!("{}1/LEASE", folder(lab, "job")));
    lab.etcd()
        .ctl(&["put", &format!("{}meta", folder(lab, "job")), "x"]);
    let mut a = lab.client().await;
    for wanted in [
        request(&key("job"), LONG),
        waiting(&key("job"), LONG),
        shared(request(&key("job"), LONG)),
    ] {
        a.take(&wanted).await;
        lab.client()
            .await
            .refused(&request(&key("job"), LONG))
            .await;
        a.free(&wanted).await;
    }
    // Two locks of dlock don't block each other either, whichever is taken first.
    let outer = a.hold(&key("a")).await;
    let inner = a.hold(&key("a/b")).await;
    a.free(&outer).await;
    a.hold(&key("a")).await;
    a.free(&inner).await;
    a.hold(&key("a/b")).await;
}

async fn a_newer_layout_is_refused_by_etcds_readers(lab: &Lab) {
    let name = format!("{}write/LEASE", folder(lab, "job"));
    let granted = lab.etcd().ctl(&["lease", "grant", "60"]);
    let lease = granted.split_whitespace().nth(1).expect("a lease");
    lab.etcd().ctl(&[
        "put",
        "--lease",
        lease,
        &name.replace("LEASE", lease),
        r#"{"dlock":"3.0","more":1}"#,
    ]);
    let mut a = lab.client().await;
    let errors = [
        a.0.try_acquire(&request(&key("job"), LONG)).await.err(),
        a.0.inspect(&key("job")).await.err(),
    ];
    assert!(
        errors.iter().all(|error| error
            .as_ref()
            .is_some_and(|error| error.kind == ErrorKind::Layout)),
        "{errors:?}"
    );
}

/// Returns the key of the only holder.
fn holder_key(lab: &Lab) -> String {
    lab.etcd().keys(&folder(lab, "job")).remove(0)
}

async fn a_key_deleted_by_an_administrator_is_not_held(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let held = a.hold(&key("job")).await;
    let inner = nested(&held);
    b.take(&inner).await;
    // The lease lives on, so a keep-alive alone would succeed.
    lab.etcd().ctl(&["del", &holder_key(lab)]);
    assert_eq!(a.renew(&held, None).await, Renewal::NotHeld);
    assert_eq!(b.renew(&inner, None).await, Renewal::NotHeld);
    assert!(matches!(b.attempt(&nested(&held)).await, Attempt::NotHeld));
    let newer = lab.client().await.hold(&key("job")).await;
    assert_eq!(a.renew(&held, None).await, Renewal::NotHeld);
    assert_eq!(a.release(&held, Scope::Tree).await, Release::NotHeld);
    lab.client().await.renewed(&newer, None).await;
}

async fn a_lease_revoked_by_an_administrator_is_not_held(lab: &Lab) {
    let mut a = lab.client().await;
    let held = a.hold(&key("job")).await;
    let lease = holder_key(lab)
        .rsplit('/')
        .next()
        .expect("a lease")
        .to_owned();
    lab.etcd().ctl(&["lease", "revoke", &lease]);
    assert_eq!(a.renew(&held, None).await, Renewal::NotHeld);
    assert_eq!(a.release(&held, Scope::Tree).await, Release::NotHeld);
}

async fn a_holder_notices_that_its_key_is_gone(lab: &Lab) {
    let mut a = lab.client().await;
    for how in ["deleted", "revoked", "without a watch before"] {
        let held = a.hold(&key("job")).await;
        if how != "without a watch before" {
            assert!(
                timeout(SLACK, a.0.watch(&held.key, &held.token))
                    .await
                    .is_err(),
                "too early"
            );
            a.renewed(&held, None).await;
        }
        let own = holder_key(lab);
        let lease = own.rsplit('/').next().expect("a lease").to_owned();
        let words: &[&str] = if how == "revoked" {
            &["lease", "revoke", &lease]
        } else {
            &["del", &own]
        };
        lab.etcd().ctl(words);
        let began = Instant::now();
        timeout(soon(), a.0.watch(&held.key, &held.token))
            .await
            .unwrap_or_else(|_| panic!("{how}: not noticed"));
        assert!(
            began.elapsed() < stretched(SLACK),
            "{how}: {:?}",
            began.elapsed()
        );
        assert_eq!(a.renew(&held, None).await, Renewal::NotHeld);
        assert_eq!(a.release(&held, Scope::Tree).await, Release::NotHeld);
    }
}

async fn requeue(lab: &Lab, lose: impl AsyncFn(&str)) {
    let (mut a, mut b, mut c) = (lab.client().await, lab.client().await, lab.client().await);
    let held = a.hold(&key("job")).await;
    let first = holder_key(lab);
    let wanted = waiting(&key("job"), LONG);
    assert_eq!(b.refused(&wanted).await.position, Some(1));
    let queued = lab
        .etcd()
        .keys(&folder(lab, "job"))
        .into_iter()
        .find(|name| *name != first)
        .expect("a waiter");
    let behind = waiting(&key("job"), LONG);
    assert_eq!(c.refused(&behind).await.position, Some(2));
    let wait = async {
        let wake = timeout(soon(), b.wait(&wanted, LONG)).await;
        assert_eq!(wake.expect("woken"), Wake::Changed);
    };
    let taken_away = async {
        lab.pass(SLACK).await;
        lose(&queued).await;
    };
    tokio::join!(wait, taken_away);
    assert_eq!(
        b.refused(&wanted).await.position,
        Some(2),
        "the waiter lost its position"
    );
    a.free(&held).await;
    c.wait_for(&behind, LONG).await;
    b.refused(&wanted).await;
    c.free(&behind).await;
    b.wait_for(&wanted, LONG).await;
    b.renewed(&wanted, None).await;
    b.free(&wanted).await;
}

async fn a_waiter_whose_key_was_deleted_queues_again(lab: &Lab) {
    requeue(lab, async |name: &str| {
        drop(lab.etcd().ctl(&["del", name]));
    })
    .await;
}

async fn a_waiter_whose_lease_ended_queues_again(lab: &Lab) {
    requeue(lab, async |name: &str| {
        drop(
            lab.etcd()
                .ctl(&["lease", "revoke", name.rsplit('/').next().expect("a lease")]),
        );
    })
    .await;
}

const DRAIN_DELAY: Duration = Duration::from_millis(500);

/// The ways to end a hold without a release.
const ENDS: [&str; 4] = ["expired", "revoked", "deleted", "evicted"];

/// A hold that will end without a release.
struct Vanishing {
    _holder: Client,
    key: String,
    fence: Fence,
    how: &'static str,
}

impl Vanishing {
    async fn take(lab: &Lab, how: &'static str) -> Self {
        let mut holder = lab.client().await;
        let grant = holder
            .take(&request(
                &key("job"),
                if how == "expired" { short() } else { LONG },
            ))
            .await;
        Self {
            _holder: holder,
            key: holder_key(lab),
            fence: grant.fence,
            how,
        }
    }

    async fn vanish(&self, lab: &Lab) {
        let ctl = |arguments: &[&str]| drop(lab.etcd().ctl(arguments));
        match self.how {
            "expired" => lab.outlast(short()).await,
            "revoked" => ctl(&[
                "lease",
                "revoke",
                self.key.rsplit('/').next().expect("a lease"),
            ]),
            "deleted" => ctl(&["del", &self.key]),
            _ => assert!(
                lab.client()
                    .await
                    .0
                    .amend(&key("job"), Amendment::Evict(self.fence, &broken("NFS")))
                    .await
                    .expect("evicted")
            ),
        }
    }
}

/// The holder's lease is over before the rest of it is asked for.
async fn a_lease_that_is_just_over_has_an_end(lab: &Lab) {
    let attempts = (0..8).map(|nth| async move {
        let job = key(&format!("job-{nth}"));
        let proxy = Proxy::to(lab.store().port());
        let mut b = lab.through(proxy.port);
        b.inspect(&job).await;
        lab.client().await.take(&lab.expiring(&job, short())).await;
        proxy.trap_nth("", nth, 1, Fault::Late(short() * 3));
        b.attempt(&request(&job, LONG)).await
    });
    for attempt in join_all(attempts).await {
        if let Attempt::Busy(busy) = attempt {
            assert!(busy.transient || busy.expires_in.is_some(), "{busy:?}");
        }
    }
}

async fn a_vanished_holders_successor_has_a_drain_delay(lab: &Lab) {
    for (how, waits) in ENDS.into_iter().flat_map(|how| [(how, false), (how, true)]) {
        let gone = Vanishing::take(lab, how).await;
        let mut b = lab.client().await;
        let next = if waits {
            waiting(&key("job"), LONG)
        } else {
            request(&key("job"), LONG)
        };
        if waits {
            b.refused(&next).await;
        }
        gone.vanish(lab).await;
        assert_eq!(
            b.wait_for(&next, LONG).await.drain_delay,
            DRAIN_DELAY,
            "{how}, waits: {waits}"
        );
        lab.pass(DRAIN_DELAY).await;
        b.free(&next).await;
        // The vanished holder is dead by now, so the next grant has no drain delay.
        let after = request(&key("job"), LONG);
        assert_eq!(b.take(&after).await.drain_delay, Duration::ZERO, "{how}");
        b.free(&after).await;
    }
    // Clients that released the lock or left the queue cause no drain delay.
    let (mut a, mut b, mut c) = (lab.client().await, lab.client().await, lab.client().await);
    let held = a.hold(&key("job")).await;
    let (leaving, wanted) = (waiting(&key("job"), LONG), waiting(&key("job"), LONG));
    b.refused(&leaving).await;
    c.refused(&wanted).await;
    b.leave_queue(&leaving).await;
    a.free(&held).await;
    assert_eq!(c.wait_for(&wanted, LONG).await.drain_delay, Duration::ZERO);
}

async fn a_released_grant_does_not_shorten_the_drain_delay(lab: &Lab) {
    let gone = Vanishing::take(lab, "revoked").await;
    gone.vanish(lab).await;
    let mut b = lab.client().await;
    for _ in 0..3 {
        // This client is granted the lock, and gives up before it starts a command.
        let hasty = request(&key("job"), LONG);
        assert_eq!(b.take(&hasty).await.drain_delay, DRAIN_DELAY);
        b.free(&hasty).await;
    }
    let patient = request(&key("job"), LONG);
    assert_eq!(b.take(&patient).await.drain_delay, DRAIN_DELAY);
    // A renewal also removes the records of vanished holders, after the drain delay.
    lab.pass(DRAIN_DELAY).await;
    b.renewed(&patient, None).await;
    let records = format!("{}.meta/%open/", lab.namespace("dlock"));
    assert_eq!(
        lab.etcd().keys(&records).len(),
        1,
        "only the holder's own record remains"
    );
    b.free(&patient).await;
    assert!(lab.etcd().keys(&records).is_empty());
}

/// The holder in front of the waiter gives the lock back at once, or undoes a grant whose answer
/// was lost.
async fn the_drain_delay_is_passed_on_to_the_next_waiter(lab: &Lab) {
    for is_lost in [false, true] {
        Vanishing::take(lab, "revoked").await.vanish(lab).await;
        let proxy = Proxy::to(lab.store().port());
        let (mut a, mut b, mut c) = (
            lab.through(proxy.port),
            lab.client().await,
            lab.client().await,
        );
        let hasty = request(&key("job"), LONG);
        if is_lost {
            proxy.trap("/write/", Fault::CutAfter);
            a.0.try_acquire(&hasty)
                .await
                .expect_err("the answer was lost");
        } else {
            assert_eq!(a.take(&hasty).await.drain_delay, DRAIN_DELAY);
        }
        let [patient, after] = [waiting(&key("job"), LONG), waiting(&key("job"), LONG)];
        b.refused(&patient).await;
        let scope = if is_lost {
            ReleaseInfo::UNDO
        } else {
            Scope::Hold.into()
        };
        assert_eq!(
            a.0.release(&key("job"), &hasty.token, &scope)
                .await
                .expect("release"),
            Release::Released
        );
        assert_eq!(
            b.wait_for(&patient, LONG).await.drain_delay,
            DRAIN_DELAY,
            "lost: {is_lost}"
        );
        lab.pass(DRAIN_DELAY).await;
        c.refused(&after).await;
        b.free(&patient).await;
        assert_eq!(
            c.wait_for(&after, LONG).await.drain_delay,
            Duration::ZERO,
            "lost: {is_lost}"
        );
        c.free(&after).await;
        assert!(
            lab.etcd()
                .keys(&format!("{}.meta/%open/", lab.namespace("dlock")))
                .is_empty()
        );
    }
}

async fn holders_that_vanish_in_succession_leave_few_records(lab: &Lab) {
    // No holder ever renews or releases.
    let mut fences = Vec::new();
    for n in 0..40 {
        let mut a = lab.client().await;
        let grant = a.take(&request(&key("job"), LONG)).await;
        assert_eq!(
            grant.drain_delay,
            if n == 0 { Duration::ZERO } else { DRAIN_DELAY }
        );
        fences.push(Some(grant.fence));
        lab.etcd().ctl(&["del", &holder_key(lab)]);
    }
    let records = format!("{}.meta/%open/", lab.namespace("dlock"));
    assert!(lab.etcd().keys(&records).len() < 20);
    let past = history(&mut lab.client().await, &key("job")).await.past;
    assert!(
        past.iter()
            .map(|past| past.fence)
            .eq(fences.into_iter().rev()),
        "{past:?}"
    );
    assert!(past.iter().all(|past| past.end == End::Expired));
}

async fn a_foreign_holders_successor_has_no_drain_delay(lab: &Lab) {
    let lease = put(lab, &format!("{}LEASE", folder(lab, "job")));
    let mut a = lab.client().await;
    let wanted = waiting(&key("job"), LONG);
    a.refused(&wanted).await;
    lab.etcd().ctl(&["lease", "revoke", &lease]);
    assert_eq!(a.wait_for(&wanted, LONG).await.drain_delay, Duration::ZERO);
}

async fn a_waiter_is_woken_after_a_compaction(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let held = a.hold(&key("job")).await;
    let wanted = waiting(&key("job"), LONG);
    b.refused(&wanted).await;
    // The revision that the waiter saw is compacted away before it watches.
    for n in 0..3 {
        lab.etcd()
            .ctl(&["put", &format!("{}.other/{n}", lab.namespace("dlock")), "x"]);
    }
    let fields = lab.etcd().ctl(&["get", "x", "-w", "json"]);
    let revision =
        serde_json::from_str::<serde_json::Value>(&fields).expect("JSON")["header"]["revision"]
            .to_string();
    lab.etcd().ctl(&["compact", &revision]);
    let release = async {
        lab.pass(SLACK).await;
        a.free(&held).await;
        Instant::now()
    };
    let (_, released) = tokio::join!(b.wait_for(&wanted, LONG), release);
    assert!(released.elapsed() < soon(), "{:?}", released.elapsed());
    // The same for a holder that watches its key.
    lab.etcd()
        .ctl(&["put", &format!("{}.other/x", lab.namespace("dlock")), "x"]);
    let mut c = lab.client().await;
    c.renewed(&wanted, None).await;
    b.free(&wanted).await;
}

async fn only_the_last_fence_and_the_history_remain(lab: &Lab) {
    let (mut a, mut b, mut c) = (lab.client().await, lab.client().await, lab.client().await);
    let leases = || lab.etcd().leases();
    let held = a.hold(&key("job")).await;
    let before = keys(lab);
    // Other cases have leases too, so only leases that exist before and after count.
    let ours = holder_key(lab)
        .rsplit('/')
        .next()
        .expect("a lease")
        .to_owned();
    b.refused(&request(&key("job"), LONG)).await;
    let wanted = waiting(&key("job"), LONG);
    b.refused(&wanted).await;
    let queued: Vec<String> = lab
        .etcd()
        .keys(&folder(lab, "job"))
        .iter()
        .filter_map(|n| n.rsplit('/').next().map(str::to_owned))
        .collect();
    let _ = timeout(Duration::from_millis(20), b.wait(&wanted, LONG)).await;
    b.leave_queue(&wanted).await;
    assert_eq!(keys(lab), before);
    c.take(&nested(&held)).await;
    assert_eq!(a.release(&held, Scope::Tree).await, Release::Released);
    let run = format!("{}.meta/%fine/job/", lab.namespace("dlock"));
    let after: Vec<_> = keys(lab)
        .into_iter()
        .filter(|name| !name.starts_with(&run))
        .collect();
    assert_eq!(
        after,
        [format!("{}.meta/%last/job", lab.namespace("dlock"))]
    );
    let left = leases();
    assert!(queued.len() == 2 && queued.contains(&ours));
    assert!(
        queued
            .iter()
            .all(|lease| !left.contains(&format!("{lease:0>16}"))),
        "{queued:?} {left:?}"
    );
}

async fn unused_records_are_collected(lab: &Lab) {
    let mut a = lab.client().await;
    for name in ["used", "a/b"] {
        let held = a.hold(&key(name)).await;
        a.free(&held).await;
    }
    Vanishing::take(lab, "revoked").await.vanish(lab).await;
    a.hold(&key("used")).await;
    let vanished = history(&mut a, &key("job")).await;
    assert_eq!(vanished.past.len(), 1);
    assert_eq!(
        a.0.collect(short(), &Progress::default())
            .await
            .expect("gc"),
        Some(2),
        "one lock with a fence, and one with a record of a vanished holder"
    );
    assert_eq!(
        a.0.collect(short(), &Progress::default())
            .await
            .expect("gc"),
        Some(0),
        "both are scheduled for removal already"
    );
    assert!(a.inspect(&key("a/b")).await.last_fence.is_some());
    assert_eq!(history(&mut a, &key("job")).await, vanished);
    lab.outlast(short()).await;
    assert_eq!(a.inspect(&key("a/b")).await.last_fence, None);
    let next = request(&key("job"), LONG);
    assert_eq!(a.take(&next).await.drain_delay, Duration::ZERO);
    let mut left = keys(lab);
    left.retain(|name| name.contains("%last"));
    assert_eq!(
        left,
        [format!("{}.meta/%last/used", lab.namespace("dlock"))]
    );
    a.free(&next).await;
    assert_eq!(
        a.0.collect(Duration::ZERO, &Progress::default())
            .await
            .expect("gc"),
        Some(1),
        "immediately: one lock was used since, and the other one was counted before"
    );
    assert_eq!(history(&mut a, &key("a/b")).await.past, []);
    assert_eq!(history(&mut a, &key("used")).await.past.len(), 1);
    assert_eq!(a.inspect(&key("job")).await.last_fence, None);
}

async fn a_token_can_not_be_derived_from_stored_data(lab: &Lab) {
    let mut a = lab.client().await;
    let held = a.hold(&key("job")).await;
    a.take(&nested(&held)).await;
    let all = lab.etcd().ctl(&["get", "--prefix", &lab.namespace("")]);
    let owner = held.token.owner;
    for form in [
        owner.to_string(),
        owner.simple().to_string(),
        format!("{:x}", owner.as_u64_pair().0),
        format!("{:x}", owner.as_u64_pair().1),
    ] {
        assert!(!all.contains(&form), "{form} in {all}");
    }
}

async fn a_shared_hold_is_not_entered_exclusively(lab: &Lab) {
    let mut a = lab.client().await;
    let outer = shared(request(&key("job"), LONG));
    a.take(&outer).await;
    let inner = Request {
        mode: Mode::Exclusive,
        entry: Entry::Reenter,
        ..nested(&outer)
    };
    let error = lab
        .client()
        .await
        .0
        .try_acquire(&inner)
        .await
        .expect_err("a writer would run next to other readers");
    assert_eq!(error.kind, ErrorKind::Usage, "{error:?}");
    lab.client()
        .await
        .refused(&request(&key("job"), LONG))
        .await;
}

/// The queue monitor dies together with the waiter before it: another waiter becomes the monitor.
async fn a_dead_queue_monitor_is_replaced(lab: &Lab) {
    let (mut a, mut gone, mut watcher, mut c) = (
        lab.client().await,
        lab.client().await,
        lab.client().await,
        lab.client().await,
    );
    let job = key("job");
    let held = a.hold(&job).await;
    let monitor = || {
        lab.etcd().ctl(&[
            "get",
            "-w",
            "fields",
            &format!("{}.meta/%last/job/lookout", lab.namespace("dlock")),
        ])
    };
    gone.refused(&waiting(&job, LONG)).await;
    assert!(
        !monitor().contains("Lease"),
        "the first waiter monitors no other"
    );
    let second = waiting(&job, LONG);
    watcher.refused(&second).await;
    let _ = timeout(Duration::from_millis(500), watcher.wait(&second, LONG)).await;
    let first = monitor();
    assert!(first.contains("Lease"), "{first}");
    drop(watcher);
    let wanted = waiting(&job, LONG);
    assert_eq!(c.refused(&wanted).await.position, Some(3));
    let began = Instant::now();
    let free = async {
        lab.pass(SLACK).await;
        a.free(&held).await;
    };
    let _ = tokio::join!(free, c.wait_for(&wanted, LONG));
    crate::support::say(&format!(
        "etcd: two dead waiters, one of them the queue monitor, blocked the queue for {:?}",
        began.elapsed()
    ));
    assert!(
        began.elapsed() < LONG / 3,
        "the queue was blocked until the leases ended: {:?}",
        began.elapsed()
    );
    // The new holder resigns as monitor in the background, possibly a little later.
    for _ in 0..100 {
        if !monitor().contains("Lease") {
            break;
        }
        lab.pass(Duration::from_millis(10)).await;
    }
    assert!(!monitor().contains("Lease"), "a holder is no queue monitor");
    c.free(&wanted).await;
}

/// Each waiter extends its lease now and then, and the queue monitor probes a few at the front.
async fn only_the_front_waiters_are_probed(lab: &Lab) {
    let mut a = lab.client().await;
    let job = key("job");
    let held = a.hold(&job).await;
    let mut waiters = Vec::new();
    for _ in 0..20 {
        let (mut one, wanted) = (lab.client().await, waiting(&job, LONG));
        one.refused(&wanted).await;
        waiters.push((one, wanted));
    }
    let calls = lab.namespace("dlock") + ".meta/%last/job/call/";
    let all = waiters.iter_mut().map(|(one, wanted)| async {
        timeout(Duration::from_secs(6), one.wait(wanted, LONG))
            .await
            .expect_err("woken")
    });
    join_all(all).await;
    let probed = lab.etcd().keys(&calls).len();
    assert!(
        (2..10).contains(&probed),
        "a few waiters at the front are probed: {probed}"
    );
    for (one, wanted) in &mut waiters {
        one.leave_queue(wanted).await;
    }
    assert!(lab.etcd().keys(&calls).is_empty());
    a.free(&held).await;
}

/// The queue monitor probes two waiters that don't watch yet. Their next request starts the watch.
async fn a_waiter_probed_before_it_listens_answers(lab: &Lab) {
    let mut a = lab.client().await;
    let job = key("job");
    let held = a.hold(&job).await;
    let mut waiters = Vec::new();
    for position in 1..=3 {
        let (mut one, wanted) = (lab.client().await, waiting(&job, LONG));
        assert_eq!(one.refused(&wanted).await.position, Some(position));
        waiters.push((one, wanted));
    }
    let calls = lab.namespace("dlock") + ".meta/%last/job/call/";
    let (watcher, wanted) = &mut waiters[2];
    assert!(
        timeout(Duration::from_millis(500), watcher.wait(wanted, LONG))
            .await
            .is_err()
    );
    assert_eq!(
        lab.etcd().keys(&calls).len(),
        3,
        "the monitor is probed too"
    );
    for (one, wanted) in &mut waiters[..2] {
        one.refused(wanted).await;
    }
    let waits = waiters.iter_mut().map(|(one, wanted)| async {
        timeout(Duration::from_secs(2), one.wait(wanted, LONG)).await
    });
    assert!(
        join_all(waits).await.iter().all(Result::is_err),
        "a waiter was woken without a change"
    );
    // A waiter that is silent for five seconds after its probe counts as dead.
    let answers = lab
        .etcd()
        .ctl(&["get", "--prefix", "--print-value-only", &calls]);
    assert_eq!(
        answers.lines().filter(|line| *line == "here").count(),
        3,
        "{answers}"
    );
    a.free(&held).await;
    for (one, wanted) in &mut waiters {
        one.wait_for(wanted, LONG).await;
        one.free(wanted).await;
    }
}
