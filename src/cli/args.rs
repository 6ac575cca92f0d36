//! The command line as clap parses it. Values that may also come from other sources stay text until
//! the layers are known.

use std::ffi::OsString;

use clap::{ArgAction, Args, Parser, Subcommand, builder::PossibleValuesParser};

use crate::commands::{
    acquire, breaking, completions, doctor, explain, forget, gc, history, hold, init, inspect,
    list, man, names, release, renew, report, run, verify,
};

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
    after_help = "Example:  dlock run -k sms-job -- ./send_sms.sh\nMore: dlock help COMMAND; verify, explain, report, forget, names, init, gc"
)]
pub struct Cli {
    /// The flags of all commands.
    #[command(flatten)]
    pub globals: Globals,
    /// Print the version
    #[arg(short = 'V', long, action = ArgAction::Version, hide_short_help = true)]
    pub version: Option<bool>,
    /// The subcommand.
    #[command(subcommand)]
    pub command: Command,
}

/// The command line of `dlock run` alone. It builds in a third of the time of [`Cli`], and crontabs
/// start mostly `run`.
///
/// [`Cli`] parses everything that this parser refuses, such as `--help`.
#[derive(Debug, Parser)]
#[command(disable_help_flag = true)]
struct RunOnly {
    #[command(flatten)]
    globals: Globals,
    #[command(flatten)]
    args: run::Args,
}

impl Cli {
    /// Parses the command line.
    ///
    /// # Errors
    /// clap's error, which may also be a request for help or the version.
    pub fn of(arguments: &[OsString]) -> Result<Self, clap::Error> {
        if arguments.get(1).is_some_and(|word| word == "run")
            && let Ok(RunOnly { globals, args }) = RunOnly::try_parse_from(&arguments[1..])
        {
            return Ok(Self {
                globals,
                version: None,
                command: Command::Run(Box::new(args)),
            });
        }
        let cli = Self::try_parse_from(arguments)?;
        // `explain` has the arguments of `run`, where a positional word begins the command: here it
        // is the key.
        if let Command::Explain(args) = &cli.command
            && args.run.key.is_empty()
            && let (before, rest @ [_, ..]) =
                arguments.split_at(arguments.len() - args.run.command.len())
            && before.last().is_some_and(|word| word != "--")
        {
            return Self::try_parse_from(
                before
                    .iter()
                    .cloned()
                    .chain(["-k".into()])
                    .chain(rest.iter().cloned()),
            );
        }
        Ok(cli)
    }
}

/// The subcommand.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Take a lock, run a command, renew, release; exit with its status
    Run(Box<run::Args>),
    /// Take a lock and return; prints the token that holds it
    Acquire(acquire::Args),
    /// Extend the lease of a lock that was acquired
    Renew(renew::Args),
    /// Check whether a token still holds a lock
    #[command(hide = true)]
    Verify(verify::Args),
    /// Release a lock that was acquired
    Release(release::Args),
    /// Keep a lock in the foreground, until stdin ends
    Hold(hold::Args),
    /// Show the holders of a lock, its waiters, and when it expires
    Inspect(inspect::Args),
    /// Show under which name other lock libraries share a lock
    #[command(hide = true)]
    Names(names::Args),
    /// Show every held lock
    List(list::Args),
    /// Show the runs of a lock, and how each ended
    History(history::Args),
    /// Write a page of all jobs for a browser
    #[command(hide = true)]
    Report(report::Args),
    /// Ask the holder of a lock to stop and give up
    Break(breaking::Args),
    /// Show what a run would do now, and where its settings come from
    #[command(hide = true)]
    Explain(Box<explain::Args>),
    /// Remove the run records of a key, so that its next run is not refused
    #[command(hide = true)]
    Forget(forget::Args),
    /// Check whether the configured store can keep its promises
    Doctor(doctor::Args),
    /// Create the tables that a SQL store needs
    // Hidden because --help already fills a screen; the errors that need `init` name it.
    #[command(hide = true)]
    Init(init::Args),
    /// Remove the records of keys that are no longer used
    #[command(hide = true)]
    Gc(gc::Args),
    /// Print the completions of a shell
    #[command(hide = true)]
    Completions(completions::Args),
    /// Print a man page
    #[command(hide = true)]
    Man(man::Args),
}

/// The flags of all commands.
#[derive(Args, Clone, Debug, Default)]
#[allow(clippy::struct_excessive_bools)] // flags
#[command(next_help_heading = "All commands")]
pub struct Globals {
    /// The store: a URL, or its name in the configuration
    #[arg(short, long, global = true, value_name = "URL|NAME")]
    pub backend: Option<String>,
    /// The configuration file
    #[arg(long, global = true, value_name = "FILE", hide_short_help = true)]
    pub config: Option<String>,
    /// A file that holds the store's password
    #[arg(long, global = true, value_name = "FILE", hide_short_help = true)]
    pub password_file: Option<String>,
    /// How long the store may take to answer [5s]
    #[arg(
        long,
        global = true,
        value_name = "D",
        allow_negative_numbers = true,
        hide_short_help = true
    )]
    pub backend_timeout: Option<String>,
    /// This machine's name in leases
    #[arg(long, global = true, value_name = "NAME", hide_short_help = true)]
    pub host: Option<String>,
    /// The prefix of every key in the store [dlock]
    #[arg(long, global = true, value_name = "NS", hide_short_help = true)]
    pub namespace: Option<String>,
    /// Allow a password in the --backend URL
    #[arg(long, global = true, hide_short_help = true)]
    pub insecure_argv: bool,
    /// Print one JSON object (= -o json)
    #[arg(long, global = true)]
    pub json: bool,
    /// How to print; on-failure: run shows the command's output only if the run failed
    #[arg(short, long, global = true, value_name = "FORMAT", value_parser = PossibleValuesParser::new(["human", "json", "on-failure"]), hide_short_help = true)]
    pub output: Option<String>,
    /// Colours on the terminal
    #[arg(long, global = true, value_name = "WHEN", value_parser = PossibleValuesParser::new(["auto", "always", "never"]), hide_short_help = true)]
    pub color: Option<String>,
    /// No notices
    #[arg(short, long, global = true, hide_short_help = true)]
    pub quiet: bool,
    /// Print the causes of an error
    #[arg(short, long, global = true, hide_short_help = true)]
    pub verbose: bool,
    /// Print help; --help: all options
    #[arg(short, long, global = true, action = ArgAction::HelpShort)]
    pub help: Option<bool>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parser_of_run_agrees_with_the_whole_parser() {
        for line in [
            "run -k job -- echo a",
            "run -k job echo -k x --json",
            "run --json -b local -k job -w 5 -E 0 --ttl=9s -q -- true",
            "run -k job -c line -v --no-metadata",
            "run",
            "run -k",
            "run -k a -k b -- true",
            "run --bogus",
            "run --help",
            "run -h -k job",
            "run -V",
            "run -k job --output human --json -- x",
        ] {
            let arguments: Vec<OsString> = ["dlock"]
                .into_iter()
                .chain(line.split(' '))
                .map(OsString::from)
                .collect();
            let outcome = |parsed: Result<Cli, clap::Error>| {
                parsed
                    .map(|cli| format!("{cli:?}"))
                    .map_err(|error| error.to_string())
            };
            assert_eq!(
                outcome(Cli::of(&arguments)),
                outcome(Cli::try_parse_from(&arguments)),
                "{line}"
            );
        }
    }
}
