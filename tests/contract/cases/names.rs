//! Keys and namespaces: different names are different locks, and nothing escapes.

use super::{Case, cases, everywhere};
use crate::lab::{LONG, Lab, key, request};

pub fn all() -> Vec<Case> {
    cases![everywhere =>
        odd_keys_are_different_locks,
        odd_keys_come_back,
        namespaces_are_apart,
        a_listing_matches_its_prefix_literally,
        a_listing_is_sorted_and_shows_held_locks_only,
    ]
}

/// Returns names that a store might confuse with each other, with a pattern, or with a path.
fn odd() -> Vec<String> {
    let mut odd: Vec<String> = [
        "../x",
        "x",
        "..",
        ".",
        "/x",
        "a",
        "a/b",
        "a/b/",
        "a//b",
        "b",
        "a{b}c",
        "{}",
        "{",
        "}",
        "{a}",
        "{dlock:a}",
        "{dlock:a}:record",
        "redisson",
        "\"; DROP TABLE locks; --",
        "a:b",
        "dlock:a",
        ":",
        "%",
        "%25",
        "%2F",
        "_",
        "*",
        "?",
        "[a]",
        "\\",
        "'",
        "\"",
        "`",
        "$(id)",
        ";",
        "--",
        "-",
        "0",
        "00",
        "job",
        "JOB",
        "job ",
        " job",
        "caf\u{e9}",
        "cafe\u{301}",
        "\u{1f512}",
        "\u{1f468}\u{200d}\u{1f469}",
        "\u{202e}x",
        "stra\u{df}e",
        "strasse",
        "\u{131}",
        "I",
        "i",
    ]
    .map(str::to_owned)
    .into();
    odd.push("x".repeat(255));
    odd.push("x".repeat(254));
    odd.push("\u{1f512}".repeat(63));
    odd.push("{".repeat(255));
    odd
}

async fn odd_keys_are_different_locks(lab: &Lab) {
    let mut a = lab.client().await;
    let mut b = lab.client().await;
    let keys: Vec<_> = odd().iter().map(|name| key(name)).collect();
    let mut held = Vec::new();
    for key in &keys {
        // A session that holds a lock ends after so long without a request, and on a busy machine a
        // minute may not be enough.
        let request = request(key, LONG * 10);
        a.take(&request).await;
        held.push(request);
    }
    for key in &keys {
        b.refused(&request(key, LONG)).await;
    }
    // Every second lock is released; all others are still held.
    for held in held.iter().step_by(2) {
        a.free(held).await;
    }
    for (n, held) in held.iter().enumerate() {
        let state = b.inspect(&held.key).await;
        assert_eq!(state.holders.is_empty(), n % 2 == 0, "{:?}", held.key);
        if n % 2 == 1 {
            a.renewed(held, None).await;
        }
    }
}

async fn odd_keys_come_back(lab: &Lab) {
    let mut a = lab.client().await;
    let mut names = odd();
    for name in &names {
        a.hold(&key(name)).await;
        assert_eq!(a.inspect(&key(name)).await.key.as_str(), name);
    }
    names.sort();
    assert_eq!(a.keys("").await, names);
    // No two keys share a name in the store.
    let mut stored = Vec::new();
    for name in &names {
        stored.push(a.inspect(&key(name)).await.stored_as);
    }
    stored.sort();
    stored.dedup();
    assert_eq!(stored.len(), names.len());
}

async fn namespaces_are_apart(lab: &Lab) {
    let job = key("job");
    let namespaces = ["dlock", "a", "A", "a.b", "a-b", ""];
    let mut fences = Vec::new();
    let mut clients = Vec::new();
    for namespace in namespaces {
        let mut client = lab.client_in(namespace).await;
        let held = client.hold(&job).await;
        fences.push(client.inspect(&job).await.last_fence);
        clients.push((client, held));
    }
    for ((client, held), namespace) in clients.iter_mut().zip(namespaces) {
        if !namespace.is_empty() {
            assert_eq!(client.keys("").await, ["job"], "in {namespace:?}");
        }
        client.free(held).await;
        assert!(client.inspect(&job).await.holders.is_empty());
    }
    // Equal fingerprints mean the same store and namespace.
    let mut prints = Vec::new();
    for namespace in namespaces {
        let print = lab.client_in(namespace).await.0.identity().fingerprint;
        assert_eq!(
            lab.client_in(namespace).await.0.identity().fingerprint,
            print
        );
        prints.push(print);
    }
    prints.sort_unstable();
    prints.dedup();
    assert_eq!(prints.len(), namespaces.len());
}

async fn a_listing_matches_its_prefix_literally(lab: &Lab) {
    let mut a = lab.client().await;
    for name in [
        "%", "%a", "_", "_a", "*", "*a", "?x", "[ab]", "a", "ab", "a*b", "a?", "a\\", "A", "a{b",
        "\\x", "a%b", "-", "^", "a-b",
    ] {
        a.hold(&key(name)).await;
    }
    let expected: [(&str, &[&str]); 16] = [
        ("%", &["%", "%a"]),
        ("_", &["_", "_a"]),
        ("*", &["*", "*a"]),
        ("?", &["?x"]),
        ("[", &["[ab]"]),
        ("[a", &["[ab]"]),
        ("a", &["a", "a%b", "a*b", "a-b", "a?", "a\\", "ab", "a{b"]),
        ("a*", &["a*b"]),
        ("a?", &["a?"]),
        ("a{", &["a{b"]),
        ("A", &["A"]),
        ("\\", &["\\x"]),
        ("a%", &["a%b"]),
        ("-", &["-"]),
        ("^", &["^"]),
        ("x", &[]),
    ];
    for (start, names) in expected {
        assert_eq!(a.keys(start).await, names, "list {start:?}");
    }
}

async fn a_listing_is_sorted_and_shows_held_locks_only(lab: &Lab) {
    let mut a = lab.client().await;
    assert!(a.keys("").await.is_empty());
    for name in ["nightly", "a", "b/2", "b/10", "Z"] {
        a.hold(&key(name)).await;
    }
    let gone = a.hold(&key("gone")).await;
    a.free(&gone).await;
    a.inspect(&key("asked")).await;
    a.take(&lab.expiring(&key("over"), crate::lab::short()))
        .await;
    lab.outlast(crate::lab::short()).await;
    assert_eq!(a.keys("").await, ["Z", "a", "b/10", "b/2", "nightly"]);
}
