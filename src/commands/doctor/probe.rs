//! The probe lock of `doctor`, acquired as `run` acquires a lock.
//!
//! The probe's name can't be typed ([`Key::probe`]), so no user has it. The name is always the same
//! for a store and its mode, so at most one fence record remains. Two concurrent doctors wait for
//! each other.

use std::{cell::Cell, time::Duration};

use super::{Context, DoctorSettings, failed};
use crate::{
    commands::{collect_metadata, interrupted, stopped_by},
    lease::{
        BootClock, Budget, Clock as _, Lease, Outcome, Released, WaitPolicy, acquire, ask, release,
    },
    lock::{
        Backend, Error, Finding, Key, Kind, ReleaseInfo, Renewal, Request, Result, Scope,
        ServerTime, Severity, Ttl,
    },
    output::doctor::DoctorReport,
    supervise::{Signal, Signals},
};

/// The number of timed renewals; the median counts.
const RENEWALS: usize = 5;
/// A waiter should be woken sooner than this, where the store wakes waiters.
const WOKEN: Duration = Duration::from_secs(1);
/// Clocks that are further apart than this matter to cron.
const APART: Duration = Duration::from_secs(1);

/// The release info of the probe, which keeps no history.
const UNTOLD: ReleaseInfo = ReleaseInfo {
    scope: Scope::Tree,
    ..ReleaseInfo::UNDO
};

const TAKEN: &str = "acquire-renew-release";
const MEND: &str = "an NTP client (chrony) on all hosts and servers";

/// The checks that need the probe lock, and the fact that each one measures.
const TRIALS: &[(&str, &str)] = &[
    (TAKEN, "taking a lock"),
    ("hand-over", "how long the hand-over takes"),
    ("round-trip", "how long a renewal takes"),
];

