//! An operator's decision about others' locks: asked for on a terminal, given with `--yes --reason` elsewhere.

use std::io::{self, BufRead as _, IsTerminal as _};

use super::{Context, user_name};
use crate::lock::{Error, Key, Kind, Result};

/// Checks that the decision is complete before anything is asked; returns whether the question is still to be put. `what` is what is decided
/// on: "break it".
///
/// # Errors
/// [`Kind::Usage`] if there is no terminal to ask on, or no reason.
pub fn check(context: &Context, key: &Key, (yes, reason): (bool, Option<&str>), what: &str) -> Result<bool> {
    let out = &context.out;
    let attended = io::stdin().is_terminal() && out.attended() && !out.is_json();
    if !yes && !attended {
        return Err(Error::new(Kind::Usage, format!("nobody can be asked whether to {what}")).key(key));
    }
    if yes && !attended && reason.is_none() {
        return Err(Error::new(Kind::Usage, "no reason is given").key(key).hint("--reason TEXT tells the holder, and the history"));
    }
    Ok(!yes)
}

/// Puts a question on the terminal.
///
/// # Errors
/// If stdin can't be read.
pub fn agreed(question: &str) -> Result<bool> {
    crate::output::ask(&format!("{question} [y/N] "));
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer).map_err(|error| Error::new(Kind::Usage, "no answer").source(error))?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// Who decides: `user@host`.
pub fn decider(context: &Context) -> String {
    let host = context.host.clone().unwrap_or_else(|| rustix::system::uname().nodename().to_string_lossy().into_owned());
    format!("{}@{host}", user_name())
}
