//! The run policy of `dlock run`: its settings for cron, and which of them can be combined.

use std::time::Duration;

use super::{
    layers::Layers,
    setting::{Origin, Setting, reason, short},
};
use crate::{
    commands::run::{Frequency, PolicyArgs, PolicySettings, RepeatRule},
    lease::WaitPolicy,
    lock::{Error, Kind, Mode, Result},
};

const DAY: Duration = Duration::from_secs(24 * 3600);
/// The range of `--once-per`, with the hint.
const PERIODS: (Duration, Duration, &str) = (
    Duration::from_secs(1),
    Duration::from_secs(366 * 24 * 3600),
    "a period is between 1s and 366d",
);
const KEEPS: (Duration, Duration, &str) = (
    Duration::from_secs(1),
    Duration::from_secs(3660 * 24 * 3600),
    "a success is kept between 1s and 3660d",
);
const RETRIES: &str = "it is a number from 0 to 1000";

/// Checks the settings and returns the policy. `mode` and `wait` are those of the run.
///
/// # Errors
/// The first invalid setting, or two settings that exclude each other, with their origins.
pub fn policy(
    args: &PolicyArgs,
    mode: Mode,
    wait: WaitPolicy,
    layers: &Layers<'_>,
) -> Result<PolicySettings> {
    let once = if_yes(layers.get("once", true_if(args.once))?)?;
    let keep = layers.get("keep", args.keep.as_deref())?;
    let once_per = layers.get("once_per", args.once_per.as_deref())?;
    let (always, once_per) = match once_per {
        Some(setting) if setting.text == "none" || setting.duration(PERIODS.2)?.is_zero() => {
            (true, None)
        }
        once_per => (false, once_per),
    };
    let retry_failed = layers.get("retry_failed", args.retry_failed.as_deref())?;
    let retry_crashed = if_yes(layers.get("retry_crashed", true_if(args.retry_crashed))?)?;
    let at_least = layers.get("at_least", args.at_least.as_deref())?;
    if mode != Mode::Exclusive
        && let Some(setting) = [&once, &once_per, &at_least].into_iter().flatten().next()
    {
        return Err(setting
            .refuse("not for a shared lock")
            .hint("-x, the default, holds the lock alone"));
    }
    if let (Some(once), Some(once_per)) = (&once, &once_per) {
        return Err(exclude(once, once_per)
            .hint("--once-per is for what a schedule repeats, --once for what happens once"));
    }
    let failed = match &retry_failed {
        Some(setting) => retries(setting)?,
        // `--once` retries until the first success.
        None if once.is_some() => u32::MAX,
        None => 0,
    };
    let again = RepeatRule {
        failed,
        crashed: retry_crashed.is_some(),
    };
    let frequency = match (&once, &keep, &once_per) {
        (Some(_), Some(keep), _) => Frequency::Once {
            keep: keep.within(KEEPS)?,
            again,
        },
        (Some(once), None, _) => {
            return Err(once
                .refuse("it needs --keep")
                .hint("--keep 30d remembers the success for 30 days"));
        }
        (None, Some(keep), _) => {
            return Err(keep
                .refuse("it is for --once")
                .hint("it says how long the success of --once is remembered"));
        }
        (None, None, Some(period)) => Frequency::Per {
            period: period.within(PERIODS)?,
            again,
        },
        (None, None, None) => {
            if let Some(setting) = retry_failed
                .as_ref()
                .or(retry_crashed.as_ref())
                .filter(|_| !always)
            {
                let hint = "without them a failed job is always run again";
                return Err(setting.refuse("it needs --once-per or --once").hint(hint));
            }
            Frequency::Always
        }
    };
    Ok(PolicySettings {
        skew_guard: skew_guard(args, frequency, mode, wait, layers)?,
        at_least: at_least
            .map(|setting| at_most_a_year(&setting))
            .transpose()?
            .flatten(),
        frequency,
        anyway: anyway(args)?,
        warn_held: match layers.get("warn_held", args.warn_held.as_deref())? {
            Some(setting) => off_if_zero(setting.duration("an age is 0, for never, or more")?),
            None => Some(PolicySettings::WARN_HELD),
        },
    })
}

