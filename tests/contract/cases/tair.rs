//! Tair's commands and their pitfalls.

use std::time::Duration;

use dlock::lock::{
    Attempt, Effect, Kind as ErrorKind, Release, Renewal, Rule, RunPolicy, RunState, Scope,
};
use redis::Value;

use super::{
    Case, cases,
    history::history,
    run_policy::{WINDOW, asking, once},
};
use crate::{
    lab::{Client, LONG, Lab, SLACK, key, nested, overtaking_delay, request, short},
    support::{
        self,
        proxy::{Fault, Proxy},
    },
    targets::Kind,
};

pub fn all() -> Vec<Case> {
    cases![|kind| matches!(kind, Kind::Tair | Kind::TairVersion) =>
        a_server_without_the_commands_is_refused,
        every_step_keeps_an_expiry,
        plain_users_of_cas_and_dlock_exclude_each_other,
        users_of_versions_and_dlock_exclude_each_other,
        a_key_without_an_expiry_is_no_lock_unless_it_is_a_string,
        keys_of_another_scheme_block_no_lock,
        a_count_after_the_lease_is_refused,
        a_missing_start_is_written_by_a_repeated_request,
        concurrent_counting_repeats_no_fence,
        an_invalid_counter_is_an_error_and_leaves_nothing,
        a_deleted_lock_is_not_revived_by_its_version,
        only_the_counter_remains,
    ]
}

const NAME: &str = "dlock:job";
const COUNTER: &str = "redisson_lock_token:{dlock:job}";

fn left(lab: &Lab) -> i64 {
    redis::from_redis_value(lab.tair().command(&["PTTL", NAME])).expect("a number")
}

/// Returns a client behind a proxy, with an open connection.
async fn warm(lab: &Lab) -> (Proxy, Client) {
    let proxy = Proxy::to(lab.tair().port());
    let mut client = lab.through(proxy.port);
    client.inspect(&key("warm")).await;
    (proxy, client)
}

async fn a_server_without_the_commands_is_refused(lab: &Lab) {
    if support::find_program(support::redis::Redis::PROGRAM).is_none() {
        return support::skip(
            "tair::a_server_without_the_commands_is_refused",
            "redis-server is not installed",
        );
    }
    let plain = support::redis::Redis::plain();
    let error = lab
        .through(plain.port)
        .0
        .try_acquire(&request(&key("job"), LONG))
        .await
        .expect_err("no Tair");
    assert_eq!(
        (error.kind, error.effect),
        (ErrorKind::Config, Effect::NotApplied),
        "{error:?}"
    );
    let command = if lab.kind == Kind::Tair {
        "CAS and CAD"
    } else {
        "EXCAS"
    };
    assert!(
        error.message.contains(command) && error.hint.is_some(),
        "{error:?}"
    );
    assert!(plain.keys().is_empty(), "the refused server has keys");
}

/// Tair's write commands remove the expiry unless they set one.
async fn every_step_keeps_an_expiry(lab: &Lab) {
    let mut a = lab.client().await;
    let held = a.hold(&key("job")).await;
    let (long, all) = (
        i64::try_from(LONG.as_millis()).expect("small"),
        |lab: &Lab| left(lab),
    );
    assert!(all(lab) > 0 && all(lab) <= long);
    a.renewed(&held, Some(LONG * 2)).await;
    assert!(all(lab) > long && all(lab) <= long * 2);
    let inner = nested(&held);
    a.take(&inner).await;
    assert!(all(lab) > long, "entering shortened the expiry");
    assert_eq!(a.release(&held, Scope::Hold).await, Release::StillHeld(1));
    assert!(
        all(lab) > 0 && all(lab) <= long,
        "the expiry is not that of the remaining holds"
    );
    a.free(&inner).await;
}

async fn plain_users_of_cas_and_dlock_exclude_each_other(lab: &Lab) {
    let server = lab.tair();
    let mut a = lab.client().await;
    let job = key("job");
    assert_eq!(
        server.command(&["SET", NAME, "theirs", "NX", "PX", "5000"]),
        Value::Okay
    );
    let busy = a.refused(&request(&job, LONG)).await;
    assert!(
        busy.holders[0].foreign
            && busy
                .expires_in
                .is_some_and(|left| left <= Duration::from_secs(5)),
        "{busy:?}"
    );
    assert!(a.inspect(&job).await.holders[0].foreign);
    assert_eq!(
        server.command(&["CAS", NAME, "theirs", "still theirs", "PX", "5000"]),
        Value::Int(1),
        "dlock changed another client's key"
    );
    assert_eq!(
        server.command(&["CAD", NAME, "still theirs"]),
        Value::Int(1)
    );
    let held = a.hold(&job).await;
    assert_eq!(
        server.command(&["SET", NAME, "theirs", "NX", "PX", "5000"]),
        Value::Nil
    );
    if lab.kind == Kind::Tair {
        assert_eq!(server.command(&["CAD", NAME, "theirs"]), Value::Int(0));
        assert_eq!(
            server.command(&["CAS", NAME, "theirs", "x", "PX", "5000"]),
            Value::Int(0)
        );
    }
    a.renewed(&held, None).await;
}

