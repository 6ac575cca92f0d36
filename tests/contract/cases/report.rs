//! The reports of `inspect` and `list`.

use std::time::{Duration, Instant};

use dlock::{
    lease::{BootClock, Limits, ask_long},
    lock::{Backend, Metadata, Mode, Progress, Request},
};

use super::{Case, cases, everywhere};
use crate::{
    lab::{LONG, Lab, SLACK, key, nested, request, runner, waiting},
    support::{proxy::Proxy, stretched},
    targets::Kind,
};

pub fn all() -> Vec<Case> {
    let mut all = cases![everywhere =>
        a_free_lock_is_reported_free,
        a_held_lock_is_reported_completely,
        a_hold_without_metadata_is_reported_without,
        waiters_are_reported_in_order,
        an_order_is_reported_only_where_it_is_kept,
        listing_and_inspecting_agree,
        inspecting_changes_nothing,
        any_metadata_comes_back_unchanged,
    ];
    all.extend(cases![Kind::crosses_processes => a_nested_hold_is_counted]);
    all.extend(cases![in_parts => a_long_answer_is_no_silence]);
    all
}

async fn a_free_lock_is_reported_free(lab: &Lab) {
    let mut a = lab.client().await;
    let state = a.inspect(&key("job")).await;
    assert_eq!(state.key, key("job"));
    assert!(!state.stored_as.is_empty());
    assert!(state.holders.is_empty() && state.waiters.is_empty());
    assert_eq!(state.last_fence, None);
}

async fn a_held_lock_is_reported_completely(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    for (name, detached) in [("attached", false), ("detached", true)] {
        if detached && !lab.kind.crosses_processes() {
            continue;
        }
        let job = key(name);
        let held = Request {
            detached,
            metadata: Some(runner("web3")),
            at_ms: Some(dlock::lease::wall_ms()),
            ..request(&job, LONG)
        };
        let grant = a.take(&held).await;
        lab.pass(Duration::from_millis(300)).await;
        a.renewed(&held, None).await;
        lab.pass(Duration::from_millis(20)).await;
        let busy = b.refused(&request(&job, LONG)).await;
        for holder in [&b.inspect(&job).await.holders[0], &busy.holders[0]] {
            assert_eq!(holder.mode, Mode::Exclusive);
            assert_eq!(holder.metadata, Some(runner("web3")));
            assert_eq!(holder.fence, Some(grant.fence));
            assert!(!holder.foreign);
            assert_eq!(holder.detached, detached);
            assert_eq!(holder.holds, 1);
            let renewed = holder.renewed_ago.expect("known");
            assert!(renewed < stretched(Duration::from_secs(2)), "{renewed:?}");
            let held_for = holder.held_for.expect("known");
            assert!(
                held_for >= Duration::from_millis(300)
                    && held_for < stretched(Duration::from_secs(3)),
                "{held_for:?}"
            );
            assert!(renewed < held_for, "{renewed:?} of {held_for:?}");
            let left = holder.expires_in.expect("known");
            assert!(
                left <= LONG + Duration::from_millis(5)
                    && left + stretched(Duration::from_secs(3)) > LONG,
                "{left:?}"
            );
        }
        assert_eq!(b.inspect(&job).await.last_fence, Some(grant.fence));
    }
}

async fn a_hold_without_metadata_is_reported_without(lab: &Lab) {
    let mut a = lab.client().await;
    let job = key("job");
    // The previous holder's metadata must not be reported for this one.
    let before = Request {
        metadata: Some(runner("web1")),
        ..request(&job, LONG)
    };
    a.take(&before).await;
    a.free(&before).await;
    a.hold(&job).await;
    let state = a.inspect(&job).await;
    assert_eq!(state.holders[0].metadata, None);
    assert!(!state.holders[0].foreign);
}

