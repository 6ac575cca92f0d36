//! dlock never overwrites data of other clients under a lock's name in Redis.

use std::time::Duration;

use dlock::lock::{Attempt, Kind as ErrorKind, Mode, Progress, Release, Renewal, Request, Scope};

use super::{Case, cases};
use crate::{
    lab::{LONG, Lab, key, request, short, soon, waiting},
    targets::Kind,
};

pub fn all() -> Vec<Case> {
    cases![|kind| kind == Kind::Redis =>
        a_string_with_an_expiry_is_a_busy_lock,
        a_string_without_an_expiry_is_a_busy_lock,
        the_locks_of_other_libraries_are_listed,
        a_key_of_another_type_is_an_error,
        a_hash_that_is_no_lock_is_an_error,
        redissons_locks_are_busy_and_reported,
        redissons_lock_without_an_expiry_is_busy,
        our_lock_has_the_form_redisson_expects,
        a_lock_deleted_by_others_is_not_held,
        a_lock_taken_over_by_others_is_not_held,
        a_newer_layout_is_refused,
        a_foreign_holder_is_waited_for_by_polling,
    ]
}

/// Returns the lock's name in the server.
async fn name(lab: &Lab, job: &str) -> String {
    lab.client().await.inspect(&key(job)).await.stored_as
}

/// Tries every operation on another client's key, and checks that the key is unchanged.
async fn assert_untouched(lab: &Lab, job: &str, name: &str) {
    let server = lab.redis();
    let dump = |server: &crate::support::redis::Redis| server.command(&["DUMP", name]);
    let before = (dump(server), server.int(&["PTTL", name]));
    let mut a = lab.client().await;
    let ours = request(&key(job), LONG);
    let _ = a.0.try_acquire(&ours).await;
    let _ = a.0.try_acquire(&waiting(&key(job), LONG)).await;
    assert!(!matches!(
        a.0.renew(
            &ours.key,
            &ours.token,
            Some(crate::lab::ttl(LONG * 2)).into()
        )
        .await,
        Ok(Renewal::Renewed { .. })
    ));
    for scope in [Scope::Hold, Scope::Tree] {
        assert!(!matches!(
            a.0.release(&ours.key, &ours.token, &scope.into()).await,
            Ok(Release::Released | Release::StillHeld(_))
        ));
    }
    let nested = Request {
        entry: dlock::lock::Entry::Reenter,
        ..ours
    };
    assert!(!matches!(
        a.0.try_acquire(&nested).await,
        Ok(Attempt::Granted(_))
    ));
    let _ = a.0.list("", &Progress::default()).await;
    let after = (dump(server), server.int(&["PTTL", name]));
    assert_eq!(after.0, before.0);
    assert!(
        after.1 <= before.1 && (after.1 < 0) == (before.1 < 0),
        "PTTL was {}, is {}",
        before.1,
        after.1
    );
}

async fn a_string_with_an_expiry_is_a_busy_lock(lab: &Lab) {
    let name = name(lab, "job").await;
    lab.redis()
        .command(&["SET", &name, "0a1b2c", "NX", "PX", "5000"]);
    let mut a = lab.client().await;
    let busy = a.refused(&request(&key("job"), LONG)).await;
    let left = busy.expires_in.expect("an expiry");
    assert!(
        left > Duration::from_secs(3) && left <= Duration::from_secs(5),
        "{left:?}"
    );
    assert!(!busy.notifies, "a SET NX user notifies no waiter");
    let state = a.inspect(&key("job")).await;
    assert!(
        state.holders.len() == 1 && state.holders[0].foreign && state.holders[0].fence.is_none(),
        "{state:?}"
    );
    assert_untouched(lab, "job", &name).await;
    lab.redis().command(&["DEL", &name]);
    a.hold(&key("job")).await;
}