async fn users_of_versions_and_dlock_exclude_each_other(lab: &Lab) {
    let server = lab.tair();
    let mut a = lab.client().await;
    let job = key("job");
    assert_eq!(
        server.command(&["EXSET", NAME, "theirs", "NX", "PX", "5000"]),
        Value::Okay
    );
    let busy = a.refused(&request(&job, LONG)).await;
    assert!(
        busy.holders[0].foreign && busy.expires_in.is_some(),
        "{busy:?}"
    );
    assert_eq!(
        server.command(&["EXCAD", NAME, "1"]),
        Value::Int(1),
        "dlock changed another client's key"
    );
    let held = a.hold(&job).await;
    if lab.kind == Kind::TairVersion {
        assert_eq!(
            server.command(&["EXSET", NAME, "theirs", "NX", "PX", "5000"]),
            Value::Nil
        );
        // A stale user of version 1 would send these commands.
        assert_eq!(server.command(&["EXCAD", NAME, "1"]), Value::Int(0));
        let refused: Vec<Value> =
            redis::from_redis_value(server.command(&["EXCAS", NAME, "x", "1", "PX", "5000"]))
                .expect("a list");
        assert_eq!(refused[0], Value::SimpleString("CAS_FAILED".into()));
    }
    a.renewed(&held, None).await;
}

async fn a_key_without_an_expiry_is_no_lock_unless_it_is_a_string(lab: &Lab) {
    let server = lab.tair();
    let mut a = lab.client().await;
    server.command(&["SET", NAME, "0a1b2c", "NX"]);
    let busy = a.refused(&request(&key("job"), LONG)).await;
    assert!(
        busy.expires_in.is_none() && busy.holders.len() == 1 && busy.holders[0].foreign,
        "{busy:?}"
    );
    assert!(a.inspect(&key("job")).await.holders[0].foreign);
    server.command(&["DEL", NAME]);
    for words in [
        &["HSET", NAME, "not", "a lock"][..],
        &["EXSET", NAME, "not a lock"],
    ] {
        server.command(words);
        let error =
            a.0.try_acquire(&request(&key("job"), LONG))
                .await
                .expect_err("cron would skip every run silently");
        assert_eq!(error.kind, ErrorKind::Data, "{error:?}");
        assert_eq!(
            a.0.inspect(&key("job")).await.expect_err("no lock").kind,
            ErrorKind::Data
        );
        server.command(&["DEL", NAME]);
    }
}

async fn a_count_after_the_lease_is_refused(lab: &Lab) {
    let (proxy, mut a) = warm(lab).await;
    proxy.trap_nth("", 1, 1, Fault::Late(short() + SLACK * 3));
    let late = request(&key("job"), short());
    let taking = async {
        let attempt = a.0.try_acquire(&late).await;
        assert!(
            matches!(&attempt, Ok(Attempt::Busy(busy)) if busy.transient),
            "{attempt:?}"
        );
    };
    let meanwhile = async {
        lab.outlast(short()).await;
        let mut b = lab.client().await;
        let held = request(&key("job"), LONG);
        let fence = b.take(&held).await.fence;
        lab.pass(SLACK * 4).await;
        assert_eq!(b.renewed(&held, None).await, fence);
        (fence, held, b)
    };
    let ((), (fence, held, mut b)) = tokio::join!(taking, meanwhile);
    assert_eq!(proxy.sprung(), 1);
    assert_eq!(a.renew(&late, None).await, Renewal::NotHeld);
    b.free(&held).await;
    // The next fence is above any number that the late count took.
    assert!(b.take(&request(&key("job"), LONG)).await.fence > fence);
}

/// Stands for a granting packet that was cut short.
async fn a_missing_start_is_written_by_a_repeated_request(lab: &Lab) {
    let mut a = lab.client().await;
    let asked = asking(
        "job",
        &RunPolicy {
            skew_guard: Some(WINDOW),
            ..once(WINDOW, 0, false)
        },
    );
    let fence = a.take(&asked).await.fence;
    lab.tair()
        .command(&["DEL", "dlock:{dlock:job}:starts-string"]);
    lab.tair()
        .command(&["DEL", "dlock:{dlock:job}:starts-exstrtype"]);
    assert_eq!(a.take(&asked).await.fence, fence);
    let record = history(&mut a, &key("job")).await.record;
    assert_eq!(
        record.start.map(|start| (start.fence, start.tries)),
        Some((fence, 1))
    );
    assert_eq!(record.cooldown.map(|cooldown| cooldown.fence), Some(fence));
}

