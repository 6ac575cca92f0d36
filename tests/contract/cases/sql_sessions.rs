//! Readers and writers of a lock that sessions of a SQL server keep.

use std::time::Duration;

use dlock::lock::{Attempt, Mode, Request};
use tokio::time::Instant;

use super::{Case, cases};
use crate::lab::{LONG, Lab, SHORT, SLACK, key, request, soon, stretched, waiting};

pub fn all() -> Vec<Case> {
    cases![|kind| kind.is_a_session() && kind.shared() =>
        a_stream_of_readers_does_not_starve_a_writer,
        a_writer_that_waits_is_not_taken_for_a_holder,
        a_reader_whose_session_ended_keeps_no_writer_out,
        a_reader_that_waited_is_a_reader,
    ]
}

fn shared(of: Request) -> Request {
    Request { mode: Mode::Shared, ..of }
}

/// There is a reader at all times, and another one comes before it goes.
async fn a_stream_of_readers_does_not_starve_a_writer(lab: &Lab) {
    let job = key("job");
    let mut writer = lab.client().await;
    let wanted = waiting(&job, LONG);
    let mut readers = [lab.client().await, lab.client().await];
    let mut held = [const { None::<Request> }; 2];
    let first = shared(request(&job, LONG));
    readers[0].take(&first).await;
    held[0] = Some(first);
    let stream = async {
        for turn in 1.. {
            let (coming, going) = (turn % 2, (turn + 1) % 2);
            let next = shared(request(&job, LONG));
            if let Attempt::Granted(_) = readers[coming].attempt(&next).await {
                held[coming] = Some(next);
            }
            lab.pass(SLACK / 5).await;
            match held[going].take() {
                Some(request) => readers[going].free(&request).await,
                // Nobody reads: the writer has it.
                None if held[coming].is_none() => return,
                None => {}
            }
        }
    };
    let began = Instant::now();
    tokio::join!(writer.wait_for(&wanted, Duration::from_secs(20)), stream);
    assert!(began.elapsed() < stretched(Duration::from_secs(5)), "{:?}", began.elapsed());
}

async fn a_writer_that_waits_is_not_taken_for_a_holder(lab: &Lab) {
    let job = key("job");
    let (mut a, mut b, mut c) = (lab.client().await, lab.client().await, lab.client().await);
    let reader = shared(request(&job, LONG));
    let fence = a.take(&reader).await.fence;
    let writer = waiting(&job, LONG);
    let look = async {
        lab.pass(SLACK * 2).await;
        let state = c.inspect(&job).await;
        assert_eq!(state.holders.len(), 1, "{state:?}");
        assert_eq!((state.holders[0].fence, state.holders[0].mode), (Some(fence), Mode::Shared));
        let busy = c.refused(&shared(request(&job, LONG))).await;
        assert_eq!(busy.holders.len(), 1, "{busy:?}");
        a.free(&reader).await;
        Instant::now()
    };
    let (_, freed) = tokio::join!(b.wait_for(&writer, Duration::from_secs(20)), look);
    assert!(freed.elapsed() < soon(), "{:?}", freed.elapsed());
    let state = c.inspect(&job).await;
    assert!(state.holders.len() == 1 && state.holders[0].mode == Mode::Exclusive && !state.holders[0].foreign, "{state:?}");
}

async fn a_reader_whose_session_ended_keeps_no_writer_out(lab: &Lab) {
    let job = key("job");
    let mut c = lab.client().await;
    {
        let mut a = lab.client().await;
        a.take(&shared(request(&job, LONG))).await;
        let mut b = lab.client().await;
        b.take(&shared(request(&job, SHORT))).await;
    }
    let wanted = waiting(&job, LONG);
    let grant = c.wait_for(&wanted, Duration::from_secs(5)).await;
    assert!(!grant.settle.is_zero(), "what they ran may run yet");
    let history = c.0.history(&job).await.expect("history");
    assert_eq!(history.past.len(), 2, "{history:?}");
    c.free(&wanted).await;
    assert!(c.inspect(&job).await.holders.is_empty());
    assert_eq!(c.0.history(&job).await.expect("history").past.len(), 3);
}

async fn a_reader_that_waited_is_a_reader(lab: &Lab) {
    let job = key("job");
    let (mut a, mut b, mut c) = (lab.client().await, lab.client().await, lab.client().await);
    let writer = a.hold(&job).await;
    let one = shared(waiting(&job, LONG));
    b.refused(&one).await;
    let free = async {
        lab.pass(SLACK).await;
        a.free(&writer).await;
    };
    let (grant, ()) = tokio::join!(b.wait_for(&one, Duration::from_secs(20)), free);
    let two = shared(request(&job, LONG));
    c.take(&two).await;
    let state = lab.client().await.inspect(&job).await;
    assert_eq!(state.holders.len(), 2, "{state:?}");
    assert!(state.waiters.is_empty(), "{state:?}");
    assert_eq!(state.holders[0].fence, Some(grant.fence));
    c.free(&two).await;
    b.renewed(&one, None).await;
    lab.client().await.refused(&request(&job, LONG)).await;
    b.free(&one).await;
    lab.client().await.hold(&job).await;
}
