//! Sends the same harmless request to several servers; any answer will do.

use std::{future::poll_fn, pin::Pin, task::Poll, time::Duration};

use tokio::time::timeout;

/// The time after which the next server is asked too: more than a distant network takes, and much
/// less than the caller's time limit. A machine that is down sends no answer at all.
pub(super) const HEDGE: Duration = Duration::from_millis(200);

/// Returns the first answer. The servers are asked in order: the next one as soon as one fails, or
/// after [`HEDGE`] of silence.
///
/// # Errors
/// All failures, in order.
pub(super) async fn first<T, E, F: Future<Output = Result<T, E>>>(
    questions: impl IntoIterator<Item = F>,
) -> Result<T, Vec<E>> {
    let mut left = questions.into_iter().peekable();
    let mut asked: Vec<Pin<Box<F>>> = Vec::new();
    let mut failed = Vec::new();
    loop {
        asked.extend(left.next().map(Box::pin));
        if asked.is_empty() {
            return Err(failed);
        }
        let answer = any(&mut asked);
        let answer = if left.peek().is_none() {
            Some(answer.await)
        } else {
            timeout(HEDGE, answer).await.ok()
        };
        match answer {
            Some(Ok(answer)) => return Ok(answer),
            Some(Err(error)) => failed.push(error),
            None => {}
        }
    }
}

/// Waits for any of `asked` to finish, and removes it.
async fn any<F: Future>(asked: &mut Vec<Pin<Box<F>>>) -> F::Output {
    poll_fn(|context| {
        for at in 0..asked.len() {
            if let Poll::Ready(answer) = asked[at].as_mut().poll(context) {
                drop(asked.swap_remove(at));
                return Poll::Ready(answer);
            }
        }
        Poll::Pending
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, future::pending};

    use tokio::time::{Instant, sleep};

    use super::*;
    use crate::lock::{Error, Kind, Result};

    #[allow(clippy::disallowed_methods)] // the clock is paused
    async fn answer(after: u64, answer: Result<u32, ()>) -> Result<u32> {
        sleep(Duration::from_millis(after)).await;
        answer.map_err(|()| Error::new(Kind::Unavailable, format!("after {after}")))
    }

    #[tokio::test(start_paused = true)]
    async fn the_next_server_is_asked_only_after_a_failure_or_a_silence() {
        let began = Instant::now();
        assert_eq!(
            first([answer(150, Ok(1)), answer(0, Ok(2))]).await.unwrap(),
            1
        );
        assert_eq!(
            first([answer(0, Err(())), answer(10, Ok(2))])
                .await
                .unwrap(),
            2
        );
        assert_eq!(began.elapsed(), Duration::from_millis(160));
        // A late answer still counts.
        assert_eq!(
            first([answer(300, Ok(1)), answer(500, Ok(2))])
                .await
                .unwrap(),
            1
        );
        let asked = Cell::new(0);
        let ask = |silent: bool| {
            let asked = &asked;
            async move {
                asked.set(asked.get() + 1);
                if silent {
                    pending::<Result<u32>>().await
                } else {
                    Ok(7)
                }
            }
        };
        assert_eq!(
            first([ask(true), ask(true), ask(false), ask(false)])
                .await
                .unwrap(),
            7
        );
        assert_eq!(asked.get(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn all_failures_are_reported() {
        let failed = first([answer(1, Err(())), answer(300, Err(())), answer(0, Err(()))])
            .await
            .unwrap_err();
        let said: Vec<_> = failed.iter().map(|error| error.message.as_str()).collect();
        assert_eq!(said, ["after 1", "after 0", "after 300"]);
        assert!(
            first(Vec::<std::future::Pending<Result<u32>>>::new())
                .await
                .unwrap_err()
                .is_empty()
        );
    }
}