async fn a_nested_hold_is_counted(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let job = key("job");
    let outer = Request {
        metadata: Some(runner("web3")),
        ..request(&job, LONG)
    };
    a.take(&outer).await;
    b.take(&Request {
        metadata: Some(runner("other")),
        ..nested(&outer)
    })
    .await;
    let state = a.inspect(&job).await;
    assert_eq!(state.holders.len(), 1);
    assert_eq!(state.holders[0].holds, 2);
    assert_eq!(
        state.holders[0].metadata,
        Some(runner("web3")),
        "the metadata is the owner's"
    );
}

async fn waiters_are_reported_in_order(lab: &Lab) {
    let mut a = lab.client().await;
    let job = key("job");
    a.hold(&job).await;
    let mut queue = Vec::new();
    for (position, host) in (1..).zip(["web1", "web2", "web3"]) {
        let mut client = lab.client().await;
        let metadata = (position != 2).then(|| runner(host));
        let request = Request {
            metadata,
            at_ms: Some(dlock::lease::wall_ms()),
            ..waiting(&job, LONG)
        };
        let busy = client.refused(&request).await;
        // SQLite counts no position for unfair waiters.
        let reported = (lab.kind != Kind::Sqlite).then_some(position);
        assert_eq!(busy.position, reported, "{host}");
        lab.pass(Duration::from_millis(30)).await;
        // A repeated request is the same waiter, at the same position.
        assert_eq!(client.refused(&request).await.position, reported, "{host}");
        queue.push((client, request));
    }
    let state = a.inspect(&job).await;
    let hosts: Vec<_> = state
        .waiters
        .iter()
        .map(|w| w.metadata.as_ref().and_then(|m| m.host.as_deref()))
        .collect();
    assert_eq!(hosts, [Some("web1"), None, Some("web3")]);
    for waiter in &state.waiters {
        assert!(waiter.waiting_for.expect("known") < stretched(Duration::from_secs(5)));
    }
    assert!(state.waiters[0].waiting_for > state.waiters[2].waiting_for);
    let (mut first, request) = queue.remove(0);
    first.leave_queue(&request).await;
    let hosts: Vec<_> = a
        .inspect(&job)
        .await
        .waiters
        .into_iter()
        .map(|w| w.metadata.and_then(|m| m.host))
        .collect();
    assert_eq!(hosts, [None, Some("web3".to_owned())]);
}

async fn an_order_is_reported_only_where_it_is_kept(lab: &Lab) {
    let (mut a, mut plain, mut fair) = (lab.client().await, lab.client().await, lab.client().await);
    let job = key("job");
    let (has_order, keeps_order) = (a.capabilities().fair, a.capabilities().always_fair);
    a.hold(&job).await;
    plain.refused(&waiting(&job, LONG)).await;
    if has_order {
        fair.refused(&Request {
            fair: true,
            ..waiting(&job, LONG)
        })
        .await;
    }
    let reported: Vec<bool> = a
        .inspect(&job)
        .await
        .waiters
        .into_iter()
        .map(|waiter| waiter.in_order)
        .collect();
    assert_eq!(
        reported,
        if has_order {
            vec![keeps_order, true]
        } else {
            vec![keeps_order]
        }
    );
}

async fn listing_and_inspecting_agree(lab: &Lab) {
    let mut a = lab.client().await;
    for name in ["one", "two"] {
        a.take(&Request {
            metadata: Some(runner(name)),
            ..request(&key(name), LONG)
        })
        .await;
    }
    let mut waiter = lab.client().await;
    waiter.refused(&waiting(&key("two"), LONG)).await;
    let listed = a.0.list("", &Progress::default()).await.expect("list");
    assert_eq!(listed.len(), 2);
    for listed in listed {
        let inspected = a.inspect(&listed.key).await;
        assert_eq!(listed.stored_as, inspected.stored_as);
        assert_eq!(listed.last_fence, inspected.last_fence);
        assert_eq!(listed.waiters.len(), inspected.waiters.len());
        let (one, other) = (&listed.holders[0], &inspected.holders[0]);
        assert_eq!(
            (one.fence, &one.metadata, one.holds, one.detached),
            (other.fence, &other.metadata, other.holds, other.detached)
        );
        let apart = one
            .expires_in
            .expect("known")
            .abs_diff(other.expires_in.expect("known"));
        assert!(apart < stretched(Duration::from_secs(2)));
    }
}

