//! Converts clap's errors to dlock's form: one line, a hint, and dlock's exit status.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};

use super::{duration, setting::short, suggest, url};
use crate::lock::{Error, Kind};

/// clap's reply: help or the version for stdout, or an error.
#[derive(Debug)]
pub enum ClapReply {
    /// Help was requested.
    Help,
    /// The version was requested.
    Text(String),
    /// The command line is wrong.
    Mistake(Error),
}

/// Converts clap's error about `arguments`. `command` is the subcommand, if known; `commands` are
/// all of them.
pub fn reshape(
    error: &clap::Error,
    command: Option<&str>,
    commands: &[&str],
    arguments: &[OsString],
) -> ClapReply {
    match error.kind() {
        ErrorKind::DisplayHelp => return ClapReply::Help,
        ErrorKind::DisplayVersion => return ClapReply::Text(error.render().to_string()),
        _ => {}
    }
    let get = |kind| error.get(kind).map(text).unwrap_or_default();
    let argument = get(ContextKind::InvalidArg);
    if let Some(error) = negative(&argument, arguments) {
        return ClapReply::Mistake(error);
    }
    let value = shown(&get(ContextKind::InvalidValue));
    let message = match error.kind() {
        ErrorKind::MissingSubcommand | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            "no command is given".into()
        }
        ErrorKind::InvalidSubcommand => format!(
            "there is no command {:?}",
            short(&get(ContextKind::InvalidSubcommand))
        ),
        ErrorKind::UnknownArgument if argument.starts_with('-') => {
            format!("there is no option {}", shown(&argument))
        }
        ErrorKind::UnknownArgument => format!("{:?} is one argument too many", shown(&argument)),
        ErrorKind::InvalidValue if value.is_empty() => format!("{} needs a value", flag(&argument)),
        ErrorKind::InvalidValue | ErrorKind::ValueValidation => {
            format!("{}: it can't be {value:?}", flag(&argument))
        }
        ErrorKind::ArgumentConflict => match get(ContextKind::PriorArg) {
            prior if prior == argument => format!("{} is given twice", flag(&argument)),
            prior => format!(
                "{} and {} exclude each other",
                flag(&argument),
                flag(&prior)
            ),
        },
        ErrorKind::MissingRequiredArgument => format!(
            "{} is missing",
            flag(argument.lines().next().unwrap_or_default().trim())
        ),
        ErrorKind::InvalidUtf8 => "an argument is not UTF-8".into(),
        ErrorKind::TooManyValues => format!("{} takes no value {value:?}", flag(&argument)),
        _ => format!("{} has the wrong number of values", flag(&argument)),
    };
    let no_command = matches!(
        error.kind(),
        ErrorKind::MissingSubcommand
            | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
            | ErrorKind::InvalidSubcommand
    );
    let typed = get(ContextKind::InvalidSubcommand);
    let foreign = foreign_hint(&typed, &argument, command, arguments);
    let hint = foreign
        .or_else(|| hint(error, commands))
        .unwrap_or_else(|| match command {
            _ if no_command => "dlock --help lists the commands".into(),
            Some(command) => format!("dlock {command} --help shows what it takes"),
            None => "dlock --help shows what it takes".into(),
        });
    ClapReply::Mistake(Error::new(Kind::Usage, message).hint(hint))
}

/// Returns the error for a negative duration, which clap mistakes for an option.
fn negative(argument: &str, arguments: &[OsString]) -> Option<Error> {
    argument
        .strip_prefix('-')
        .filter(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))?;
    let at = arguments.iter().position(|given| {
        given
            .to_str()
            .is_some_and(|given| given.starts_with(argument))
    })?;
    let (option, value) = (
        arguments.get(at.checked_sub(1)?)?.to_str()?,
        arguments[at].to_str()?,
    );
    option.strip_prefix('-')?;
    if option == "--while-pid" {
        return Some(super::resolve::no_process(value));
    }
    let error = Error::new(
        Kind::Usage,
        format!("{option}: {:?}: it can't be negative", short(value)),
    );
    Some(error.hint(format!("0 or more, {}", duration::EXAMPLES)))
}

