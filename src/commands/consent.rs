//! An operator's consent to change other users' locks: from a terminal, or with `--yes --reason`.

use std::io::{self, BufRead as _, IsTerminal as _};

use super::{Context, user_name};
use crate::{
    lock::{Error, Key, Kind, Result},
    supervise::with_usual_signals,
};

/// Checks that the decision is complete before any question. Returns whether the question must
/// still be asked. `what` is the action, such as "break it".
///
/// # Errors
/// [`Kind::Usage`] if there is no terminal to ask on, or no reason.
pub fn check(
    context: &Context,
    key: &Key,
    decision: (bool, Option<&str>),
    what: &str,
) -> Result<bool> {
    check_for(decision, what, context).map_err(|error| error.key(key))
}

/// Checks the decision for several locks.
///
/// # Errors
/// The same as for [`check`].
pub fn check_for(
    (yes, reason): (bool, Option<&str>),
    what: &str,
    context: &Context,
) -> Result<bool> {
    let out = &context.out;
    let attended = io::stdin().is_terminal() && out.attended() && !out.is_json();
    if !yes && !attended {
        return Err(Error::new(
            Kind::Usage,
            format!("there is no terminal to ask whether to {what}"),
        ));
    }
    if yes && !attended && reason.is_none() {
        return Err(Error::new(Kind::Usage, "no reason is given")
            .hint("--reason TEXT tells the holder, and the history"));
    }
    Ok(!yes)
}

/// Asks a question on the terminal.
///
/// # Errors
/// If stdin can't be read.
pub fn agreed(question: &str) -> Result<bool> {
    crate::output::ask(&format!("{question} [y/N] "));
    let mut answer = String::new();
    // Ctrl-C ends dlock at the question.
    let read = with_usual_signals(|| io::stdin().lock().read_line(&mut answer));
    read.map_err(|error| Error::new(Kind::Usage, "no answer").source(error))?;
    if !answer.ends_with('\n') {
        // Ctrl-D leaves the cursor behind the question.
        crate::output::end_line();
    }
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// Returns the operator: `user@host`.
pub fn operator(context: &Context) -> String {
    context
        .host
        .as_ref()
        .map_or_else(here, |host| format!("{}@{host}", user_name()))
}

/// Returns the operator on this host, regardless of `--host`.
pub fn here() -> String {
    format!(
        "{}@{}",
        user_name(),
        rustix::system::uname().nodename().to_string_lossy()
    )
}
