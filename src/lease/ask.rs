//! Asking a store one question until it answers or the time is up.

use std::time::Duration;

use super::{Clock, Silence, bounded};
use crate::lock::{Backend, BootTime, Effect, Error, Key, Kind, Release, ReleaseInfo, Result, Scope, Token};

/// How long a store may take, and where it is noted that it does.
#[derive(Clone, Copy, Debug)]
pub struct Limits<'a> {
    /// For one question altogether, asked again as often as it fits (`--backend-timeout`).
    pub answer: Duration,
    /// What shows people a store that does not answer; `None` without a terminal.
    pub silence: Option<&'a Silence>,
}

impl Limits<'_> {
    /// The default of `--backend-timeout`.
    pub const DEFAULT: Self = Self::of(Duration::from_secs(5));

    /// This long, and noted nowhere.
    pub const fn of(answer: Duration) -> Self {
        Self { answer, silence: None }
    }

    /// The same for another time.
    #[must_use]
    pub const fn within(self, answer: Duration) -> Self {
        Self { answer, ..self }
    }

    /// A question is sent.
    pub(super) fn asked(&self, url: impl FnOnce() -> String, since: BootTime, until: Option<BootTime>) {
        if let Some(silence) = self.silence {
            silence.asked(url, since, until);
        }
    }

    /// A question was answered, or given up, if so.
    pub(super) fn answered_if(&self, over: bool) {
        if let Some(silence) = self.silence.filter(|_| over) {
            silence.over();
        }
    }

    /// A question failed, and will be asked again.
    pub(super) fn failed(&self, error: &Error) {
        if let Some(silence) = self.silence {
            silence.failed(&error.message);
        }
    }

    /// For one attempt at a question: short enough that a lost answer leaves room to ask again.
    pub fn attempt(&self) -> Duration {
        self.answer.mul_f64(0.4)
    }
}

/// How many times as long an attempt may take after so many in a row that had no answer. One answer may be lost; a store that has more
/// to do than it can is given time, since each question that is given up and asked again is one more to answer.
pub(super) fn patience(silences: u32) -> u32 {
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

/// What a question without an answer means.
pub(super) fn no_answer(after: Duration) -> Error {
    Error::new(Kind::Timeout, format!("no answer within {}", humantime::format_duration(rounded(after))))
        .effect(Effect::Unknown)
        .hint("is the server up and reachable from here? --backend-timeout gives it more time")
}

/// What it means that the last attempt, which there was little time left for, had no answer: what went wrong `before` it,
/// if something did, and that this one may have been served.
pub(super) fn silence(after: Duration, before: Option<Error>) -> Error {
    before.map_or_else(|| no_answer(after), |error| error.effect(Effect::Unknown))
}

/// As people say it: tenths of a second, or milliseconds below one.
fn rounded(length: Duration) -> Duration {
    let ms = u64::try_from(length.as_millis()).unwrap_or(u64::MAX);
    Duration::from_millis(if ms < 1000 { ms } else { ms / 100 * 100 })
}

/// Asks until there is an answer, an error that asking again can't fix, or `limits.answer` is over.
///
/// The question must be one that can be asked twice. The error's effect is [`Effect::Unknown`] if any attempt's was; it names the
/// store, and what the question was about.
pub async fn ask<T>(
    backend: &mut dyn Backend,
    clock: &dyn Clock,
    limits: Limits<'_>,
    about: (&'static str, Option<&Key>),
    question: impl AsyncFnMut(&mut dyn Backend) -> Result<T>,
) -> Result<T> {
    ask_first(backend, clock, limits, limits.attempt(), about, question).await
}

/// The same for a question whose answer may be long, as a list is: where no other server can be asked, it has all the time at once.
pub async fn ask_at_length<T>(
    backend: &mut dyn Backend,
    clock: &dyn Clock,
    limits: Limits<'_>,
    about: (&'static str, Option<&Key>),
    question: impl AsyncFnMut(&mut dyn Backend) -> Result<T>,
) -> Result<T> {
    let first = if backend.identity().has_other_servers { limits.attempt() } else { limits.answer };
    ask_first(backend, clock, limits, first, about, question).await
}

/// The same, with a time limit of its own for the first attempt.
async fn ask_first<T>(
    backend: &mut dyn Backend,
    clock: &dyn Clock,
    limits: Limits<'_>,
    first: Duration,
    (operation, key): (&'static str, Option<&Key>),
    mut question: impl AsyncFnMut(&mut dyn Backend) -> Result<T>,
) -> Result<T> {
    let began = clock.now();
    let until = began.plus(limits.answer);
    let mut pause = Pause::new();
    let mut unknown = false;
    let mut said = None;
    let mut attempt = first;
    loop {
        let sent = clock.now();
        limits.asked(|| backend.identity().url, sent, Some(until));
        let full = sent.plus(std::mem::replace(&mut attempt, limits.attempt()));
        let error = match bounded(clock, full.min(until), question(backend)).await {
            Some(Ok(answer)) => {
                limits.answered_if(true);
                return Ok(answer);
            }
            Some(Err(error)) => error,
            None => silence(clock.now().since(began), said.take().filter(|_| until < full)),
        };
        unknown |= error.effect != Effect::NotApplied;
        let again = clock.now().plus(pause.next());
        if !error.is_transient() || again >= until {
            limits.answered_if(true);
            let effect = if unknown { Effect::Unknown } else { error.effect };
            return Err(error.effect(effect).about(operation, &backend.identity().url, key));
        }
        limits.failed(&error);
        said = Some(error);
        clock.sleep_until(again).await;
    }
}

/// How a release went.
#[derive(Debug)]
pub enum Released {
    /// The lock is free.
    Free,
    /// So many holds of the same owner keep it.
    StillHeld(u32),
    /// It was not ours any more when it was to be given back.
    NotHeld,
    /// The store did not say; the lease ends by itself.
    Unknown(Error),
    /// The lock is free, since what the hold lasted by was ended; but the store was not told how the hold ended.
    Untold(Error),
}

/// The time limit for ending what a hold lasts by, once its release was given up.
const CUT: Duration = Duration::from_secs(1);
/// The time limit for the first attempt at a release, where another server can answer the second.
const ELSEWHERE: Duration = Duration::from_secs(1);

/// Gives a lease back, asking again while `limits` last.
///
/// "Not held" counts as an answer only if no attempt before it may have done the work. Without an answer, the store is told to end
/// what the hold lasts by ([`Tether::cut`](crate::lock::Tether::cut)).
pub async fn give_back(
    backend: &mut dyn Backend,
    clock: &dyn Clock,
    key: &Key,
    token: &Token,
    info: &ReleaseInfo,
    limits: Limits<'_>,
) -> Released {
    let mut in_flight = false;
    let mut maybe_done = false;
    let first = if backend.identity().has_other_servers { ELSEWHERE.min(limits.attempt()) } else { limits.attempt() };
    let answer = ask_first(backend, clock, limits, first, ("release", Some(key)), async |backend: &mut dyn Backend| {
        // Still set if the attempt before was dropped for taking too long.
        maybe_done |= std::mem::replace(&mut in_flight, true);
        let answer = backend.release(key, token, info).await;
        in_flight = matches!(&answer, Err(error) if error.effect != Effect::NotApplied);
        answer.map(|answer| (answer, maybe_done))
    })
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
            let over = match backend.tether().filter(|_| info.scope == Scope::Tree) {
                Some(tether) => bounded(clock, end, tether.cut(key, token)).await.unwrap_or_default(),
                None => false,
            };
            if over { Released::Untold(error) } else { Released::Unknown(error) }
        }
    }
}
