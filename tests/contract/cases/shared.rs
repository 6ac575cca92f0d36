//! Many readers or one writer, where the store declares shared locks.

use std::time::Duration;

use dlock::{
    lease::{self, BootClock, Limits, Outcome, WaitPolicy},
    lock::{Attempt, Mode, Release, Request, Scope},
};
use tokio::time::Instant;

use super::{Case, cases};
use crate::{
    lab::{LONG, Lab, SLACK, key, nested, request, short, soon, waiting},
    targets::Kind,
};

pub fn all() -> Vec<Case> {
    let mut all = cases![Kind::shared =>
        readers_hold_together,
        a_writer_keeps_readers_out,
        readers_keep_a_writer_out,
        a_reader_requested_twice_is_one_reader,
        the_last_reader_wakes_the_writer,
        a_writer_wakes_all_readers,
        a_vanished_reader_expires_by_itself,
        a_vanished_holder_that_had_waited_delays_no_reader,
        a_reader_is_renewed_and_released_by_itself,
        a_nested_reader_is_one_reader,
        readers_have_fences_of_their_own,
        each_reader_is_shown,
    ];
    all.extend(
        cases![|kind| kind.shared() && !kind.clock_is_ours() => the_core_hands_over_between_kinds],
    );
    all
}

fn shared(of: Request) -> Request {
    Request {
        mode: Mode::Shared,
        ..of
    }
}

const NEVER: Duration = Duration::from_secs(20);

async fn readers_hold_together(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let job = key("job");
    let (one, two) = (shared(request(&job, LONG)), shared(request(&job, LONG)));
    a.take(&one).await;
    b.take(&two).await;
    a.renewed(&one, None).await;
    b.renewed(&two, None).await;
    assert!(matches!(
        a.release(&one, Scope::Hold).await,
        Release::Released | Release::StillHeld(_)
    ));
    lab.client().await.refused(&request(&job, LONG)).await;
    b.free(&two).await;
    lab.client().await.hold(&job).await;
}

async fn a_writer_keeps_readers_out(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let job = key("job");
    let writer = a.hold(&job).await;
    b.refused(&shared(request(&job, LONG))).await;
    a.free(&writer).await;
    b.take(&shared(request(&job, LONG))).await;
}

async fn readers_keep_a_writer_out(lab: &Lab) {
    let (mut a, mut b, mut c) = (lab.client().await, lab.client().await, lab.client().await);
    let job = key("job");
    let (one, two) = (shared(request(&job, LONG)), shared(request(&job, LONG)));
    a.take(&one).await;
    b.take(&two).await;
    let busy = c.refused(&request(&job, LONG)).await;
    assert!(
        !busy.holders.is_empty()
            && busy
                .holders
                .iter()
                .all(|holder| holder.mode == Mode::Shared),
        "{busy:?}"
    );
    a.release(&one, Scope::Hold).await;
    c.refused(&request(&job, LONG)).await;
    b.release(&two, Scope::Hold).await;
    c.hold(&job).await;
}

async fn a_reader_requested_twice_is_one_reader(lab: &Lab) {
    let mut a = lab.client().await;
    let job = key("job");
    let one = shared(request(&job, LONG));
    let first = a.take(&one).await;
    let again = a.take(&one).await;
    assert_eq!((again.fence, again.holds), (first.fence, 1));
    a.free(&one).await;
    lab.client().await.hold(&job).await;
}

async fn the_last_reader_wakes_the_writer(lab: &Lab) {
    let (mut a, mut b, mut c) = (lab.client().await, lab.client().await, lab.client().await);
    let job = key("job");
    let (one, two) = (shared(request(&job, LONG)), shared(request(&job, LONG)));
    a.take(&one).await;
    b.take(&two).await;
    let wanted = waiting(&job, LONG);
    c.refused(&wanted).await;
    let release = async {
        lab.pass(SLACK).await;
        a.release(&one, Scope::Hold).await;
        lab.pass(SLACK).await;
        b.release(&two, Scope::Hold).await;
        Instant::now()
    };
    let (_, released) = tokio::join!(c.wait_for(&wanted, NEVER), release);
    assert!(released.elapsed() < soon(), "{:?}", released.elapsed());
    c.free(&wanted).await;
}

async fn a_writer_wakes_all_readers(lab: &Lab) {
    let (mut a, mut b, mut c) = (lab.client().await, lab.client().await, lab.client().await);
    let job = key("job");
    let writer = a.hold(&job).await;
    let (one, two) = (shared(waiting(&job, LONG)), shared(waiting(&job, LONG)));
    b.refused(&one).await;
    c.refused(&two).await;
    let release = async {
        lab.pass(SLACK).await;
        a.free(&writer).await;
        Instant::now()
    };
    let (_, _, released) = tokio::join!(b.wait_for(&one, NEVER), c.wait_for(&two, NEVER), release);
    assert!(released.elapsed() < soon(), "{:?}", released.elapsed());
}

