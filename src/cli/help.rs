//! `-h`, which fits a screen, and `--help`, which is complete.

use std::ffi::OsString;

use clap::Command;

/// Rewrites `dlock help COMMAND` to `dlock COMMAND --help`; returns `None` for other command lines.
pub fn rewrite(arguments: &[OsString]) -> Option<Vec<OsString>> {
    if arguments.get(1)? != "help" {
        return None;
    }
    let topic = arguments.get(2).filter(|topic| *topic != "help").cloned();
    let rest = arguments.iter().skip(3).cloned();
    Some(
        arguments
            .iter()
            .take(1)
            .cloned()
            .chain(topic)
            .chain(["--help".into()])
            .chain(rest)
            .collect(),
    )
}

/// Whether `--help` is given, for the complete help. Words after `--` belong to the command.
pub fn wants_complete_help(arguments: &[OsString]) -> bool {
    arguments
        .iter()
        .take_while(|argument| *argument != "--")
        .any(|argument| argument == "--help")
}

/// Returns the help of a command, or of dlock itself.
pub fn text(definition: Command, command: Option<&str>, all: bool) -> String {
    let show = |command: Command| {
        command
            .hide(false)
            .mut_args(|argument| argument.hide_short_help(false))
    };
    let mut definition = if all {
        show(definition).mut_subcommands(show).max_term_width(80)
    } else {
        definition
    };
    definition.build();
    let name = command.map(|name| format!(" {name}")).unwrap_or_default();
    let page = match command.and_then(|name| definition.find_subcommand_mut(name)) {
        Some(page) => page.render_help(),
        None => definition.render_help(),
    };
    let more = if all {
        format!("Manual: dlock man{name} | man -l -\n")
    } else {
        String::new()
    };
    format!("{}\n{more}", page.to_string().trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn help_command_is_rewritten() {
        assert_eq!(rewrite(&words("dlock help")), Some(words("dlock --help")));
        assert_eq!(
            rewrite(&words("dlock help help")),
            Some(words("dlock --help"))
        );
        assert_eq!(
            rewrite(&words("dlock help run")),
            Some(words("dlock run --help"))
        );
        assert_eq!(
            rewrite(&words("dlock help run --json")),
            Some(words("dlock run --help --json"))
        );
        assert_eq!(rewrite(&words("dlock run help")), None);
        assert!(
            wants_complete_help(&words("dlock run --help"))
                && !wants_complete_help(&words("dlock run -h"))
                && !wants_complete_help(&words("dlock run -- x --help"))
        );
    }
}
