//! The run policy: constraints between successive runs of one key, which cron needs beyond a lock.

use std::time::Duration;

use crate::lock::{Denial, Once, Rule, RunPolicy, RunState, length};

/// How often a key's command may run, and how close together runs may be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicySettings {
    /// How long after the start of a run tries from other hosts are denied; for a lock that was
    /// taken without waiting. `None` if there is no skew guard, or this run waits or shares.
    pub skew_guard: Option<Duration>,
    /// How long the lock is kept at least, from its start and against every host.
    pub at_least: Option<Duration>,
    /// How often the command may run.
    pub frequency: Frequency,
    /// Skipped runs warn of a hold that is older than this.
    pub warn_held: Option<Duration>,
    /// The operator's reason to run although an earlier run would deny this one.
    pub anyway: Option<String>,
}

/// How often a command may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frequency {
    /// Whenever the lock is free.
    Always,
    /// Once in each period of its schedule.
    Per {
        /// How often the schedule fires.
        period: Duration,
        /// Which runs may be repeated within the period.
        again: RepeatRule,
    },
    /// Until one run was successful.
    Once {
        /// How long the success is remembered.
        keep: Duration,
        /// Which runs may be repeated within `keep`.
        again: RepeatRule,
    },
}

/// Which runs may be repeated although they count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RepeatRule {
    /// How often a run may be repeated after a failure.
    pub failed: u32,
    /// Whether a run may be repeated after a run whose outcome is unknown.
    pub crashed: bool,
}

impl super::RunSettings {
    /// Returns the status of a run that a rule denies.
    pub(super) fn denied_status(&self, denial: &Denial) -> u8 {
        match denial.rule {
            Rule::Once(RunState::Ok) => self.done_status,
            _ => self.conflict_status,
        }
    }
}

impl PolicySettings {
    /// The default skew guard, against clocks and crontabs that differ slightly.
    pub const SKEW_GUARD: Duration = Duration::from_secs(5);
    /// The default age from which skipped runs warn of a hold.
    pub const WARN_HELD: Duration = Duration::from_secs(3600);

    /// Returns the run policy that the store checks, for a run at `place`; `None` if there is
    /// nothing to check or record.
    pub fn run_policy(&self, place: String) -> Option<RunPolicy> {
        let again = self.frequency.again();
        let once = |window| Once {
            window,
            retry_failed: again.failed,
            retry_crashed: again.crashed,
        };
        let (skew_guard, at_least, once) = (
            self.skew_guard,
            self.at_least,
            self.frequency.window().map(once),
        );
        let run_policy = RunPolicy {
            place,
            skew_guard,
            at_least,
            once,
            anyway: self.anyway.is_some(),
        };
        Some(run_policy).filter(|run_policy| run_policy.anyway || run_policy.record_anything())
    }

    /// Returns the option that makes a run skip by this rule.
    pub fn option(&self, rule: Rule) -> String {
        match rule {
            Rule::Once(_) => self.frequency.option(),
            Rule::SkewGuard(_) | Rule::AtLeast(_) => rule.to_string(),
        }
    }
}

impl Frequency {
    /// Returns how long the last start counts: no run may start while the last start is younger.
    ///
    /// The window of a period is half of it: two ticks of a schedule that are closer together count
    /// as one.
    pub fn window(&self) -> Option<Duration> {
        match self {
            Self::Always => None,
            Self::Per { period, .. } => Some(*period / 2),
            Self::Once { keep, .. } => Some(*keep),
        }
    }

    /// Returns which runs may be repeated within the window.
    pub fn again(&self) -> RepeatRule {
        match self {
            Self::Always => RepeatRule::default(),
            Self::Per { again, .. } | Self::Once { again, .. } => *again,
        }
    }

    /// Returns the option as messages and the history name it.
    pub fn option(&self) -> String {
        match self {
            Self::Always => "always".into(),
            Self::Per { period, .. } => format!("once per {}", length(*period)),
            Self::Once { .. } => "once".into(),
        }
    }
}

/// The flags of it.
#[derive(clap::Args, Debug, Default)]
pub struct PolicyArgs {
    /// Run once per D, the period of the schedule
    #[arg(long, value_name = "D", allow_negative_numbers = true)]
    pub once_per: Option<String>,
    /// Run past skew guard, at-least, --once and --once-per, never past a holder; needs --reason
    #[arg(long, hide_short_help = true)]
    pub anyway: bool,
    /// Why --anyway, for the history
    #[arg(long, value_name = "TEXT", hide_short_help = true)]
    pub reason: Option<String>,
    /// Refuse tries from other hosts for D after the start, since clocks differ [5s]
    #[arg(
        long,
        value_name = "D",
        allow_negative_numbers = true,
        hide_short_help = true
    )]
    pub skew_guard: Option<String>,
    /// Keep the lock for at least D from its start
    #[arg(
        long,
        value_name = "D",
        allow_negative_numbers = true,
        hide_short_help = true
    )]
    pub at_least: Option<String>,
    /// Retry until one run succeeds, then refuse for as long as --keep says
    #[arg(long, hide_short_help = true)]
    pub once: bool,
    /// How long the success of --once is remembered
    #[arg(
        long,
        value_name = "D",
        allow_negative_numbers = true,
        hide_short_help = true
    )]
    pub keep: Option<String>,
    /// The exit status when --once or --once-per finds the work done [that of -E]
    #[arg(
        long,
        value_name = "N",
        allow_negative_numbers = true,
        hide_short_help = true
    )]
    pub done_exit_code: Option<String>,
    /// How often a failed run may be repeated [0 with --once-per, no limit with --once]
    #[arg(
        long,
        value_name = "N",
        allow_negative_numbers = true,
        hide_short_help = true
    )]
    pub retry_failed: Option<String>,
    /// Repeat a run with an unknown outcome (--once-per, --once)
    #[arg(long, hide_short_help = true)]
    pub retry_crashed: bool,
    /// Warn if the lock that makes this run skip has been held for longer [1h]
    #[arg(
        long,
        value_name = "D",
        allow_negative_numbers = true,
        hide_short_help = true
    )]
    pub warn_held: Option<String>,
}
