//! The key of commands that are about one lock, and the token of those that change it.

use std::ffi::OsString;

/// A key, by position or by flag.
#[derive(clap::Args, Debug, Default)]
pub struct KeyArg {
    /// The lock's name
    #[arg(value_name = "KEY")]
    pub key: Option<OsString>,
    /// The lock's name, if it begins with a dash for example
    #[arg(short = 'k', long = "key", value_name = "KEY", conflicts_with = "key", hide_short_help = true)]
    pub key_flag: Option<OsString>,
}

/// The secret that a hold was given.
#[derive(clap::Args, Debug, Default)]
pub struct TokenArg {
    /// The token; @FILE reads it from a file, @- from stdin
    #[arg(long, value_name = "T")]
    pub token: Option<String>,
}
