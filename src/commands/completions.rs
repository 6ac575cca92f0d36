//! `dlock completions`: what `completions/` holds.

use clap::ValueEnum;
use clap_complete::{Generator as _, shells};

/// The arguments of `dlock completions`.
#[derive(clap::Args, Debug)]
#[command(after_help = "Example:\n  dlock completions bash > ~/.local/share/bash-completion/completions/dlock")]
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

/// The completions of `shell` for `command`.
pub fn text(mut command: clap::Command, shell: Shell) -> Vec<u8> {
    let mut out = Vec::new();
    command = command.mut_subcommands(|command| command.hide(false));
    command.set_bin_name("dlock");
    command.build();
    match shell {
        Shell::Bash => shells::Bash.generate(&command, &mut out),
        Shell::Elvish => shells::Elvish.generate(&command, &mut out),
        Shell::Fish => shells::Fish.generate(&command, &mut out),
        Shell::Zsh => shells::Zsh.generate(&command, &mut out),
    }
    out
}