/// The default of redis-py's lock.
async fn a_string_without_an_expiry_is_a_busy_lock(lab: &Lab) {
    let name = name(lab, "job").await;
    lab.redis().command(&["SET", &name, "0a1b2c", "NX"]);
    let mut a = lab.client().await;
    for wanted in [request(&key("job"), LONG), waiting(&key("job"), LONG)] {
        let busy = a.refused(&wanted).await;
        assert!(
            busy.expires_in.is_none() && !busy.notifies,
            "the lock has to be polled: {busy:?}"
        );
        assert!(
            busy.holders.len() == 1 && busy.holders[0].foreign,
            "{busy:?}"
        );
    }
    let state = a.inspect(&key("job")).await;
    assert!(
        state.holders.len() == 1
            && state.holders[0].foreign
            && state.holders[0].expires_in.is_none(),
        "{state:?}"
    );
    assert_untouched(lab, "job", &name).await;
    lab.redis().command(&["DEL", &name]);
    a.hold(&key("job")).await;
}

async fn the_locks_of_other_libraries_are_listed(lab: &Lab) {
    let server = lab.redis();
    for (job, words) in [
        ("string", &["SET", "x", "NX", "PX", "60000"][..]),
        ("forever", &["SET", "x", "NX"]),
        ("hash", &["HSET", "0a1b:31", "1"]),
        ("object", &["HSET", "name", "ana"]),
        ("no-lock", &["LPUSH", "x"]),
    ] {
        let name = name(lab, job).await;
        let (command, rest) = words.split_first().expect("a command");
        server.command(&[&[*command, &name], rest].concat());
    }
    let mut a = lab.client().await;
    a.hold(&key("ours")).await;
    assert_eq!(a.keys("").await, ["forever", "hash", "ours", "string"]);
    assert_eq!(a.keys("str").await, ["string"]);
    let listed = a.0.list("", &Progress::default()).await.expect("list");
    for lock in listed {
        let ours = lock.key.as_str() == "ours";
        assert!(
            lock.holders.iter().all(|holder| holder.foreign != ours),
            "{lock:?}"
        );
    }
    // Without a namespace, a string may be anything.
    server.command(&["SET", "session-4711", "x"]);
    let mut all = lab.client_in("").await;
    let bare = all.keys("").await;
    assert!(!bare.contains(&"session-4711".to_owned()));
    // There the same name is the same lock.
    assert!(bare.contains(&"dlock:ours".to_owned()));
    let busy = all.refused(&request(&key("dlock:ours"), LONG)).await;
    assert!(busy.holders[0].foreign);
}

async fn a_key_of_another_type_is_an_error(lab: &Lab) {
    let puts: [(&str, &[&str]); 4] = [
        ("list", &["RPUSH", "?", "a", "b"]),
        ("set", &["SADD", "?", "a"]),
        ("zset", &["ZADD", "?", "1", "a"]),
        ("stream", &["XADD", "?", "*", "a", "b"]),
    ];
    for (job, put) in puts {
        let name = name(lab, job).await;
        let words: Vec<_> = put
            .iter()
            .map(|word| if *word == "?" { name.as_str() } else { word })
            .collect();
        lab.redis().command(&words);
        let error = lab
            .client()
            .await
            .0
            .try_acquire(&request(&key(job), LONG))
            .await
            .expect_err("no lock");
        assert_eq!(error.kind, ErrorKind::Data, "{job}: {error:?}");
        let error = lab.client().await.0.inspect(&key(job)).await;
        assert_eq!(error.expect_err("no lock").kind, ErrorKind::Data, "{job}");
        assert_untouched(lab, job, &name).await;
    }
}

async fn a_hash_that_is_no_lock_is_an_error(lab: &Lab) {
    let name = name(lab, "job").await;
    lab.redis()
        .command(&["HSET", &name, "name", "ana", "mail", "ana@example.org"]);
    let error = lab
        .client()
        .await
        .0
        .try_acquire(&request(&key("job"), LONG))
        .await
        .expect_err("no lock");
    assert_eq!(error.kind, ErrorKind::Data, "{error:?}");
    assert_untouched(lab, "job", &name).await;
}

