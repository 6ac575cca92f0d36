//! Asking a store one question until it answers or the time is up.

use std::{pin::pin, time::Duration};

use super::{Clock, Silence, bounded};
use crate::lock::{
    Backend, BootTime, Effect, Error, Key, Kind, Progress, Release, ReleaseInfo, Result, Scope,
    Token,
};

/// The time limits of a store, and the place where its silence is recorded.
#[derive(Clone, Copy, Debug)]
pub struct Limits<'a> {
    /// The time limit for one question, with all of its attempts, or for the silence within a long
    /// answer (`--backend-timeout`).
    pub answer: Duration,
    /// Shows people a store that does not answer; `None` without a terminal.
    pub silence: Option<&'a Silence>,
    /// Whether the store has answered this process before, so that a refusal may pass
    /// ([`Error::may_pass`]).
    pub answered: bool,
}

impl Limits<'_> {
    /// The default of `--backend-timeout`.
    pub const DEFAULT: Self = Self::of(Duration::from_secs(5));

    /// Returns limits of this length, with no record of silence.
    pub const fn of(answer: Duration) -> Self {
        Self {
            answer,
            silence: None,
            answered: false,
        }
    }

    /// Returns the same limits with another time.
    #[must_use]
    pub const fn within(self, answer: Duration) -> Self {
        Self { answer, ..self }
    }

    /// Returns the same limits for a store that has answered this process before.
    #[must_use]
    pub const fn once_answered(self) -> Self {
        Self {
            answered: true,
            ..self
        }
    }

    /// Whether asking again may help after this error.
    pub(super) fn may_retry(&self, error: &Error) -> bool {
        error.is_transient() || self.answered && error.may_pass()
    }

    /// Records that a question is sent.
    pub(super) fn asked(
        &self,
        url: impl FnOnce() -> String,
        since: BootTime,
        until: Option<BootTime>,
    ) {
        if let Some(silence) = self.silence {
            silence.asked(url, since, until);
        }
    }

    /// Records that a question was answered or given up.
    pub(super) fn record_answer(&self, over: bool) {
        if let Some(silence) = self.silence.filter(|_| over) {
            silence.over();
        }
    }

    /// Records that a part of a long answer arrived.
    fn heard(&self, since: BootTime, until: BootTime) {
        if let Some(silence) = self.silence {
            silence.heard(since, until);
        }
    }

    /// Records that a question failed, and will be asked again.
    pub(super) fn failed(&self, error: &Error) {
        if let Some(silence) = self.silence {
            silence.failed(&error.message);
        }
    }

    /// Returns the time for one attempt: short enough that a lost answer leaves time to ask again.
    pub fn attempt(&self) -> Duration {
        self.answer.mul_f64(0.4)
    }
}

/// Returns the factor by which an attempt is longer after this many in a row without an answer. One
/// answer may be lost. An overloaded store gets more time, since each question that dlock gives up
/// and repeats adds to its load.
pub(super) fn timeout_factor(silences: u32) -> u32 {
    1 << silences.saturating_sub(1).min(2)
}

/// Pauses between attempts: 20 ms, doubling to a second, each cut by up to a quarter at random.
#[derive(Debug)]
pub(super) struct Pause(Duration);

impl Pause {
    pub(super) const fn new() -> Self {
        Self(Duration::from_millis(20))
    }

    pub(super) fn next(&mut self) -> Duration {
        let pause = self.0;
        self.0 = (pause * 2).min(Duration::from_secs(1));
        pause.saturating_sub(spread(pause / 4))
    }
}

/// A random part of `most`.
pub(super) fn spread(most: Duration) -> Duration {
    let thousandth = u32::try_from(crate::lock::random() % 1000).unwrap_or_default();
    most * thousandth / 1000
}

/// Returns the error for a question without an answer.
pub(super) fn no_answer(after: Duration) -> Error {
    Error::new(
        Kind::Timeout,
        format!(
            "no answer within {}",
            humantime::format_duration(rounded(after))
        ),
    )
    .effect(Effect::Unknown)
    .hint("is the server up and reachable from here? --backend-timeout gives it more time")
}

