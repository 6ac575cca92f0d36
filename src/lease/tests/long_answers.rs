//! Answers that arrive in parts.

use super::*;

/// How `work` ended, after how long, and how many times it was tried.
async fn ask_in_parts(
    work: impl AsyncFn(&Progress) -> Result<()>,
) -> (Option<String>, Duration, u32) {
    let world = LeaseWorld::new();
    let (began, mut tries) = (world.clock.now(), 0);
    let question = async |_: &mut dyn Backend, progress: &Progress| {
        tries += 1;
        work(progress).await
    };
    let answer = ask_long(
        &mut world.client(&[]),
        &world.clock,
        LIMITS,
        ("list", None),
        question,
    )
    .await;
    (
        answer.err().map(|error| error.message),
        world.clock.now().since(began),
        tries,
    )
}

async fn part_after(progress: &Progress, length: Duration) {
    tokio::time::sleep(length).await;
    progress.part();
}

/// The limit counts the time between two parts of an answer.
#[tokio::test(start_paused = true)]
async fn a_long_answer_has_time_while_its_parts_arrive() {
    let (error, took, tries) = ask_in_parts(async |progress| {
        for _ in 0..3 {
            part_after(progress, secs(4)).await;
        }
        Ok(())
    })
    .await;
    assert_eq!((error, tries), (None, 1));
    assert_about(took, secs(12));
}

#[tokio::test(start_paused = true)]
async fn a_store_that_falls_silent_within_an_answer_is_given_up() {
    let (error, took, tries) = ask_in_parts(async |progress| {
        part_after(progress, secs(4)).await;
        pending().await
    })
    .await;
    assert_eq!((error.as_deref(), tries), (Some("no answer within 5s"), 1));
    assert_about(took, secs(9));
}

/// Otherwise a list that is cut off each time would never end.
#[tokio::test(start_paused = true)]
async fn a_long_answer_that_was_cut_off_is_asked_for_again_only_within_the_limit() {
    for (cut_off, tries_meant) in [(secs(2), 3), (secs(6), 1)] {
        let (error, _, tries) = ask_in_parts(async |progress| {
            part_after(progress, cut_off / 2).await;
            part_after(progress, cut_off / 2).await;
            Err(Error::new(Kind::Unavailable, "connection reset"))
        })
        .await;
        assert_eq!(
            (error.as_deref(), tries),
            (Some("connection reset"), tries_meant),
            "{cut_off:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_part_of_an_answer_ends_the_silence_that_is_shown() {
    let (world, silence) = (LeaseWorld::new(), Silence::default());
    let limits = Limits {
        silence: Some(&silence),
        ..LIMITS
    };
    let began = world.clock.now();
    let shown = std::cell::RefCell::new(Vec::new());
    let show = || {
        let outage = silence.outage().expect("the answer is not complete");
        let until = outage.until.expect("a limit");
        shown.borrow_mut().push((
            outage.since.since(began).as_secs(),
            until.since(began).as_secs(),
        ));
    };
    let question = async |_: &mut dyn Backend, progress: &Progress| {
        show();
        part_after(progress, secs(4)).await;
        tokio::time::sleep(secs(1)).await;
        show();
        Ok(())
    };
    ask_long(
        &mut world.client(&[]),
        &world.clock,
        limits,
        ("list", None),
        question,
    )
    .await
    .unwrap();
    assert_eq!(shown.take(), [(0, 5), (4, 9)]);
    assert!(silence.outage().is_none());
}