const OTHER: &str = "8743c9c0-0795-4907-87fd-6c719a6b4586";

async fn redissons_locks_are_busy_and_reported(lab: &Lab) {
    let (plain, write) = (format!("{OTHER}:31"), format!("{OTHER}:31:write"));
    let shapes: [(&str, &[&str]); 4] = [
        ("plain", &[&plain, "1"]),
        ("entered", &[&plain, "3"]),
        ("write", &["mode", "write", &write, "1"]),
        ("read", &["mode", "read", &plain, "1", "other:1", "1"]),
    ];
    for (job, fields) in shapes {
        let name = name(lab, job).await;
        let words: Vec<_> = ["HSET", &name]
            .into_iter()
            .chain(fields.iter().copied())
            .collect();
        lab.redis().command(&words);
        lab.redis().command(&["PEXPIRE", &name, "30000"]);
        let mut a = lab.client().await;
        let busy = a.refused(&request(&key(job), LONG)).await;
        assert!(
            busy.expires_in
                .is_some_and(|left| left <= Duration::from_secs(30)),
            "{job}"
        );
        assert!(!busy.notifies, "the lock has to be polled");
        assert!(busy.holders.iter().all(|holder| holder.foreign), "{job}");
        let nested = crate::lab::nested(&request(&key(job), LONG));
        assert!(matches!(a.attempt(&nested).await, Attempt::NotHeld));
        let state = a.inspect(&key(job)).await;
        let (count, holds, mode) = match job {
            "read" => (2, 1, Mode::Shared),
            "entered" => (1, 3, Mode::Exclusive),
            _ => (1, 1, Mode::Exclusive),
        };
        let first = &state.holders[0];
        assert_eq!(
            (state.holders.len(), first.holds, first.mode),
            (count, holds, mode),
            "{job}: {state:?}"
        );
        assert!(
            state
                .holders
                .iter()
                .all(|holder| holder.foreign && holder.metadata.is_none()),
            "{job}"
        );
        assert!(a.keys("").await.contains(&job.to_owned()), "{job}");
        assert_untouched(lab, job, &name).await;
    }
}

async fn redissons_lock_without_an_expiry_is_busy(lab: &Lab) {
    let name = name(lab, "job").await;
    lab.redis()
        .command(&["HSET", &name, &format!("{OTHER}:31"), "1"]);
    let busy = lab
        .client()
        .await
        .refused(&waiting(&key("job"), LONG))
        .await;
    assert_eq!(busy.expires_in, None);
    assert!(!busy.notifies, "the lock has to be polled");
    assert_untouched(lab, "job", &name).await;
}

async fn our_lock_has_the_form_redisson_expects(lab: &Lab) {
    let mut a = lab.client().await;
    let held = request(&key("job"), LONG);
    a.take(&Request {
        metadata: Some(crate::lab::runner("web1")),
        ..held.clone()
    })
    .await;
    a.take(&crate::lab::nested(&held)).await;
    let name = name(lab, "job").await;
    let server = lab.redis();
    assert_eq!(server.text(&["TYPE", &name]), "hash");
    let fields: std::collections::BTreeMap<String, String> =
        redis::from_redis_value(server.command(&["HGETALL", &name])).expect("a hash");
    assert_eq!(
        fields.len(),
        2,
        "another field breaks Redisson's readers: {fields:?}"
    );
    assert_eq!(fields["mode"], "write");
    assert_eq!(fields[&format!("{}:1:write", held.token.owner)], "1");
    assert!(
        server.int(&["PTTL", &name]) > 0,
        "without an expiry Redisson's waiters wait forever"
    );
    assert_eq!(
        server.command(&["SET", &name, "x", "NX", "PX", "1000"]),
        redis::Value::Nil
    );
    let fence = a.inspect(&key("job")).await.last_fence.expect("a fence");
    assert_eq!(
        server.text(&["GET", &format!("redisson_lock_token:{{{name}}}")]),
        fence.to_string()
    );
}

