//! clap's complaints in our form: one line, a hint, and our exit status.

use clap::error::{ContextKind, ContextValue, ErrorKind};

use super::{setting::short, suggest, url};
use crate::lock::{Error, Kind};

/// What clap has to say: help or a version for stdout, or an error.
#[derive(Debug)]
pub enum Said {
    /// Text that was asked for.
    Text(String),
    /// A mistake of the caller's.
    Mistake(Error),
}

/// Takes clap's error apart. `command` is the subcommand that it is about, if that is known, of all `commands`.
pub fn reshape(error: &clap::Error, command: Option<&str>, commands: &[&str]) -> Said {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => return Said::Text(error.render().to_string()),
        _ => {}
    }
    let get = |kind| error.get(kind).map(text).unwrap_or_default();
    let argument = get(ContextKind::InvalidArg);
    let value = shown(&get(ContextKind::InvalidValue));
    let message = match error.kind() {
        ErrorKind::MissingSubcommand | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => "no command is given".into(),
        ErrorKind::InvalidSubcommand => format!("there is no command {:?}", short(&get(ContextKind::InvalidSubcommand))),
        ErrorKind::UnknownArgument if argument.starts_with('-') => format!("there is no option {}", shown(&argument)),
        ErrorKind::UnknownArgument => format!("{:?} is one argument too many", shown(&argument)),
        ErrorKind::InvalidValue if value.is_empty() => format!("{} needs a value", flag(&argument)),
        ErrorKind::InvalidValue | ErrorKind::ValueValidation => format!("{}: it can't be {value:?}", flag(&argument)),
        ErrorKind::ArgumentConflict => match get(ContextKind::PriorArg) {
            prior if prior == argument => format!("{} is given twice", flag(&argument)),
            prior => format!("{} and {} exclude each other", flag(&argument), flag(&prior)),
        },
        ErrorKind::MissingRequiredArgument => format!("{} is missing", flag(argument.lines().next().unwrap_or_default().trim())),
        ErrorKind::InvalidUtf8 => "an argument is not UTF-8".into(),
        ErrorKind::TooManyValues => format!("{} takes no value {value:?}", flag(&argument)),
        _ => format!("{} has the wrong number of values", flag(&argument)),
    };
    let no_command = matches!(
        error.kind(),
        ErrorKind::MissingSubcommand | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand | ErrorKind::InvalidSubcommand
    );
    let hint = hint(error, commands).unwrap_or_else(|| match command {
        _ if no_command => "dlock --help lists the commands".into(),
        Some(command) => format!("dlock {command} --help tells what it takes"),
        None => "dlock --help tells what it takes".into(),
    });
    Said::Mistake(Error::new(Kind::Usage, message).hint(hint))
}

fn hint(error: &clap::Error, commands: &[&str]) -> Option<String> {
    let nearest = [ContextKind::SuggestedArg, ContextKind::SuggestedSubcommand, ContextKind::SuggestedValue]
        .into_iter()
        .find_map(|kind| error.get(kind))
        .map(|value| text(value).split(", ").next().unwrap_or_default().to_owned());
    let typed = error.get(ContextKind::InvalidSubcommand).map(text);
    let nearest = nearest.filter(|nearest| !nearest.is_empty()).or_else(|| suggest::nearest(&typed?, commands).map(str::to_owned));
    if let Some(nearest) = nearest {
        return Some(format!("did you mean {nearest}?"));
    }
    let valid = error.get(ContextKind::ValidValue).map(text).filter(|valid| !valid.is_empty())?;
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

/// `--ttl` of `--ttl <D>`, `KEY` of `[KEY]`.
fn flag(argument: &str) -> &str {
    argument.trim_matches(['[', ']', '<', '>', '.']).split([' ', '[', '=']).next().unwrap_or_default()
}

/// An argument as it may be repeated: it may be a URL in the wrong place.
fn shown(argument: &str) -> String {
    if url::has_password(argument) { url::redacted(argument) } else { short(argument) }
}
