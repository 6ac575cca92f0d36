use super::{super::row::granted, *};
use crate::lock::{End, Entry, Key, Release, Scope, document::RequestContext};

pub(super) const SECOND: i64 = 1_000_000;
pub(super) const NOW: i64 = ENDED_US + 110 * SECOND;

pub(super) fn request(mode: Mode, seconds: u64) -> Request {
    Request {
        mode,
        ..Request::new(
            Key::new("job").unwrap(),
            Ttl::new(Duration::from_secs(seconds)).unwrap(),
        )
    }
}

/// A hold acquired at second 100 for a minute, read at second 110.
pub(super) fn record(token: &Token) -> LockRow {
    LockRow {
        name: "dlock:job".into(),
        now_us: NOW,
        lock_until_us: NOW + 50 * SECOND,
        locked_at_us: NOW - 10 * SECOND,
        locked_by: locked_by(token),
        layout: Some(LAYOUT),
        owner: Some(locked_by(token)),
        fence: 7,
        renewed_us: NOW - 10 * SECOND,
        document: granted(
            &Request {
                token: *token,
                ..request(Mode::Exclusive, 60)
            },
            None,
        ),
        waited: false,
        mode: None,
        client_mode: SqlMode::Lease,
        revision: 1,
        starts: lock::RunRecord::default(),
    }
}

fn read(row: &LockRow) -> Document {
    let mut document = row.document().unwrap();
    document.expire(row.now_ms());
    document
}

/// Acquires or enters the lock.
fn take(row: &LockRow, request: &Request) -> LockRow {
    let mut document = read(row);
    let fence = Fence(u64::try_from(row.fence).unwrap() + 1);
    document
        .acquire(
            request,
            &RequestContext {
                now: row.now_ms(),
                outside: None,
                fence,
            },
        )
        .unwrap();
    document.take_ended();
    row.with(
        &document,
        (document.fence(&request.token) == Some(fence)).then_some(fence),
    )
}

fn release(row: &mut LockRow, token: &Token, scope: Scope) -> Release {
    let mut document = read(row);
    let released = document.release(token, &scope.into(), row.now_ms());
    document.take_ended();
    *row = row.with(&document, None);
    released
}

#[test]
fn an_unchanged_row_is_written_unchanged() {
    let mut row = LockRow {
        lock_until_us: NOW + 50 * SECOND + 7,
        renewed_us: NOW - 1,
        ..record(&Token::random())
    };
    assert_eq!(row.with(&read(&row), None), row);
    row.now_us = row.lock_until_us - 1;
    assert_eq!(
        read(&row).holders(row.now_ms()).len(),
        1,
        "the hold lasts to the last microsecond"
    );
}

#[test]
fn nested_holds_are_listed_and_a_single_hold_needs_no_list() {
    let outer = request(Mode::Exclusive, 60);
    let enter = |seconds| Request {
        token: outer.token.nested(),
        entry: Entry::Reenter,
        ..request(Mode::Exclusive, seconds)
    };
    let (one, two) = (enter(5), enter(100));
    let mut row = record(&outer.token);
    row = take(&take(&row, &one), &two);
    assert_eq!(
        (row.lock_until_us, read(&row).holders(row.now_ms())[0].holds),
        (NOW + 100 * SECOND, 3)
    );
    row.now_us += 6 * SECOND;
    assert_eq!(
        release(&mut row, &two.token, Scope::Tree),
        Release::StillHeld(1)
    );
    assert_eq!(
        (row.document.as_deref(), row.lock_until_us),
        (record(&outer.token).document.as_deref(), NOW + 50 * SECOND)
    );
    row = take(&row, &one);
    assert_eq!(
        release(&mut row, &outer.token, Scope::Hold),
        Release::StillHeld(1)
    );
    assert_eq!(
        release(&mut row, &outer.token, Scope::Tree),
        Release::NotHeld
    );
    assert!(row.is_held_by(&outer.token));
    assert_eq!(
        release(&mut row, &one.token, Scope::Hold),
        Release::Released
    );
    assert_eq!((row.is_held(), row.lock_until_us), (false, ENDED_US));
}