/// Returns the error for a last attempt that had little time and no answer. It names the failure
/// `before` that attempt, if there was one, and says that the last attempt may have been served.
pub(super) fn silence(after: Duration, before: Option<Error>) -> Error {
    before.map_or_else(|| no_answer(after), |error| error.effect(Effect::Unknown))
}

/// Formats a duration for people: tenths of a second, or milliseconds below one.
fn rounded(length: Duration) -> Duration {
    let ms = u64::try_from(length.as_millis()).unwrap_or(u64::MAX);
    Duration::from_millis(if ms < 1000 { ms } else { ms / 100 * 100 })
}

/// Asks until there is an answer, an error that asking again can't fix, or `limits.answer` is over.
///
/// The question must be idempotent. The error's effect is [`Effect::Unknown`] if any attempt's was.
/// The error names the store and the subject of the question.
pub async fn ask<T>(
    backend: &mut dyn Backend,
    clock: &dyn Clock,
    limits: Limits<'_>,
    about: (&'static str, Option<&Key>),
    mut question: impl AsyncFnMut(&mut dyn Backend) -> Result<T>,
) -> Result<T> {
    ask_first(
        backend,
        clock,
        limits,
        limits.attempt(),
        about,
        async |backend, _| question(backend).await,
    )
    .await
}

/// Asks a question with a long answer, such as a list. The time limits count the store's silence:
/// each part of the answer that arrives starts them again. If no other server can be asked, the
/// first attempt has all the time.
pub async fn ask_long<T>(
    backend: &mut dyn Backend,
    clock: &dyn Clock,
    limits: Limits<'_>,
    about: (&'static str, Option<&Key>),
    question: impl AsyncFnMut(&mut dyn Backend, &Progress) -> Result<T>,
) -> Result<T> {
    let first = if backend.identity().has_other_servers {
        limits.attempt()
    } else {
        limits.answer
    };
    ask_first(backend, clock, limits, first, about, question).await
}

/// Asks with a separate time limit for the first attempt.
async fn ask_first<T>(
    backend: &mut dyn Backend,
    clock: &dyn Clock,
    limits: Limits<'_>,
    first: Duration,
    (operation, key): (&'static str, Option<&Key>),
    mut question: impl AsyncFnMut(&mut dyn Backend, &Progress) -> Result<T>,
) -> Result<T> {
    let began = clock.now();
    let until = began.plus(limits.answer);
    let mut pause = Pause::new();
    let mut unknown = false;
    let mut last_error = None;
    let mut attempt = first;
    loop {
        let sent = clock.now();
        limits.asked(|| backend.identity().url, sent, Some(until));
        let silent_for = std::mem::replace(&mut attempt, limits.attempt());
        let full = sent.plus(silent_for);
        let progress = Progress::default();
        let answer = unless_silent(
            clock,
            limits,
            (full.min(until), silent_for),
            &progress,
            question(backend, &progress),
        )
        .await;
        let error = match answer {
            Ok(Ok(answer)) => {
                limits.record_answer(true);
                return Ok(answer);
            }
            Ok(Err(error)) => error,
            Err(heard) => silence(
                clock.now().since(heard.unwrap_or(began)),
                last_error.take().filter(|_| until < full),
            ),
        };
        unknown |= error.effect != Effect::NotApplied;
        let again = clock.now().plus(pause.next());
        if !limits.may_retry(&error) || again >= until {
            limits.record_answer(true);
            let effect = if unknown {
                Effect::Unknown
            } else {
                error.effect
            };
            return Err(error
                .effect(effect)
                .about(operation, &backend.identity().url, key));
        }
        limits.failed(&error);
        last_error = Some(error);
        clock.sleep_until(again).await;
    }
}

/// Runs `work` until `until`, or as long as no more than `silent_for` passes between two parts of
/// its answer. A store that is silent for longer is the error, with the time of the last part;
/// `work` is dropped then.
async fn unless_silent<T>(
    clock: &dyn Clock,
    limits: Limits<'_>,
    (mut until, silent_for): (BootTime, Duration),
    progress: &Progress,
    work: impl Future<Output = T>,
) -> Result<T, Option<BootTime>> {
    let (mut work, mut heard) = (pin!(work), None);
    loop {
        tokio::select! {
            biased;
            done = &mut work => return Ok(done),
            () = progress.next() => {
                let now = clock.now();
                until = now.plus(silent_for);
                heard = Some(now);
                limits.heard(now, until);
            }
            () = clock.sleep_until(until) => return Err(heard),
        }
    }
}

/// The outcome of a release.
#[derive(Debug)]
pub enum Released {
    /// The lock is free.
    Free,
    /// This many holds of the same owner keep the lock.
    StillHeld(u32),
    /// The token did not hold the lock any more.
    NotHeld,
    /// The store did not answer; the lease ends by itself.
    Unknown(Error),
    /// The lock is free, since its session was ended; but the store does not know how the hold
    /// ended.
    Untold(Error),
}

/// The time limit for ending a session, connection or file after a failed release.
const CUT: Duration = Duration::from_secs(1);
/// The time limit for the first attempt at a release, if another server can answer the second.
const ELSEWHERE: Duration = Duration::from_secs(1);

/// Releases a lease, asking again while `limits` last.
///
/// "Not held" counts as an answer only if no earlier attempt may have done the work. Without an
/// answer, dlock ends what ties the hold to this process ([`Backend::cut`]).
pub async fn release(
    backend: &mut dyn Backend,
    clock: &dyn Clock,
    key: &Key,
    token: &Token,
    info: &ReleaseInfo,
    limits: Limits<'_>,
) -> Released {
    let mut in_flight = false;
    let mut maybe_done = false;
    let first = if backend.identity().has_other_servers {
        ELSEWHERE.min(limits.attempt())
    } else {
        limits.attempt()
    };
    let answer = ask_first(
        backend,
        clock,
        limits,
        first,
        ("release", Some(key)),
        async |backend, _| {
            // Still set if the attempt before was dropped for taking too long.
            maybe_done |= std::mem::replace(&mut in_flight, true);
            let answer = backend.release(key, token, info).await;
            in_flight = matches!(&answer, Err(error) if error.effect != Effect::NotApplied);
            answer.map(|answer| (answer, maybe_done))
        },
    )
    .await;
    match answer {
        Ok((Release::Released, _)) => Released::Free,
        Ok((Release::StillHeld(holds), _)) => Released::StillHeld(holds),
        Ok((Release::NotHeld, false)) => Released::NotHeld,
        Ok((Release::NotHeld, true)) => Released::Unknown(
            Error::new(Kind::Unavailable, "it is unknown whether this release freed the lock: the store's first answer was lost")
                .effect(Effect::Unknown)
                .about("release", &backend.identity().url, Some(key)),
        ),
        Err(error) => {
            let end = clock.now().plus(CUT);
            let over = info.scope == Scope::Tree
                && bounded(clock, end, backend.cut(key, token)).await.unwrap_or_default();
            if over { Released::Untold(error) } else { Released::Unknown(error) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_is_random_and_less_than_the_whole() {
        let all: Vec<_> = (0..100).map(|_| spread(Duration::from_secs(1))).collect();
        assert!(
            all.iter().all(|part| *part < Duration::from_secs(1))
                && all.iter().any(|part| *part != all[0]),
            "{all:?}"
        );
    }

    #[test]
    fn times_are_rounded_for_people() {
        let texts =
            [7, 999, 1000, 1999, 61_234].map(|ms| no_answer(Duration::from_millis(ms)).message);
        let meant = ["7ms", "999ms", "1s", "1s 900ms", "1m 1s 200ms"]
            .map(|time| format!("no answer within {time}"));
        assert_eq!(texts, meant);
    }
}