async fn a_vanished_reader_expires_by_itself(lab: &Lab) {
    let (mut b, mut c) = (lab.client().await, lab.client().await);
    let job = key("job");
    let one = shared(lab.expiring(&job, short()));
    let lives = shared(request(&job, LONG));
    {
        let mut a = lab.client().await;
        a.take(&one).await;
        b.take(&lives).await;
    }
    lab.outlast(short()).await;
    // The other reader keeps the lock by itself, and the dead one doesn't.
    c.refused(&request(&job, LONG)).await;
    b.free(&lives).await;
    c.wait_for(&waiting(&job, LONG), Duration::from_millis(50))
        .await;
}

/// The holder is not taken for a waiter that a reader could overtake.
async fn a_vanished_holder_that_had_waited_delays_no_reader(lab: &Lab) {
    let mut c = lab.client().await;
    let job = key("job");
    let wanted = Request {
        waiting: true,
        ..lab.expiring(&job, short())
    };
    {
        let (mut a, mut b) = (lab.client().await, lab.client().await);
        let held = a.hold(&job).await;
        b.refused(&wanted).await;
        a.free(&held).await;
        b.wait_for(&wanted, NEVER).await;
    }
    lab.outlast(short()).await;
    let held = c.hold(&job).await;
    c.free(&held).await;
    c.take(&shared(request(&job, LONG))).await;
}

async fn a_reader_is_renewed_and_released_by_itself(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let job = key("job");
    let (one, two) = (shared(request(&job, LONG)), shared(request(&job, LONG)));
    a.take(&one).await;
    b.take(&two).await;
    b.release(&two, Scope::Tree).await;
    assert_eq!(b.release(&two, Scope::Tree).await, Release::NotHeld);
    a.renewed(&one, None).await;
    a.free(&one).await;
}

async fn a_nested_reader_is_one_reader(lab: &Lab) {
    let mut a = lab.client().await;
    if !a.capabilities().reentrant {
        return;
    }
    let job = key("job");
    let outer = shared(request(&job, LONG));
    let grant = a.take(&outer).await;
    let mut b = lab.client().await;
    let inner = nested(&outer);
    let nested = b.take(&inner).await;
    assert_eq!((nested.fence, nested.holds), (grant.fence, 2));
    assert_eq!(b.release(&inner, Scope::Hold).await, Release::StillHeld(1));
    a.free(&outer).await;
    lab.client().await.hold(&job).await;
}

async fn readers_have_fences_of_their_own(lab: &Lab) {
    let (mut a, mut b, mut c) = (lab.client().await, lab.client().await, lab.client().await);
    if !a.capabilities().fencing {
        return;
    }
    let job = key("job");
    let (one, two) = (shared(request(&job, LONG)), shared(request(&job, LONG)));
    let first = a.take(&one).await.fence;
    let second = b.take(&two).await.fence;
    assert!(second > first, "{first} {second}");
    a.release(&one, Scope::Hold).await;
    b.release(&two, Scope::Hold).await;
    let writer = request(&job, LONG);
    assert!(c.take(&writer).await.fence > second);
}

async fn each_reader_is_shown(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let job = key("job");
    a.take(&shared(request(&job, LONG))).await;
    b.take(&shared(request(&job, LONG))).await;
    let state = lab.client().await.inspect(&job).await;
    assert_eq!(state.holders.len(), 2, "{state:?}");
    assert!(
        state
            .holders
            .iter()
            .all(|holder| holder.mode == Mode::Shared && !holder.foreign),
        "{state:?}"
    );
    assert_eq!(lab.client().await.keys("").await, ["job"]);
}

async fn the_core_hands_over_between_kinds(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let job = key("job");
    for (held, wanted) in [
        (Mode::Shared, Mode::Exclusive),
        (Mode::Exclusive, Mode::Shared),
    ] {
        let held = Request {
            mode: held,
            ..request(&job, LONG)
        };
        let Attempt::Granted(_) = a.attempt(&held).await else {
            panic!("{held:?}")
        };
        let wanted = Request {
            mode: wanted,
            ..request(&job, LONG)
        };
        let token = wanted.token;
        let limits = Limits::of(Duration::from_secs(2));
        let next = lease::acquire(
            &mut *b.0,
            &BootClock,
            wanted,
            WaitPolicy::For(LONG),
            limits,
            std::future::pending::<()>(),
            |_| {},
        );
        let release = async {
            lab.pass(SLACK).await;
            a.free(&held).await;
            Instant::now()
        };
        let (outcome, released) = tokio::join!(next, release);
        assert!(matches!(outcome, Ok(Outcome::Granted(_))), "{outcome:?}");
        assert!(released.elapsed() < soon(), "{:?}", released.elapsed());
        assert_eq!(
            b.0.release(&job, &token, &Scope::Tree.into())
                .await
                .expect("release"),
            Release::Released
        );
    }
}