fn untried(why: &str, trials: &[(&'static str, &str)]) -> Vec<Finding> {
    trials
        .iter()
        .map(|(check, what)| Finding::unchecked(check, what, why))
        .collect()
}

/// Acquires, times and releases the probe lock. Returns an exit status if a signal ended the trial.
pub(super) async fn try_out(
    backend: &mut dyn Backend,
    settings: &DoctorSettings,
    context: &Context,
    report: &mut DoctorReport,
) -> Option<u8> {
    if let Some(why) = context.target.store.one_lock_for_all() {
        report.findings.extend(untried(why, TRIALS));
        report.findings.push(clock(backend, context).await);
        return None;
    }
    let mut signals = match Signals::new() {
        Ok(signals) => signals,
        Err(error) => {
            let error = Error::new(Kind::Internal, "signals can't be watched").source(error);
            report
                .findings
                .push(failed(TAKEN, &error, "a lock could stay behind"));
            return None;
        }
    };
    let ttl = settings
        .ttl
        .unwrap_or_else(|| backend.identity().capabilities.clamp_ttl(Ttl::DEFAULT));
    let key = Key::probe_of(backend.identity().capabilities.backend);
    let stopped = |signal: Signal| Some(stopped_by(signal, &key, &context.out));
    let lease = match take(backend, ttl, settings, context, &mut signals).await {
        Ok(Outcome::Granted(lease)) => lease,
        Ok(Outcome::Stopped(signal)) => return stopped(signal),
        Ok(Outcome::Busy(_) | Outcome::Denied(_)) => {
            report
                .findings
                .extend(untried("another doctor has the test lock", TRIALS));
            report.findings.push(clock(backend, context).await);
            return None;
        }
        Err(error) => {
            // One cause is one finding.
            let fixes = report
                .findings
                .iter()
                .filter(|finding| finding.severity == Severity::Unsafe)
                .filter_map(|found| found.fix.as_ref());
            if fixes.into_iter().any(|fix| {
                error
                    .hint
                    .as_ref()
                    .is_some_and(|hint| hint.starts_with(fix))
            }) {
                report
                    .findings
                    .extend(untried("no lock can be taken", TRIALS));
            } else {
                report.findings.push(failed(TAKEN, &error, "no job runs"));
                report
                    .findings
                    .extend(untried("no lock could be taken", &TRIALS[1..]));
            }
            report.findings.push(clock(backend, context).await);
            return None;
        }
    };
    let noticed = backend.notices();
    let signal = {
        let work = measure(backend, &lease, context, report);
        tokio::select! {
            biased;
            signal = interrupted(&mut signals) => Some(signal),
            () = work => None,
        }
    };
    if let Some(signal) = signal {
        let _ = release(
            backend,
            &BootClock,
            &lease.key,
            &lease.token,
            &UNTOLD,
            context.limits(),
        )
        .await;
        return stopped(signal);
    }
    if let Some(signal) = hand_over(backend, &lease, context, &mut signals, report).await {
        return stopped(signal);
    }
    if context.out.is_verbose() {
        report.findings.extend(
            noticed
                .into_iter()
                .map(|notice| Finding::noticed(TAKEN, notice)),
        );
    }
    None
}

async fn take(
    backend: &mut dyn Backend,
    ttl: Ttl,
    settings: &DoctorSettings,
    context: &Context,
    signals: &mut Signals,
) -> Result<Outcome<Signal>> {
    let key = Key::probe_of(backend.identity().capabilities.backend);
    let request = request(key, ttl, settings.ttl.is_some(), context);
    let wait_policy = WaitPolicy::For(context.answer);
    acquire(
        backend,
        &BootClock,
        request,
        wait_policy,
        context.limits(),
        interrupted(signals),
        |_| {},
    )
    .await
}

fn request(key: Key, ttl: Ttl, ttl_asked: bool, context: &Context) -> Request {
    Request {
        ttl_asked,
        metadata: Some(collect_metadata(
            context.host.as_deref(),
            None,
            Some("dlock doctor".into()),
        )),
        ..Request::new(key, ttl)
    }
}

/// Measures renewals, and the store's clock.
async fn measure(
    backend: &mut dyn Backend,
    lease: &Lease,
    context: &Context,
    report: &mut DoctorReport,
) {
    let mut took = Vec::new();
    let mut trouble = None;
    for _ in 0..RENEWALS {
        let sent = BootClock.now();
        let answer = ask(
            backend,
            &BootClock,
            context.limits(),
            ("renew", Some(&lease.key)),
            async |b| b.renew(&lease.key, &lease.token, None.into()).await,
        )
        .await;
        match answer {
            Ok(Renewal::Renewed { .. } | Renewal::Kept { .. }) => {
                took.push(BootClock.now().since(sent));
            }
            Ok(Renewal::NotHeld | Renewal::Broken(_)) => {
                let text = "the test lock was lost before its renewal";
                trouble = Some(
                    Finding::not_safe(TAKEN, text, "two may run")
                        .fix("find out what removes locks in this store"),
                );
                break;
            }
            Err(error) => {
                trouble = Some(failed(
                    TAKEN,
                    &error,
                    "no lock can be kept: dlock stops the job",
                ));
                break;
            }
        }
    }
    took.sort_unstable();
    let usual = took.get(took.len() / 2).copied();
    report.measured.round_trip = usual;
    report.findings.extend(trouble);
    report.findings.push(match usual {
        Some(usual) => round_trip(usual, lease.ttl, backend),
        None => Finding::unchecked(
            "round-trip",
            "how long a renewal takes",
            "none was confirmed",
        ),
    });
    report.findings.push(clock(backend, context).await);
}

fn round_trip(usual: Duration, ttl: Ttl, backend: &dyn Backend) -> Finding {
    const ID: &str = "round-trip";
    let Ok(budget) = Budget::new(ttl, None, backend.identity().capabilities.pace) else {
        return Finding::unchecked(ID, "how much time renewals have", "the lease is too short");
    };
    let every = budget.renew_every();
    let text = format!(
        "a renewal takes {}, and there is one every {} of a TTL of {}",
        shown(usual),
        shown(every),
        shown(ttl.get())
    );
    if usual >= every {
        return Finding::not_safe(
            ID,
            text,
            "none is confirmed before the next, and the job is stopped",
        )
        .fix(longer(usual));
    }
    if usual > every / 10 {
        return Finding::warn(ID, text, "a few slow or lost renewals stop the job")
            .fix(longer(usual));
    }
    Finding::ok(ID, text)
}

fn longer(usual: Duration) -> String {
    format!(
        "use --ttl {}s or more, or a nearer store",
        (usual * 61).as_secs() + 1
    )
}

/// Hands the lock over to a waiter, and breaks the waiter's hold.
async fn hand_over(
    backend: &mut dyn Backend,
    lease: &Lease,
    context: &Context,
    signals: &mut Signals,
    report: &mut DoctorReport,
) -> Option<Signal> {
    let mut other = context.target.store.backend();
    let wakes = other.identity().capabilities.notification;
    let (waits, others, given) = (Cell::new(false), Cell::new(false), Cell::new(None));
    let limits = context.limits();
    let waiting = acquire(
        &mut *other,
        &BootClock,
        request(lease.key.clone(), lease.ttl, false, context),
        WaitPolicy::For(limits.answer),
        limits,
        interrupted(signals),
        |busy| {
            waits.set(true);
            // Doctors of other hosts are earlier in the queue.
            others.set(others.get() || busy.position.is_some_and(|place| place > 1));
        },
    );
    let giving = async {
        // Poll until the waiter is queued; if the waiter fails, its error ends this first.
        let until = BootClock.now().plus(limits.attempt());
        while !waits.get() && BootClock.now() < until {
            BootClock
                .sleep_until(BootClock.now().plus(Duration::from_millis(5)))
                .await;
        }
        BootClock
            .sleep_until(BootClock.now().plus(Duration::from_millis(20)))
            .await;
        given.set(Some(BootClock.now()));
        release(
            backend,
            &BootClock,
            &lease.key,
            &lease.token,
            &UNTOLD,
            limits,
        )
        .await
    };
    let getting = async {
        let got = waiting.await;
        waits.set(true);
        (got, BootClock.now())
    };
    let (got, gave) = tokio::join!(getting, giving);
    if let Some(finding) = taken(gave, report) {
        report.findings.push(finding);
    }
    let (got, at) = got;
    let lease = match got {
        Ok(Outcome::Granted(lease)) => lease,
        Ok(Outcome::Stopped(signal)) => return Some(signal),
        Ok(Outcome::Busy(_) | Outcome::Denied(_)) => {
            let text = format!(
                "a waiter had not got the lock {} after its release",
                shown(limits.answer)
            );
            report.findings.push(Finding::warn(
                "hand-over",
                text,
                "jobs that wait run late, or not at all",
            ));
            return None;
        }
        Err(error) => {
            report.findings.push(failed(
                "hand-over",
                &error,
                "no process can wait for a lock",
            ));
            return None;
        }
    };
    let took = given.get().map(|given| at.since(given)).unwrap_or_default();
    report.measured.hand_over = Some(took);
    let text = format!("a waiter gets the lock {} after its release", shown(took));
    report
        .findings
        .push(if took > WOKEN && wakes && !others.get() {
            Finding::warn("hand-over", text, "he was not woken, and looked by himself")
                .fix("is there a proxy or a pooler in between, or a right missing?")
        } else {
            Finding::ok("hand-over", text)
        });
    let given = release(
        &mut *other,
        &BootClock,
        &lease.key,
        &lease.token,
        &UNTOLD,
        limits,
    )
    .await;
    if let Released::Untold(error) | Released::Unknown(error) = given {
        report.findings.push(failed(
            "hand-over",
            &error,
            "a lock that can't be released is held until its lease or its session ends",
        ));
    }
    None
}

/// Returns the finding on acquiring, from the release's result, unless the report already has one.
fn taken(gave: Released, report: &DoctorReport) -> Option<Finding> {
    match gave {
        Released::Free if report.findings.iter().any(|finding| finding.check == TAKEN) => None,
        Released::Free => Some(Finding::ok(TAKEN, "a lock was taken, renewed and released")),
        Released::StillHeld(_) | Released::NotHeld => {
            let text = "the test lock was lost before its release";
            Some(
                Finding::not_safe(TAKEN, text, "two may run")
                    .fix("find out what removes locks in this store"),
            )
        }
        Released::Untold(error) | Released::Unknown(error) => Some(failed(
            TAKEN,
            &error,
            "a lock that can't be released is held until its lease or its session ends",
        )),
    }
}

/// Compares the store's clocks with this host's, and with each other.
async fn clock(backend: &mut dyn Backend, context: &Context) -> Finding {
    const ID: &str = "clock";
    let mut nearest: Option<(Duration, Vec<(String, i128)>)> = None;
    // The first round trip may include connecting; the shortest is the most exact.
    for _ in 0..3 {
        let (sent, wall) = (BootClock.now(), BootClock::wall());
        let asked = ask(
            backend,
            &BootClock,
            context.limits(),
            ("doctor", None),
            async |b| b.clocks().await,
        )
        .await;
        let took = BootClock.now().since(sent);
        let times = match asked {
            Ok(times) => times,
            Err(error) => return Finding::unchecked(ID, "the store's clock", &error.message),
        };
        let middle = signed(wall + took / 2);
        let ahead = |time: ServerTime| (time.server, signed(time.since_epoch) - middle);
        if nearest.as_ref().is_none_or(|(known, _)| took < *known) {
            nearest = Some((took, times.into_iter().map(ahead).collect()));
        }
    }
    let Some((took, clocks)) = nearest.filter(|(_, clocks)| !clocks.is_empty()) else {
        return Finding::ok(ID, "the store has no clock to compare with this host's");
    };
    let offsets = || clocks.iter().map(|(_, ahead)| *ahead);
    let (least, most) = (offsets().min().unwrap_or(0), offsets().max().unwrap_or(0));
    let furthest = if most.abs() >= least.abs() {
        most
    } else {
        least
    };
    let unsure = signed(took / 2);
    let limit = signed(APART) + unsure;
    let mut text = match clocks.as_slice() {
        [(server, ahead)] => format!(
            "the clock of {server} is {}",
            describe_offset(*ahead, unsure)
        ),
        several => format!(
            "of {} clocks the furthest is {}",
            several.len(),
            describe_offset(furthest, unsure)
        ),
    };
    if clocks.len() > 1 && most - least > limit {
        let worst: Vec<&str> = clocks
            .iter()
            .filter(|(_, ahead)| (*ahead - furthest).abs() < limit)
            .map(|(server, _)| server.as_str())
            .collect();
        text = format!(
            "the servers' clocks are {} apart ({})",
            shown(unsigned(most - least)),
            worst.join(", ")
        );
        return Finding::warn(
            ID,
            text,
            "a lease ends earlier or later after a failover, or when a clock is set",
        )
        .fix(MEND);
    }
    if furthest.abs() > limit {
        return Finding::warn(
            ID,
            text,
            "crontabs fire one after the other if clocks differ: both may find the lock free",
        )
        .fix(MEND);
    }
    Finding::ok(ID, text)
}

fn describe_offset(ahead: i128, unsure: i128) -> String {
    if ahead.abs() <= unsure {
        return format!(
            "this host's, as far as can be told (within {})",
            shown(unsigned(unsure.max(100)))
        );
    }
    let which = if ahead > 0 { "ahead of" } else { "behind" };
    format!("{} {which} this host's", shown(unsigned(ahead)))
}

fn signed(length: Duration) -> i128 {
    i128::try_from(length.as_micros()).unwrap_or(i128::MAX)
}

fn unsigned(micros: i128) -> Duration {
    Duration::from_micros(u64::try_from(micros.unsigned_abs()).unwrap_or(u64::MAX))
}

/// Formats a length in the unit that needs the fewest digits.
fn shown(length: Duration) -> String {
    let ms = length.as_secs_f64() * 1000.0;
    match ms {
        ..10.0 => format!("{ms:.1} ms"),
        ..1000.0 => format!("{ms:.0} ms"),
        ..60_000.0 => format!("{:.1} s", ms / 1000.0).replace(".0 s", " s"),
        _ => crate::output::age(length),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        backends::memory::{Memory, MemoryStore},
        lock::{Namespace, Severity},
    };

    #[test]
    fn slow_renewals_are_rated_against_the_ttl() {
        let memory = Memory::new(MemoryStore::default(), Namespace::default());
        let with = |ms, ttl| {
            round_trip(
                Duration::from_millis(ms),
                Ttl::new(Duration::from_secs(ttl)).unwrap(),
                &memory,
            )
            .severity
        };
        assert_eq!(
            (with(1, 60), with(1500, 60), with(11_000, 60)),
            (Severity::Ok, Severity::Warn, Severity::Unsafe)
        );
        assert_eq!(
            (with(10, 1), with(30, 1), with(200, 1)),
            (Severity::Ok, Severity::Warn, Severity::Unsafe)
        );
    }

    #[test]
    fn durations_are_short() {
        let of = |micros| shown(Duration::from_micros(micros));
        assert_eq!(
            [of(80), of(1140), of(98_700), of(9_900_000), of(61_000_000)],
            ["0.1 ms", "1.1 ms", "99 ms", "9.9 s", "1m 1s"]
        );
        assert_eq!(describe_offset(-12_000, 500), "12 ms behind this host's");
        assert!(describe_offset(300, 500).starts_with("this host's"));
    }
}