/// Returns the reason for which an operator overrides the run policy.
fn anyway(args: &PolicyArgs) -> Result<Option<String>> {
    match (args.anyway, &args.reason) {
        (true, None) => Err(Error::new(Kind::Usage, "--anyway needs --reason")
            .hint("--reason TEXT goes into the history, with your name")),
        (false, Some(_)) => Err(Error::new(Kind::Usage, "--reason is for --anyway")
            .hint("--describe TEXT is a note that inspect and list show")),
        (_, text) => text.clone().map(reason).transpose(),
    }
}

/// Returns the skew guard, which applies only in try mode and only to exclusive locks.
fn skew_guard(
    args: &PolicyArgs,
    frequency: Frequency,
    mode: Mode,
    wait: WaitPolicy,
    layers: &Layers<'_>,
) -> Result<Option<Duration>> {
    let given = layers.get("skew_guard", args.skew_guard.as_deref())?;
    let guard = given
        .as_ref()
        .map(|setting| setting.duration("a skew guard is 0, for none, or more"))
        .transpose()?;
    // A longer guard than half a period could deny the next scheduled run of a node whose clock is
    // ahead.
    let most = if let Frequency::Per { period, .. } = frequency {
        period / 2
    } else {
        DAY
    };
    if let (Some(setting), Some(guard)) = (&given, guard.filter(|guard| *guard > most)) {
        let [guard, most] = [guard, most].map(humantime::format_duration);
        return Err(setting.refuse(format!("{guard} is too long")).hint(
            if matches!(frequency, Frequency::Per { .. }) {
                format!("at most half of --once-per: {most}")
            } else {
                format!("at most {most}")
            },
        ));
    }
    if mode != Mode::Exclusive || !matches!(wait, WaitPolicy::Try) {
        return match given {
            Some(setting)
                if matches!(setting.origin, Origin::Flag(_)) && guard != Some(Duration::ZERO) =>
            {
                Err(setting
                    .refuse("only for runs that neither wait nor share")
                    .hint("a waiter gets the lock as soon as it is free"))
            }
            _ => Ok(None),
        };
    }
    Ok(off_if_zero(
        guard.unwrap_or(PolicySettings::SKEW_GUARD.min(most)),
    ))
}

fn true_if(flag: bool) -> Option<&'static str> {
    flag.then_some("true")
}

/// Returns the setting if its value is true_if.
fn if_yes(setting: Option<Setting>) -> Result<Option<Setting>> {
    match setting {
        Some(setting) => Ok(setting.yes()?.then_some(setting)),
        None => Ok(None),
    }
}

fn exclude(one: &Setting, other: &Setting) -> Error {
    let kind = if [one, other]
        .iter()
        .any(|setting| setting.origin.kind() == Kind::Usage)
    {
        Kind::Usage
    } else {
        Kind::Config
    };
    Error::new(
        kind,
        format!("{} and {} exclude each other", one.origin, other.origin),
    )
}

fn at_most_a_year(setting: &Setting) -> Result<Option<Duration>> {
    setting
        .within((Duration::ZERO, 366 * DAY, "a lock is kept for 366d at most"))
        .map(off_if_zero)
}

fn off_if_zero(length: Duration) -> Option<Duration> {
    Some(length).filter(|length| !length.is_zero())
}

