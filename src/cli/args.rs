//! The command line as clap sees it. Values that have other sources too stay text until the layers are known.

use clap::{ArgAction, Args, Parser, Subcommand, builder::PossibleValuesParser};

use crate::commands::{acquire, completions, init, inspect, list, man, release, renew, run};

/// Take a lock on the store you already run, and run a command under it.
#[derive(Debug, Parser)]
#[command(
    name = "dlock",
    version,
    disable_help_flag = true,
    disable_version_flag = true,
    disable_help_subcommand = true,
    help_template = "{about}\n\n{usage-heading} {usage}\n\n{all-args}{after-help}",
    subcommand_help_heading = "Commands",
    after_help = "Example:  dlock run -k sms-job -- ./send_sms.sh\nMore: dlock COMMAND --help; man dlock; dlock --version"
)]
pub struct Cli {
    /// What all commands take.
    #[command(flatten)]
    pub globals: Globals,
    /// Print the version
    #[arg(short = 'V', long, action = ArgAction::Version, hide_short_help = true)]
    pub version: Option<bool>,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Take a lock, run a command, renew, release; exit with its status
    Run(run::Args),
    /// Take a lock and return; prints the token that holds it
    Acquire(acquire::Args),
    /// Extend the lease of a lock that was acquired
    Renew(renew::Args),
    /// Give back a lock that was acquired
    Release(release::Args),
    /// Show who holds a lock, who waits, and when it expires
    Inspect(inspect::Args),
    /// Show every held lock
    List(list::Args),
    /// Create what the store needs before it can keep locks
    Init(init::Args),
    /// Print the completions of a shell
    Completions(completions::Args),
    /// Print a man page
    Man(man::Args),
}

/// What all commands take.
#[derive(Args, Clone, Debug, Default)]
#[allow(clippy::struct_excessive_bools)] // flags
#[command(next_help_heading = "All commands")]
pub struct Globals {
    /// The store: a URL, or a name of the config file
    #[arg(short, long, global = true, value_name = "URL|NAME")]
    pub backend: Option<String>,
    /// The configuration file
    #[arg(long, global = true, value_name = "FILE", hide_short_help = true)]
    pub config: Option<String>,
    /// A file that holds the store's password
    #[arg(long, global = true, value_name = "FILE", hide_short_help = true)]
    pub password_file: Option<String>,
    /// How long the store may take to answer [5s]
    #[arg(long, global = true, value_name = "D", allow_negative_numbers = true, hide_short_help = true)]
    pub backend_timeout: Option<String>,
    /// This machine's name in leases
    #[arg(long, global = true, value_name = "NAME", hide_short_help = true)]
    pub host: Option<String>,
    /// What every key is put under in the store [dlock]
    #[arg(long, global = true, value_name = "NS", hide_short_help = true)]
    pub namespace: Option<String>,
    /// Allow a password in the --backend URL
    #[arg(long, global = true, hide_short_help = true)]
    pub insecure_argv: bool,
    /// Print one JSON object (= -o json)
    #[arg(long, global = true)]
    pub json: bool,
    /// How to print
    #[arg(short, long, global = true, value_name = "FORMAT", value_parser = PossibleValuesParser::new(["human", "json"]), conflicts_with = "json", hide_short_help = true)]
    pub output: Option<String>,
    /// Colours on the terminal
    #[arg(long, global = true, value_name = "WHEN", value_parser = PossibleValuesParser::new(["auto", "always", "never"]), hide_short_help = true)]
    pub color: Option<String>,
    /// No notices
    #[arg(short, long, global = true, hide_short_help = true)]
    pub quiet: bool,
    /// Say what lies under an error
    #[arg(short, long, global = true, hide_short_help = true)]
    pub verbose: bool,
    /// Print help
    #[arg(short, long, global = true, action = ArgAction::HelpShort)]
    pub help: Option<bool>,
}
