//! Rows as another program, or a hand, may have left them: they are refused or used, and never a
//! panic.

use serde_json::json;

use super::{
    super::{
        Fields, Row, RunColumn, columns,
        names::Names,
        row::{self, snapshot},
    },
    tests::{NOW, SECOND, record, request},
    *,
};
use crate::{
    backends::cas::ReadFor,
    damage::{self, Dice},
    lock::{Namespace, Once, ReleaseInfo, RunPolicy, document::RequestContext},
};

/// What a column of numbers may have after that.
fn int(value: i64, dice: &mut Dice) -> i64 {
    damage::json(&json!([value]), dice)[0]
        .as_i64()
        .unwrap_or(value)
}

fn text(value: &str, dice: &mut Dice) -> String {
    if dice.below(8) == 0 {
        damage::text(value, dice)
    } else {
        value.to_owned()
    }
}

fn damaged(row: &LockRow, dice: &mut Dice) -> LockRow {
    let mut of = |value| int(value, dice);
    let [now_us, lock_until_us, locked_at_us, renewed_us] = [
        row.now_us,
        row.lock_until_us,
        row.locked_at_us,
        row.renewed_us,
    ]
    .map(&mut of);
    let [fence, revision] = [row.fence, row.revision].map(&mut of);
    let values = columns(&row.starts).map(|(_, column)| match column {
        RunColumn::Time(number) | RunColumn::Int(number) => {
            number.map(&mut of).map(|number| number.to_string())
        }
        RunColumn::Bytes(text) | RunColumn::Text(text) | RunColumn::Json(text) => text,
    });
    let values = values.map(|value| value.map(String::into_bytes)).to_vec();
    let starts = Fields::of(&Row {
        values,
        unreadable: || Error::new(Kind::Data, "unreadable"),
    })
    .run_record()
    .unwrap();
    let document = row.document.as_ref().map(|document| {
        let json = damage::json(&serde_json::from_str(document).unwrap(), dice).to_string();
        text(&json, dice)
    });
    LockRow {
        name: text(&row.name, dice),
        locked_by: text(&row.locked_by, dice),
        layout: [row.layout, None, Some(-1), Some(199), Some(300)]
            [[0, 0, 0, 0, 0, 0, 1, 2, 3, 4][dice.below(10)]],
        owner: row.owner.as_ref().map(|owner| text(owner, dice)),
        document,
        starts,
        now_us,
        lock_until_us,
        locked_at_us,
        renewed_us,
        fence,
        revision,
        ..row.clone()
    }
}

#[test]
fn damaged_rows_are_refused_or_used() {
    let (names, once) = (Names::new(&Namespace::default()), Duration::from_secs(60));
    let run_policy = RunPolicy {
        place: "web1".into(),
        skew_guard: Some(once),
        at_least: Some(once),
        once: Some(Once {
            window: once,
            retry_failed: 1,
            retry_crashed: false,
        }),
        anyway: false,
    };
    let asked = Request {
        run_policy: Some(run_policy),
        waiting: true,
        fair: true,
        ..request(Mode::Exclusive, 60)
    };
    let alone = record(&asked.token);
    let shared = {
        let mut document = Document::default();
        document
            .acquire(
                &request(Mode::Shared, 60),
                &RequestContext {
                    now: alone.now_ms(),
                    outside: None,
                    fence: Fence(8),
                },
            )
            .unwrap();
        document
            .acquire(
                &asked,
                &RequestContext {
                    now: alone.now_ms(),
                    outside: None,
                    fence: Fence(9),
                },
            )
            .unwrap();
        alone.with(&document, None)
    };
    let mut run = alone.clone();
    run.starts.begin(&asked, Fence(7), alone.now_ms());
    let waiter = Plain {
        name: alone.name.clone(),
        hold: "00000000000000aa".into(),
        since_ms: alone.now_ms(),
        seen_ms: alone.now_ms(),
        waited: Duration::from_secs(1),
        metadata: Some(r#"{"host":"web1"}"#.into()),
    };
    let rows = [alone, shared, run];
    let mut used = 0;
    damage::each(|dice| {
        let row = damaged(&rows[dice.below(rows.len())], dice);
        let ms = |us: i64, dice: &mut Dice| u64::try_from(int(us / 1000, dice)).unwrap_or_default();
        let waiter = Plain {
            since_ms: ms(NOW - SECOND, dice),
            seen_ms: ms(NOW, dice),
            ..waiter.clone()
        };
        let _ = (
            row.outside(),
            row.is_held_by(&asked.token),
            row.fence(),
            names.key(&row.name),
        );
        let Ok(read) = snapshot(Some(row.clone()), &[waiter], ReadFor::Look) else {
            return;
        };
        used += 1;
        let mut document = read.document;
        let now = row.now_ms();
        document.expire(now);
        let _ = document.acquire(
            &asked,
            &RequestContext {
                now,
                outside: read.outside.and_then(|outside| outside.left),
                fence: Fence(row.fence().0 | 1),
            },
        );
        let written = row.with(&document, Some(Fence(11)));
        assert_eq!(written.name, row.name);
        let _ = row::release(row, &asked.token, &ReleaseInfo::UNDO);
    });
    assert!(
        used > damage::TRIES / 20,
        "only {used} could be used at all"
    );
}
