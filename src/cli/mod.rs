//! Turns flags, environment, configuration file, URLs and durations into checked settings.
//!
//! Validate first, act later: this module touches no store, and reads only files with the
//! configuration, passwords and tokens.

mod args;
mod backend;
mod complete;

mod explain;
mod file;
mod format;
mod help;
mod layers;
mod policy;
mod resolve;
mod run;

mod signal;
mod sources;
mod spec;

mod taking;

mod usage;
mod version;
mod views;

use std::ffi::OsString;

use clap::CommandFactory as _;

use crate::{
    commands::{self, completions, man},
    exit,
    lock::Error,
    output::{Output, json},
    settings::{duration, env, secret_file, setting, suggest, url},
};

/// Runs the command line and returns the exit status.
pub fn main(arguments: &[OsString]) -> u8 {
    let env = env::Env::read();
    if let Some(text) = complete::asked_for(arguments, &env) {
        let out = Output::default();
        return out.finish(out.data(&text), exit::OK);
    }
    let rewritten = help::rewrite(arguments);
    let arguments = rewritten.as_deref().unwrap_or(arguments);
    let parsed = match args::Cli::of(arguments) {
        Ok(parsed) => parsed,
        Err(error) => {
            let definition = args::Cli::command();
            let commands: Vec<&str> = definition
                .get_subcommands()
                .map(clap::Command::get_name)
                .collect();
            let command = named_command(arguments, &commands);
            let out = early_output(wants_json(arguments), &env, command == Some("run"));
            return match usage::reshape(&error, command, &commands, arguments) {
                usage::ClapReply::Help => {
                    let text = help::text(
                        definition.clone(),
                        command,
                        help::wants_complete_help(arguments),
                    );
                    print(&out, text.as_bytes(), wants_json(arguments))
                }
                usage::ClapReply::Text(text) => print(
                    &out,
                    version::text(&text, arguments).as_bytes(),
                    wants_json(arguments),
                ),
                usage::ClapReply::Mistake(error) => out.error(&error),
            };
        }
    };
    let json = parsed.globals.json || parsed.globals.output.as_deref() == Some("json");
    let human = parsed.globals.output.as_deref() == Some("human");
    let out = if human {
        Output::default()
    } else {
        early_output(json, &env, matches!(parsed.command, args::Command::Run(_)))
    };
    let out = Output {
        verbose: parsed.globals.verbose,
        quiet: parsed.globals.quiet,
        ..out
    };
    match parsed.command {
        args::Command::Completions(args) => print(
            &out,
            &completions::text(args::Cli::command(), args.shell),
            json,
        ),
        args::Command::Man(args) => match man::text(args::Cli::command(), &args, &variables()) {
            Ok(text) => print(&out, &text, json),
            Err(error) => out.error(&error),
        },
        command => {
            let (work, context) =
                match resolve::resolve(&parsed.globals, command, &env, out.clone()) {
                    Ok(resolved) => resolved,
                    Err(error) => return out.error(&error),
                };
            let status = commands::perform(work, &context)
                .unwrap_or_else(|error: Error| context.out.error(&context.explain(error)));
            commands::finish_printing();
            status
        }
    }
}

/// Prints a text that needs no store. `DLOCK_OUTPUT` does not apply, because another program
/// usually reads the text.
fn print(out: &Output, text: &[u8], as_json: bool) -> u8 {
    if !as_json {
        return out.finish(out.bytes(text), exit::OK);
    }
    let text = String::from_utf8_lossy(text);
    out.finish(out.data(&json::line(&json::Printed::new(&text))), exit::OK)
}

/// Returns the output options before the settings are known.
fn early_output(json: bool, env: &env::Env, is_run: bool) -> Output {
    let json = json
        || env
            .get_os("DLOCK_OUTPUT")
            .is_some_and(|value| value == "json");
    Output {
        json,
        json_on_stderr: is_run,
        ..Output::default()
    }
}

/// Whether a command line that can't be parsed asks for JSON. Words after `--` belong to the
/// command.
fn wants_json(arguments: &[OsString]) -> bool {
    let own_words: Vec<&str> = arguments
        .iter()
        .skip(1)
        .map_while(|argument| argument.to_str())
        .take_while(|argument| *argument != "--")
        .collect();
    own_words
        .iter()
        .any(|argument| ["--json", "-ojson", "--output=json"].contains(argument))
        || own_words
            .windows(2)
            .any(|pair| ["-o", "--output"].contains(&pair[0]) && pair[1] == "json")
}

/// Returns the first word of a command line that is the name of a command; good enough for a hint.
fn named_command<'a>(arguments: &[OsString], commands: &[&'a str]) -> Option<&'a str> {
    arguments
        .iter()
        .skip(1)
        .find_map(|argument| commands.iter().copied().find(|command| argument == command))
}

/// Returns the variables that dlock reads, with their descriptions, for the man page.
fn variables() -> Vec<(String, String)> {
    let row = |spec: &spec::Spec| {
        let flag = if spec.flag.is_empty() {
            String::new()
        } else {
            format!(" (as {})", spec.flag)
        };
        (spec.variable(), format!("{}{flag}", spec.help))
    };
    spec::SETTINGS
        .iter()
        .filter(|spec| spec.from_env)
        .map(row)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        args::Cli::command().debug_assert();
    }

    #[test]
    fn every_flag_of_the_table_exists() {
        let command = args::Cli::command();
        let all: Vec<String> = std::iter::once(&command)
            .chain(command.get_subcommands())
            .flat_map(clap::Command::get_arguments)
            .filter_map(|argument| argument.get_long().map(|long| format!("--{long}")))
            .collect();
        for spec in spec::SETTINGS.iter().filter(|spec| !spec.flag.is_empty()) {
            assert!(all.iter().any(|flag| flag == spec.flag), "{}", spec.flag);
        }
    }

    #[test]
    fn json_options_count_only_before_the_command() {
        let asked =
            |text: &str| wants_json(&text.split(' ').map(OsString::from).collect::<Vec<_>>());
        assert!(
            asked("dlock inspect --bogus --json")
                && asked("dlock -o json x")
                && asked("dlock --output=json x")
        );
        assert!(!asked("dlock run -k x -- cmd --json") && !asked("dlock inspect x"));
    }
}
