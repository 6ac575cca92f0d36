use jiff::tz::TimeZone;

use super::*;
use crate::{
    lock::{Holder, LockState, Metadata, Mode},
    output::usual::EarlierRuns,
};

#[test]
fn any_metadata_gives_one_line_of_json() {
    let metadata = Metadata {
        host: Some("a\n\u{1b}\"\u{202e}".into()),
        description: Some("x".repeat(1 << 20)),
        ..Metadata::default()
    };
    let holder = Holder {
        permit: None,
        mode: Mode::Exclusive,
        metadata: Some(metadata),
        fence: None,
        foreign: false,
        detached: true,
        held_for: Some(Duration::from_secs(60)),
        renewed_ago: None,
        expires_in: None,
        removal: None,
        holds: 1,
        broken: None,
    };
    let state = LockState {
        key: Key::new("k").unwrap(),
        stored_as: "dlock:k".into(),
        holders: vec![holder],
        waiters: vec![],
        last_fence: None,
        nodes: vec![],
    };
    let now = Now::at("2026-11-20T02:00:00Z".parse().unwrap(), TimeZone::UTC);
    let text = line(&InspectReport::new(
        &LockView::from(state),
        &EarlierRuns::default(),
        "local",
        &now,
    ));
    assert_eq!(text.matches('\n').count(), 1);
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        (&json["schema"], &json["result"], &json["held"]),
        (&"dlock/1".into(), &"ok".into(), &true.into())
    );
    let holder = &json["holders"][0];
    assert_eq!(holder["since"], "2026-11-20T01:59:00.000Z");
    assert_eq!(holder["host"], "a\n\u{1b}\"\u{202e}");
    assert!(holder["fence"].is_null() && holder["expires_in_ms"].is_null());
}
