//! The key of commands that are about one lock, and the token of those that change it.

use std::ffi::OsString;

/// A key, by position or by flag.
#[derive(clap::Args, Debug, Default)]
pub struct KeyArg {
    /// The lock's name
    #[arg(value_name = "KEY")]
    pub key: Option<OsString>,
    /// The lock's name, if it begins with a dash for example
    #[arg(
        short = 'k',
        long = "key",
        value_name = "KEY",
        conflicts_with = "key",
        hide_short_help = true
    )]
    pub key_flag: Option<OsString>,
}

/// Keys of locks that are taken together: one by position, or any number by flag.
#[derive(clap::Args, Debug, Default)]
pub struct KeysArg {
    /// The lock's name; -k KEY for each of several: all are taken, or none
    #[arg(value_name = "KEY")]
    pub key: Option<OsString>,
    /// The name of one of several locks: all are taken, or none
    #[arg(
        short = 'k',
        long = "key",
        value_name = "KEY",
        conflicts_with = "key",
        hide_short_help = true
    )]
    pub key_flags: Vec<OsString>,
}

/// How a lock is held, and in which order it is waited for.
#[derive(clap::Args, Debug, Default)]
pub struct ModeArgs {
    /// Hold it together with other readers
    #[arg(short, long, conflicts_with_all = ["exclusive", "permits"])]
    pub shared: bool,
    /// Be one of at most N holders (= --limit)
    #[arg(
        long,
        alias = "limit",
        value_name = "N",
        allow_negative_numbers = true,
        conflicts_with = "exclusive"
    )]
    pub permits: Option<String>,
    /// Serve waiters in order; else newcomers overtake
    #[arg(long)]
    pub fair: bool,
    /// Hold the lock alone (the default)
    #[arg(short = 'x', visible_short_alias = 'e', long, hide_short_help = true)]
    pub exclusive: bool,
}

/// How a lock is taken, and what it means if it is not.
#[derive(clap::Args, Debug, Default)]
pub struct TakingArgs {
    /// Wait up to D for the lock: 30s, 5m, forever
    #[arg(short, long, value_name = "D", allow_negative_numbers = true)]
    pub wait: Option<String>,
    /// Do not wait (the default, and -w 0)
    #[arg(short, long, hide_short_help = true)]
    pub nonblock: bool,
    /// How it is held.
    #[command(flatten)]
    pub mode: ModeArgs,
    /// The exit status when the lock is busy [75]
    #[arg(
        short = 'E',
        long,
        value_name = "N",
        allow_negative_numbers = true,
        hide_short_help = true
    )]
    pub conflict_exit_code: Option<String>,
}

/// The lock that a process elsewhere works under.
#[derive(clap::Args, Debug, Default)]
pub struct WantedArgs {
    /// The keys.
    #[command(flatten)]
    pub keys: KeysArg,
    /// How it is taken.
    #[command(flatten)]
    pub taking: TakingArgs,
    /// A note that inspect and list show
    #[arg(long, value_name = "TEXT", hide_short_help = true)]
    pub describe: Option<String>,
    /// Store no host, user or command
    #[arg(long, hide_short_help = true)]
    pub no_metadata: bool,
}

/// The secret that a hold was given.
#[derive(clap::Args, Debug, Default)]
pub struct TokenArg {
    /// The token; @FILE reads it from a file, @- from stdin
    #[arg(long, value_name = "T")]
    pub token: Option<String>,
}