/// Returns a hint for words and options of other lock tools.
fn foreign_hint(
    typed: &str,
    argument: &str,
    command: Option<&str>,
    arguments: &[OsString],
) -> Option<String> {
    let named = match typed {
        "lock" | "take" | "get" => {
            "dlock acquire takes a lock; dlock run -k KEY -- COMMAND runs a command under one"
        }
        "unlock" | "free" => "did you mean release?",
        "status" | "show" | "info" | "who" | "get-lock" => "did you mean inspect?",
        "ls" | "ps" | "locks" => "did you mean list?",
        "exec" | "start" | "flock" => "did you mean run?",
        "log" | "logs" => "did you mean history?",
        "check" | "test" => "did you mean doctor?",
        "kill" | "steal" | "rm" | "delete" => "did you mean break?",
        "version" => "dlock --version prints it",
        "extend" | "refresh" | "keepalive" => "did you mean renew?",
        _ => "",
    };
    if !named.is_empty() {
        return Some(named.into());
    }
    let option = argument.split('=').next().unwrap_or_default();
    match (option, command) {
        ("--timeout", Some("run")) => {
            Some("-w D limits the wait for the lock, --max-runtime D the command".into())
        }
        ("--timeout", _) => Some("-w D limits the wait for the lock".into()),
        ("--lease" | "--expire" | "--ttl-seconds", _) => Some("did you mean --ttl?".into()),
        ("--name" | "--lock", _) => Some("did you mean --key?".into()),
        ("-u" | "--unlock", _) => Some("dlock release gives a lock back".into()),
        ("-k" | "--key" | "-w" | "--wait" | "-n" | "-s" | "-x" | "-c" | "-E" | "--ttl", None) => {
            Some(with_run(arguments))
        }
        _ => None,
    }
}

/// Returns the hint to put `run` first, with the user's command line if it is short, plain and has
/// no password.
fn with_run(arguments: &[OsString]) -> String {
    let plain = |word: &str| {
        !word.is_empty()
            && word
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || "-_./=:".contains(c))
    };
    let words: Option<Vec<&str>> = arguments
        .iter()
        .skip(1)
        .map(|word| word.to_str().filter(|word| plain(word)))
        .collect();
    let line = words
        .map(|words| format!("dlock run {}", words.join(" ")))
        .filter(|line| line.len() <= 70 && !url::has_password(line));
    format!(
        "the command comes first: {}",
        line.unwrap_or_else(|| "dlock run -k KEY -- COMMAND".into())
    )
}

fn hint(error: &clap::Error, commands: &[&str]) -> Option<String> {
    let nearest = [
        ContextKind::SuggestedArg,
        ContextKind::SuggestedSubcommand,
        ContextKind::SuggestedValue,
    ]
    .into_iter()
    .find_map(|kind| error.get(kind))
    .map(|value| {
        text(value)
            .split(", ")
            .next()
            .unwrap_or_default()
            .to_owned()
    });
    let typed = error.get(ContextKind::InvalidSubcommand).map(text);
    let nearest = nearest
        .filter(|nearest| !nearest.is_empty())
        .or_else(|| suggest::nearest(&typed?, commands).map(str::to_owned));
    if let Some(nearest) = nearest {
        return Some(format!("did you mean {nearest}?"));
    }
    let valid = error
        .get(ContextKind::ValidValue)
        .map(text)
        .filter(|valid| !valid.is_empty())?;
    Some(format!("it is one of {valid}"))
}

fn text(value: &ContextValue) -> String {
    match value {
        ContextValue::String(text) => text.clone(),
        ContextValue::Strings(texts) => texts.join(", "),
        ContextValue::StyledStr(text) => text.to_string(),
        ContextValue::Number(number) => number.to_string(),
        _ => String::new(),
    }
}

/// Returns `--ttl` for `--ttl <D>`, `KEY` for `[KEY]`.
fn flag(argument: &str) -> &str {
    argument
        .trim_matches(['[', ']', '<', '>', '.'])
        .split([' ', '[', '='])
        .next()
        .unwrap_or_default()
}

/// Returns an argument as it may be shown: redacted if it may be a URL with a password.
fn shown(argument: &str) -> String {
    if url::has_password(argument) {
        url::redacted(argument)
    } else {
        short(argument)
    }
}