fn retries(setting: &Setting) -> Result<u32> {
    let number = setting.text.parse().ok().filter(|number| *number <= 1000);
    number.ok_or_else(|| {
        setting
            .refuse(format!("{:?} is no number of runs", short(&setting.text)))
            .hint(RETRIES)
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::{
        cli::{env::Env, file::File},
        lock::Key,
    };

    const TRY: WaitPolicy = WaitPolicy::Try;

    fn with(text: &str, args: &PolicyArgs, mode: Mode, wait: WaitPolicy) -> Result<PolicySettings> {
        let file = File::parse(text, Path::new("c.toml"))?;
        let env = Env::default();
        policy(
            args,
            mode,
            wait,
            &Layers::new(&env, &file, Some(&Key::new("job").unwrap())),
        )
    }

    fn of(text: &str) -> Result<PolicySettings> {
        with(text, &PolicyArgs::default(), Mode::Exclusive, TRY)
    }

    fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn the_defaults_are_a_skew_guard_and_a_warning() {
        let policy = of("").unwrap();
        let wanted = PolicySettings {
            skew_guard: Some(secs(5)),
            at_least: None,
            frequency: Frequency::Always,
            warn_held: Some(secs(3600)),
            anyway: None,
        };
        assert_eq!(policy, wanted);
        let off = of("skew_guard = 0\nwarn_held = 0\nat_least = 0").unwrap();
        assert_eq!(
            (off.skew_guard, off.warn_held, off.at_least),
            (None, None, None)
        );
    }

    #[test]
    fn a_flag_beats_the_key_which_beats_the_top_level() {
        let text = "skew_guard = 9\nat_least = 9\n[keys.job]\nskew_guard = 8\nonce_per = \"1m\"\nretry_failed = 2\nretry_crashed = true\n";
        let policy = of(text).unwrap();
        assert_eq!(
            (policy.skew_guard, policy.at_least),
            (Some(secs(8)), Some(secs(9)))
        );
        assert_eq!(
            policy.frequency,
            Frequency::Per {
                period: secs(60),
                again: RepeatRule {
                    failed: 2,
                    crashed: true
                }
            }
        );
        let args = PolicyArgs {
            skew_guard: Some("7".into()),
            once_per: Some("2m".into()),
            retry_failed: Some("0".into()),
            ..PolicyArgs::default()
        };
        let policy = with(text, &args, Mode::Exclusive, TRY).unwrap();
        assert_eq!(policy.skew_guard, Some(secs(7)));
        assert_eq!(
            policy.frequency,
            Frequency::Per {
                period: secs(120),
                again: RepeatRule {
                    failed: 0,
                    crashed: true
                }
            }
        );
        let once = of("[keys.job]\nonce = true\nkeep = \"30d\"").unwrap();
        assert_eq!(
            once.frequency,
            Frequency::Once {
                keep: 30 * DAY,
                again: RepeatRule {
                    failed: u32::MAX,
                    crashed: false
                }
            }
        );
        let options = [policy, once, of("").unwrap()]
            .map(|policy| (policy.frequency.option(), policy.frequency.window()));
        assert_eq!(
            options,
            [
                ("once per 2m".into(), Some(secs(60))),
                ("once".into(), Some(30 * DAY)),
                ("always".into(), None)
            ]
        );
    }

    #[test]
    fn the_guard_is_for_tries_and_never_longer_than_half_of_a_period() {
        let short = "[keys.job]\nonce_per = 6";
        assert_eq!(of(short).unwrap().skew_guard, Some(secs(3)));
        assert_eq!(
            with(
                "",
                &PolicyArgs::default(),
                Mode::Exclusive,
                WaitPolicy::Forever
            )
            .unwrap()
            .skew_guard,
            None
        );
        assert_eq!(
            with("skew_guard = 9", &PolicyArgs::default(), Mode::Shared, TRY)
                .unwrap()
                .skew_guard,
            None
        );
        let error = of(&format!("skew_guard = 4\n{short}")).unwrap_err();
        assert_eq!(error.to_string(), "c.toml:1: skew_guard: 4s is too long");
        assert_eq!(
            error.hint.as_deref(),
            Some("at most half of --once-per: 3s")
        );
        let args = PolicyArgs {
            skew_guard: Some("4".into()),
            ..PolicyArgs::default()
        };
        assert!(
            with("", &args, Mode::Exclusive, WaitPolicy::Forever)
                .unwrap_err()
                .message
                .starts_with("--skew-guard: only for runs")
        );
    }

    #[test]
    fn a_period_can_be_switched_off_and_an_override_has_a_reason() {
        for off in ["0", "none"] {
            let args = PolicyArgs {
                once_per: Some(off.into()),
                ..PolicyArgs::default()
            };
            let policy = with(
                "[keys.job]\nonce_per = \"1d\"\nretry_failed = 1",
                &args,
                Mode::Exclusive,
                TRY,
            )
            .unwrap();
            assert_eq!(policy.frequency, Frequency::Always, "{off}");
        }
        let args = |anyway, reason: Option<&str>| PolicyArgs {
            anyway,
            reason: reason.map(Into::into),
            ..PolicyArgs::default()
        };
        let anyway = |args| {
            with("", &args, Mode::Exclusive, TRY)
                .map(|policy| policy.anyway)
                .map_err(|error| error.message)
        };
        assert_eq!(anyway(args(true, Some("rerun"))), Ok(Some("rerun".into())));
        assert_eq!(
            anyway(args(true, None)),
            Err("--anyway needs --reason".into())
        );
        assert_eq!(
            anyway(args(false, Some("x"))),
            Err("--reason is for --anyway".into())
        );
    }

    #[test]
    fn conflicting_settings_are_refused_with_their_origin() {
        for (text, message) in [
            ("once = true", "c.toml:2: once: it needs --keep"),
            ("keep = \"1d\"", "c.toml:2: keep: it is for --once"),
            (
                "once = false\nkeep = \"1d\"",
                "c.toml:3: keep: it is for --once",
            ),
            (
                "once = true\nkeep = \"1d\"\nonce_per = \"1m\"",
                "c.toml:2: once and c.toml:4: once_per exclude each other",
            ),
            (
                "once = true\nkeep = 0",
                "c.toml:3: keep: \"0\" is out of range",
            ),
            (
                "once_per = \"800d\"",
                "c.toml:2: once_per: \"800d\" is out of range",
            ),
            (
                "retry_failed = 1",
                "c.toml:2: retry_failed: it needs --once-per or --once",
            ),
            (
                "retry_crashed = true",
                "c.toml:2: retry_crashed: it needs --once-per or --once",
            ),
            (
                "once_per = \"1m\"\nretry_failed = -1",
                "c.toml:3: retry_failed: \"-1\" is no number of runs",
            ),
            (
                "at_least = \"800d\"",
                "c.toml:2: at_least: \"800d\" is out of range",
            ),
            (
                "warn_held = \"soon\"",
                "c.toml:2: warn_held: \"soon\": invalid duration",
            ),
        ] {
            let error = of(&format!("[keys.job]\n{text}\n")).unwrap_err();
            assert_eq!(
                (error.kind, error.to_string()),
                (Kind::Config, message.to_owned()),
                "{text}"
            );
        }
        let args = PolicyArgs {
            once: true,
            keep: Some("1d".into()),
            ..PolicyArgs::default()
        };
        let error = with("[keys.job]\nonce_per = \"1m\"", &args, Mode::Exclusive, TRY).unwrap_err();
        assert_eq!(
            (error.kind, error.to_string()),
            (
                Kind::Usage,
                "--once and c.toml:2: once_per exclude each other".into()
            )
        );
        assert!(
            with(
                "[keys.job]\nonce_per = \"1m\"",
                &PolicyArgs::default(),
                Mode::Shared,
                TRY
            )
            .is_err()
        );
        assert!(
            of("once = true")
                .unwrap_err()
                .to_string()
                .contains("there is no setting \"once\" here"),
            "it belongs to one job"
        );
    }
}