#[test]
fn a_lock_taken_by_shedlock_ends_our_hold() {
    let token = Token::random();
    let mut row = record(&token);
    assert!(row.is_held_by(&token) && row.outside().is_none());
    row.locked_by = "web7".into();
    assert!(!row.is_held_by(&token) && !read(&row).has_holders());
    let holder = row.outside().unwrap().holder;
    assert_eq!(
        (
            holder.foreign,
            holder.fence,
            holder.metadata.unwrap().host.as_deref()
        ),
        (true, None, Some("web7"))
    );
    row.now_us = row.lock_until_us;
    assert!(row.outside().is_none());
}

#[test]
fn a_shared_lock_ends_with_its_last_share() {
    let (short, long) = (request(Mode::Shared, 10), request(Mode::Shared, 20));
    let mut row = LockRow {
        lock_until_us: NOW - SECOND,
        ..record(&Token::random())
    };
    let mut document = row.document().unwrap();
    document.expire(row.now_ms());
    assert!(
        document
            .take_ended()
            .iter()
            .any(|past| past.fence == Some(Fence(7)) && past.end == End::Expired)
    );
    row = take(&take(&row, &long), &short);
    assert!(row.is_held() && row.is_shared() && row.outside().is_none());
    assert_eq!(row.lock_until_us - row.now_us, 20 * SECOND);
    row.now_us += 15 * SECOND;
    assert_eq!(read(&row).holders(row.now_ms()).len(), 1);
    assert_eq!(
        release(&mut row, &long.token, Scope::Hold),
        Release::Released
    );
    assert_eq!(
        (row.is_held(), row.lock_until_us, &row.document),
        (false, ENDED_US, &None)
    );
}

#[test]
fn shares_in_a_row_locked_by_another_program_are_lost() {
    let mut row = take(
        &LockRow {
            lock_until_us: ENDED_US,
            document: None,
            ..record(&Token::random())
        },
        &request(Mode::Permits(2), 10),
    );
    row.locked_by = "web7".into();
    let mut document = read(&row);
    let past = document.take_ended();
    assert!(!document.has_holders() && past.len() == 1 && past[0].ended_ms == Some(row.now_ms()));
    assert!(
        row.outside()
            .is_some_and(|outside| outside.left == Some(10_000) && outside.holder.foreign)
    );
    let written = row.with(&document, None);
    assert_eq!(
        (&written.locked_by, written.lock_until_us),
        (&row.locked_by, row.lock_until_us)
    );
}

#[test]
fn a_hold_replaced_by_another_program_keeps_its_own_times() {
    let token = Token::random();
    let mut row = LockRow {
        fence: NOW - 20 * SECOND,
        locked_by: "web7".into(),
        locked_at_us: NOW - 3 * SECOND,
        ..record(&token)
    };
    row.owner = Some(locked_by(&token));
    let past = read(&row).take_ended().remove(0);
    assert_eq!(
        (past.started_ms, past.ended_ms),
        (
            Some(floor_ms(NOW - 20 * SECOND)),
            Some(floor_ms(NOW - 3 * SECOND))
        )
    );
    assert_eq!(past.end, End::Expired);
}

#[test]
fn newer_minor_layouts_are_read_and_others_refused() {
    let row = |layout| LockRow {
        layout: Some(layout),
        ..record(&Token::random())
    };
    assert_eq!(read(&row(LAYOUT + 7)).holders(row(0).now_ms())[0].holds, 1);
    for layout in [LAYOUT - 1, LAYOUT_REFUSED] {
        assert_eq!(row(layout).document().unwrap_err().kind, Kind::Layout);
    }
    let odd = LockRow {
        document: Some("[]".into()),
        ..row(LAYOUT)
    };
    assert_eq!(odd.document().unwrap_err().kind, Kind::Data);
}
