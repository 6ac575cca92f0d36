//! What a run asks of the runs of the same key before it, and of those after it: what cron needs beyond a lock.

use std::time::Duration;

use crate::lock::{Once, Rule, RunPolicy, length};

/// How often a key's command may run, and how near to each other runs may be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Other hosts' tries are refused until so long after the start of a lock that was taken without waiting. `None` if there is
    /// no such guard, or this run waits or shares.
    pub skew_guard: Option<Duration>,
    /// The lock is kept at least so long from its start, for every host.
    pub at_least: Option<Duration>,
    /// How often the command may run.
    pub often: Often,
    /// Skipped runs warn of a hold that is older than this.
    pub warn_held: Option<Duration>,
    /// Why no earlier run refuses this one, as an operator said.
    pub anyway: Option<String>,
}

/// How often a command may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Often {
    /// Whenever the lock is free.
    Always,
    /// Once in each period of its schedule.
    Per {
        /// How often the schedule fires.
        period: Duration,
        /// What may be repeated before that.
        again: Again,
    },
    /// Until it was successful, once.
    Once {
        /// How long that is remembered.
        keep: Duration,
        /// What may be repeated before that.
        again: Again,
    },
}

/// Which runs may be repeated although they count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Again {
    /// How often after a failure.
    pub failed: u32,
    /// Whether after a run whose outcome is unknown.
    pub crashed: bool,
}

impl Policy {
    /// The guard against clocks and crontabs that are a little apart, unless another one is asked for.
    pub const SKEW_GUARD: Duration = Duration::from_secs(5);
    /// The default age from which skipped runs warn of a hold.
    pub const WARN_HELD: Duration = Duration::from_secs(3600);

    /// What the store is asked, for a run at this place; `None` if there is nothing.
    pub fn run_policy(&self, place: String) -> Option<RunPolicy> {
        let again = self.often.again();
        let once = |window| Once { window, retry_failed: again.failed, retry_crashed: again.crashed };
        let (skew_guard, at_least, once) = (self.skew_guard, self.at_least, self.often.window().map(once));
        let run_policy = RunPolicy { place, skew_guard, at_least, once, anyway: self.anyway.is_some() };
        Some(run_policy).filter(|run_policy| run_policy.anyway || run_policy.record_anything())
    }

    /// The option that makes a run skip by this rule.
    pub fn option(&self, rule: Rule) -> String {
        match rule {
            Rule::Once(_) => self.often.option(),
            Rule::SkewGuard(_) | Rule::AtLeast(_) => rule.to_string(),
        }
    }
}

impl Often {
    /// For how long the last start counts: no run is to start while it is younger.
    ///
    /// Half of a period is as much as two ticks of a schedule can come nearer to each other without being one.
    pub fn window(&self) -> Option<Duration> {
        match self {
            Self::Always => None,
            Self::Per { period, .. } => Some(*period / 2),
            Self::Once { keep, .. } => Some(*keep),
        }
    }

    /// Which runs may be repeated within it.
    pub fn again(&self) -> Again {
        match self {
            Self::Always => Again::default(),
            Self::Per { again, .. } | Self::Once { again, .. } => *again,
        }
    }

    /// The option, as messages and the history name it.
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
    #[arg(long, value_name = "D", allow_negative_numbers = true, hide_short_help = true)]
    pub skew_guard: Option<String>,
    /// Keep the lock for at least D from its start
    #[arg(long, value_name = "D", allow_negative_numbers = true, hide_short_help = true)]
    pub at_least: Option<String>,
    /// Retry until one run succeeds, then refuse for as long as --keep says
    #[arg(long, hide_short_help = true)]
    pub once: bool,
    /// How long the success of --once is remembered
    #[arg(long, value_name = "D", allow_negative_numbers = true, hide_short_help = true)]
    pub keep: Option<String>,
    /// How often a failed run may be repeated [0 with --once-per, no limit with --once]
    #[arg(long, value_name = "N", allow_negative_numbers = true, hide_short_help = true)]
    pub retry_failed: Option<String>,
    /// Repeat a run with an unknown outcome (--once-per, --once)
    #[arg(long, hide_short_help = true)]
    pub retry_crashed: bool,
    /// Warn if the lock that makes this run skip has been held for longer [1h]
    #[arg(long, value_name = "D", allow_negative_numbers = true, hide_short_help = true)]
    pub warn_held: Option<String>,
}
