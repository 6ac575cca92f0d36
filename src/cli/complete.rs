//! `dlock __complete KIND WORDS…`, which shell completions call while a command line is typed.
//!
//! It prints one candidate per line, and no errors. The store has 300 ms to answer.

use std::{ffi::OsString, path::Path};

use clap::Parser as _;

use super::{args::Cli, env::Env, file::File, resolve, setting::Origin, setting::Setting};
use crate::{commands, lock::Key, output::Output};

/// The hidden command's name.
const NAME: &str = "__complete";

/// Returns the candidates; `None` if the command line is not a completion request.
pub fn asked_for(arguments: &[OsString], env: &Env) -> Option<String> {
    let [_, name, kind, words @ ..] = arguments else {
        return None;
    };
    if name != NAME {
        return None;
    }
    let words: Vec<&str> = words
        .iter()
        .filter_map(|word| word.to_str())
        .take_while(|word| *word != "--")
        .collect();
    let mut values = candidates(kind.to_str()?, &words, env);
    // One line per candidate, so none may contain a line break. The shell scripts quote special
    // characters.
    values.retain(|value| !value.is_empty() && !value.chars().any(char::is_control));
    values.sort();
    values.dedup();
    Some(values.into_iter().map(|value| value + "\n").collect())
}

fn candidates(kind: &str, words: &[&str], env: &Env) -> Vec<String> {
    let file = load(words, env);
    match kind {
        "backends" => file
            .backends
            .keys()
            .cloned()
            .chain(["local".to_owned()])
            .collect(),
        "namespaces" => {
            let tables = [&file.top]
                .into_iter()
                .chain(file.backends.values())
                .chain(file.keys.values());
            tables
                .filter_map(|table| Some(table.get("namespace")?.text.clone()))
                .chain(["dlock".to_owned()])
                .collect()
        }
        "keys" => file
            .keys
            .keys()
            .cloned()
            .chain(ask_store(words, env, None))
            .collect(),
        "fences" => named_key(words)
            .map(|key| ask_store(words, env, Some(&key)))
            .unwrap_or_default(),
        _ => Vec::new(),
    }
}

/// Returns the value of an option among the words typed so far.
fn option<'a>(words: &[&'a str], short: Option<&str>, long: &str) -> Option<&'a str> {
    words
        .iter()
        .enumerate()
        .rev()
        .find_map(|(at, word)| match word.split_once('=') {
            Some((name, value)) if name == long => Some(value),
            _ if *word == long || Some(*word) == short => words.get(at + 1).copied(),
            _ => None,
        })
}

fn load(words: &[&str], env: &Env) -> File {
    let named = option(words, None, "--config")
        .map(str::to_owned)
        .or_else(|| env.get("DLOCK_CONFIG").ok().flatten().map(str::to_owned));
    let named = named
        .filter(|path| Path::new(path).exists())
        .map(|text| Setting {
            text,
            origin: Origin::Flag("--config"),
        });
    File::load(named.as_ref(), env).unwrap_or_default()
}

/// Returns the key of a command line: the value of `-k`, or the word after the command.
fn named_key(words: &[&str]) -> Option<Key> {
    let by_flag = option(words, Some("-k"), "--key");
    let by_position = || {
        words
            .iter()
            .skip_while(|word| !["break", "release"].contains(word))
            .nth(1)
            .filter(|word| !word.starts_with('-'))
            .copied()
    };
    Key::new(by_flag.or_else(by_position)?).ok()
}

/// Asks the store for the keys of held locks, or for the fences of `key`.
fn ask_store(words: &[&str], env: &Env, key: Option<&Key>) -> Vec<String> {
    let mut line = vec!["dlock", "list"];
    for (short, long) in [
        (Some("-b"), "--backend"),
        (None, "--config"),
        (None, "--namespace"),
        (None, "--password-file"),
    ] {
        if let Some(value) = option(words, short, long) {
            line.extend([long, value]);
        }
    }
    let Ok(parsed) = Cli::try_parse_from(line) else {
        return Vec::new();
    };
    let out = Output {
        quiet: true,
        ..Output::default()
    };
    let resolved = resolve::resolve(&parsed.globals, parsed.command, env, out);
    resolved
        .map(|(_, context)| commands::complete::values(&context, key))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_and_keys_are_found_among_typed_words() {
        let words = ["-b", "prod", "break", "nightly", "--namespace=x", "--fence"];
        assert_eq!(option(&words, Some("-b"), "--backend"), Some("prod"));
        assert_eq!(option(&words, None, "--namespace"), Some("x"));
        assert_eq!(option(&words, None, "--fence"), None);
        assert_eq!(
            named_key(&words).map(|key| key.to_string()).as_deref(),
            Some("nightly")
        );
        assert_eq!(
            named_key(&["release", "--fence", "-k", "a"])
                .map(|key| key.to_string())
                .as_deref(),
            Some("a")
        );
        assert!(named_key(&["break"]).is_none());
    }
}