async fn concurrent_counting_repeats_no_fence(lab: &Lab) {
    // Another client, whose attempt was over by then, and a program that counts from 1.
    for (begun, at_once) in [("4000000000000000", true), ("1000", false)] {
        let (proxy, mut a) = warm(lab).await;
        proxy.trap_nth("", 1, 1, Fault::Late(overtaking_delay()));
        let held = request(&key("job"), LONG);
        let count = async {
            lab.pass(SLACK).await;
            lab.tair().command(&["SET", COUNTER, begun]);
        };
        let (attempt, ()) = tokio::join!(a.0.try_acquire(&held), count);
        assert_eq!(proxy.sprung(), 1);
        assert_eq!(
            matches!(attempt, Ok(Attempt::Granted(_))),
            at_once,
            "{attempt:?}"
        );
        let fence = a.take(&held).await.fence;
        let counter: u64 =
            redis::from_redis_value(lab.tair().command(&["GET", COUNTER])).expect("a number");
        assert!(counter >= fence.0 && fence.0 > 1000, "{counter} {fence}");
        a.free(&held).await;
        let next = lab.client().await.take(&request(&key("job"), LONG)).await;
        assert!(next.fence.0 > counter);
        lab.lose_data().await;
    }
}

async fn an_invalid_counter_is_an_error_and_leaves_nothing(lab: &Lab) {
    let server = lab.tair();
    for counter in ["seven", "9007199254740991"] {
        server.command(&["SET", COUNTER, counter]);
        let error = lab
            .client()
            .await
            .0
            .try_acquire(&request(&key("job"), LONG))
            .await
            .expect_err("no counter");
        assert_eq!(error.kind, ErrorKind::Data, "{error:?}");
        assert_eq!(left(lab), -2, "the failed acquire left a key");
    }
    server.command(&["DEL", COUNTER]);
    lab.client().await.hold(&key("job")).await;
}

/// Versions start at 1 again with each new key.
async fn a_deleted_lock_is_not_revived_by_its_version(lab: &Lab) {
    let mut a = lab.client().await;
    let stale = a.hold(&key("job")).await;
    lab.tair().command(&["DEL", NAME]);
    let mut b = lab.client().await;
    let held = b.hold(&key("job")).await;
    for _ in 0..3 {
        b.renewed(&held, None).await;
        assert_eq!(a.renew(&stale, None).await, Renewal::NotHeld);
    }
    assert_eq!(a.release(&stale, Scope::Tree).await, Release::NotHeld);
    b.renewed(&held, None).await;
}

async fn only_the_counter_remains(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let held = a.hold(&key("job")).await;
    let wanted = crate::lab::waiting(&key("job"), LONG);
    b.refused(&wanted).await;
    let endless = |lab: &Lab| {
        lab.tair()
            .keys()
            .into_iter()
            .filter(|(_, left)| *left < 0)
            .collect::<Vec<_>>()
    };
    assert_eq!(endless(lab).len(), 1, "{:?}", endless(lab));
    b.leave_queue(&wanted).await;
    a.free(&held).await;
    // The history also remains, for 100 days after the last run.
    let left: Vec<(String, bool)> = lab
        .tair()
        .keys()
        .into_iter()
        .map(|(name, left)| (name, left < 0))
        .collect();
    assert_eq!(
        left,
        [
            ("dlock:{dlock:job}:runs".to_owned(), false),
            (COUNTER.to_owned(), true)
        ]
    );
}

/// Keys that `redis://` or the other mode left have another type.
async fn keys_of_another_scheme_block_no_lock(lab: &Lab) {
    let server = lab.tair();
    server.command(&["HSET", "dlock:{dlock:job}:starts", "ps", "1"]);
    let mut a = lab.client().await;
    a.run(&asking("job", &once(WINDOW, 0, false)), RunState::Ok)
        .await;
    let other = if lab.kind == Kind::Tair {
        "exstrtype"
    } else {
        "string"
    };
    server.command(&[
        "HSET",
        &format!("dlock:{{dlock:job}}:starts-{other}"),
        "ps",
        "1",
    ]);
    assert_eq!(
        a.denied(&asking("job", &once(WINDOW, 0, false))).await.rule,
        Rule::Once(RunState::Ok)
    );
}