/// Whether a proxy can precede the store, and a list is read in several exchanges.
fn in_parts(kind: Kind) -> bool {
    kind.has_server() && !kind.is_sql()
}

/// The time limits count the store's silence, not the length of its answer: many locks, or a slow
/// link.
async fn a_long_answer_is_no_silence(lab: &Lab) {
    let in_packets = matches!(lab.kind, Kind::Redis | Kind::Tair | Kind::TairVersion);
    // An exchange takes 8 % of the limit in the first group and 4 % in the second, where a part
    // needs several.
    let (locks, percent) = if in_packets { (800, 8) } else { (30, 4) };
    let names: Vec<String> = (0..locks).map(|n| format!("job-{n:03}")).collect();
    let mut a = lab.client().await;
    let mut held = Vec::new();
    for name in &names {
        held.push(a.hold(&key(name)).await);
    }
    let proxy = Proxy::to(lab.store().port());
    let mut b = lab.through(proxy.port).0;
    b.inspect(&key(&names[0])).await.expect("a warm client");
    let limit = stretched(Duration::from_secs(1)).max(Duration::from_secs(2));
    proxy.delay(limit * percent / 200);
    let began = Instant::now();
    let list = async |b: &mut dyn Backend, progress: &Progress| b.list("job-", progress).await;
    let listed = ask_long(&mut *b, &BootClock, Limits::of(limit), ("list", None), list)
        .await
        .expect("list");
    assert!(
        began.elapsed() > limit,
        "not long enough: {:?}",
        began.elapsed()
    );
    assert_eq!(
        listed
            .iter()
            .map(|state| state.key.as_str())
            .collect::<Vec<_>>(),
        names
    );
    if in_packets {
        return;
    }
    for held in &held {
        a.free(held).await;
    }
    let began = Instant::now();
    let collect =
        async |b: &mut dyn Backend, progress: &Progress| b.collect(Duration::ZERO, progress).await;
    let removed = ask_long(
        &mut *b,
        &BootClock,
        Limits::of(limit),
        ("gc", None),
        collect,
    )
    .await
    .expect("gc");
    assert!(
        began.elapsed() > limit,
        "not long enough: {:?}",
        began.elapsed()
    );
    assert_eq!(removed, Some(names.len() as u64));
}

async fn inspecting_changes_nothing(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let job = key("job");
    // The remaining lease is reported in whole units of the TTL granularity.
    let unit = a.capabilities().ttl_granularity;
    // The lease outlasts eight questions.
    let lease = stretched(crate::lab::short()).max(unit * 2);
    let held = lab.expiring(&job, lease);
    a.take(&held).await;
    let before = b.left(&job).await;
    lab.pass(SLACK.max(unit + SLACK)).await;
    for _ in 0..3 {
        b.inspect(&job).await;
        b.keys("").await;
    }
    assert!(b.left(&job).await < before);
    lab.outlast(lease).await;
    b.hold(&job).await;
}

async fn any_metadata_comes_back_unchanged(lab: &Lab) {
    let mut a = lab.client().await;
    let odd = "\u{1b}[2J\r\n\t\0\"'\\{}%\u{202e}\u{1f512}\u{ffff}";
    let metadata = Metadata {
        host: Some(odd.into()),
        boot_id: Some(String::new()),
        pid_ns: Some(u64::from(u32::MAX) + 7),
        pid: Some(u32::MAX),
        description: Some(odd.repeat(500)),
        ..Metadata::default()
    };
    a.take(&Request {
        metadata: Some(metadata.clone()),
        ..request(&key("job"), LONG)
    })
    .await;
    assert_eq!(
        a.inspect(&key("job")).await.holders[0].metadata,
        Some(metadata)
    );
}
