//! `dlock completions`: the scripts in `completions/`.

use clap::ValueEnum;
use clap_complete::{Generator as _, shells};

/// The arguments of `dlock completions`.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Example:\n  dlock completions bash > ~/.local/share/bash-completion/completions/dlock"
)]
pub struct Args {
    /// Which shell
    #[arg(value_enum)]
    pub shell: Shell,
}

/// The shells that are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Shell {
    /// bash
    Bash,
    /// elvish
    Elvish,
    /// fish
    Fish,
    /// zsh
    Zsh,
}

/// Returns the completions of `shell` for `command`.
pub fn text(mut command: clap::Command, shell: Shell) -> Vec<u8> {
    let mut out = Vec::new();
    command = command.mut_subcommands(|command| command.hide(false));
    command.set_bin_name("dlock");
    command.build();
    match shell {
        Shell::Bash => {
            shells::Bash.generate(&command, &mut out);
            return with_values_for_bash(&String::from_utf8_lossy(&out)).into_bytes();
        }
        Shell::Elvish => shells::Elvish.generate(&command, &mut out),
        Shell::Fish => {
            shells::Fish.generate(&command, &mut out);
            out.extend_from_slice(include_bytes!("completions/dlock.fish"));
        }
        Shell::Zsh => {
            shells::Zsh.generate(&command, &mut out);
            return with_values_for_zsh(&String::from_utf8_lossy(&out)).into_bytes();
        }
    }
    out
}

/// Registers a function that asks dlock for values, and calls clap's function for options and
/// commands.
fn with_values_for_bash(made: &str) -> String {
    let registration = made.rfind("if [[ \"${BASH_VERSINFO").unwrap_or(made.len());
    format!(
        "{}{}",
        made[..registration].trim_end(),
        include_str!("completions/dlock.bash")
    )
}

/// Replaces clap's `_default` completions with completions of keys, stores or files, by the value's
/// name.
fn with_values_for_zsh(made: &str) -> String {
    let line = |line: &str| {
        let kind = match line {
            _ if line.contains(":KEY:_default") || line.starts_with("'::key -- ") => "_dlock_keys",
            _ if line.contains(":URL|NAME:_default") => "_dlock_backends",
            _ if line.contains(":NS:_default") => "_dlock_namespaces",
            _ if line.starts_with("'--fence=") => "_dlock_fences",
            _ if line.contains(":FILE:_default") => "_files",
            _ if line.starts_with("'*::command -- ") => "_normal",
            _ => "_default",
        };
        line.replace(":_default'", &format!(":{kind}'")) + "\n"
    };
    let made: String = made.lines().map(line).collect();
    made.replacen(
        "_dlock() {",
        &format!("{}_dlock() {{", include_str!("completions/dlock.zsh")),
        1,
    )
}