async fn a_lock_deleted_by_others_is_not_held(lab: &Lab) {
    let mut a = lab.client().await;
    let job = key("job");
    let held = a.hold(&job).await;
    let name = name(lab, "job").await;
    lab.redis().command(&["DEL", &name]);
    assert_eq!(a.renew(&held, None).await, Renewal::NotHeld);
    assert_eq!(a.release(&held, Scope::Tree).await, Release::NotHeld);
    let newer = lab.client().await.hold(&job).await;
    assert_eq!(a.renew(&held, None).await, Renewal::NotHeld);
    lab.client().await.renewed(&newer, None).await;
}

async fn a_lock_taken_over_by_others_is_not_held(lab: &Lab) {
    let mut a = lab.client().await;
    let job = key("job");
    let held = a.hold(&job).await;
    let name = name(lab, "job").await;
    lab.redis().command(&["DEL", &name]);
    lab.redis()
        .command(&["HSET", &name, &format!("{OTHER}:31"), "1"]);
    lab.redis().command(&["PEXPIRE", &name, "30000"]);
    assert_eq!(a.renew(&held, None).await, Renewal::NotHeld);
    assert_eq!(a.release(&held, Scope::Tree).await, Release::NotHeld);
    assert!(matches!(
        a.attempt(&crate::lab::nested(&held)).await,
        Attempt::NotHeld
    ));
    let state = a.inspect(&job).await;
    assert!(
        state.holders[0].foreign,
        "the rest of dlock's own hold was reported as Redisson's: {state:?}"
    );
    assert_untouched(lab, "job", &name).await;
}

async fn a_newer_layout_is_refused(lab: &Lab) {
    let mut a = lab.client().await;
    let job = key("job");
    let held = a.hold(&job).await;
    let name = name(lab, "job").await;
    lab.redis()
        .command(&["HSET", &format!("dlock:{{{name}}}:record"), "v", "2.0"]);
    let mut errors = Vec::new();
    errors.extend(a.0.try_acquire(&request(&job, LONG)).await.err());
    errors.extend(a.0.renew(&job, &held.token, None.into()).await.err());
    errors.extend(
        a.0.release(&job, &held.token, &Scope::Tree.into())
            .await
            .err(),
    );
    errors.extend(a.0.try_acquire(&crate::lab::nested(&held)).await.err());
    errors.extend(a.0.inspect(&job).await.err());
    errors.extend(a.0.list("", &Progress::default()).await.err());
    assert_eq!(errors.len(), 6);
    assert!(
        errors.iter().all(|error| error.kind == ErrorKind::Layout),
        "{errors:?}"
    );
    // dlock reads a newer minor version.
    lab.redis()
        .command(&["HSET", &format!("dlock:{{{name}}}:record"), "v", "1.9"]);
    a.renewed(&held, None).await;
    a.refused(&request(&job, LONG)).await;
    a.free(&held).await;
}

async fn a_foreign_holder_is_waited_for_by_polling(lab: &Lab) {
    use dlock::lease::{BootClock, Limits, Outcome, WaitPolicy, acquire};
    let name = name(lab, "job").await;
    lab.redis().command(&["SET", &name, "x", "PX", "60000"]);
    let mut a = lab.client().await;
    let wanted = waiting(&key("job"), short());
    let never = std::future::pending::<()>();
    let take = acquire(
        &mut *a.0,
        &BootClock,
        wanted,
        WaitPolicy::For(LONG),
        Limits::DEFAULT,
        never,
        |_| {},
    );
    let delete = async {
        lab.pass(Duration::from_millis(300)).await;
        lab.redis().command(&["DEL", &name]);
        std::time::Instant::now()
    };
    let (outcome, deleted) = tokio::join!(take, delete);
    assert!(matches!(outcome, Ok(Outcome::Granted(_))), "{outcome:?}");
    assert!(deleted.elapsed() < soon(), "{:?}", deleted.elapsed());
}
