//! `-h`, which fits a screen, and `--help`, which has all.

use std::ffi::OsString;

use clap::Command;

/// `dlock help COMMAND` as `dlock COMMAND --help`; nothing if it is not that.
pub fn asked_for(arguments: &[OsString]) -> Option<Vec<OsString>> {
    if arguments.get(1)? != "help" {
        return None;
    }
    let topic = arguments.get(2).filter(|topic| *topic != "help").cloned();
    let rest = arguments.iter().skip(3).cloned();
    Some(arguments.iter().take(1).cloned().chain(topic).chain(["--help".into()]).chain(rest).collect())
}

/// Whether all is asked for. What stands after `--` is not ours.
pub fn wants_all(arguments: &[OsString]) -> bool {
    arguments.iter().take_while(|argument| *argument != "--").any(|argument| argument == "--help")
}

/// The help of a command, or of dlock itself.
pub fn text(definition: Command, command: Option<&str>, all: bool) -> String {
    let show = |command: Command| command.hide(false).mut_args(|argument| argument.hide_short_help(false));
    let mut definition = if all { show(definition).mut_subcommands(show).max_term_width(80) } else { definition };
    definition.build();
    let name = command.map(|name| format!(" {name}")).unwrap_or_default();
    let page = match command.and_then(|name| definition.find_subcommand_mut(name)) {
        Some(page) => page.render_help(),
        None => definition.render_help(),
    };
    let more = if all { format!("Manual: dlock man{name} | man -l -\n") } else { String::new() };
    format!("{}\n{more}", page.to_string().trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn help_is_a_command_too() {
        assert_eq!(asked_for(&words("dlock help")), Some(words("dlock --help")));
        assert_eq!(asked_for(&words("dlock help help")), Some(words("dlock --help")));
        assert_eq!(asked_for(&words("dlock help run")), Some(words("dlock run --help")));
        assert_eq!(asked_for(&words("dlock help run --json")), Some(words("dlock run --help --json")));
        assert_eq!(asked_for(&words("dlock run help")), None);
        assert!(wants_all(&words("dlock run --help")) && !wants_all(&words("dlock run -h")) && !wants_all(&words("dlock run -- x --help")));
    }
}
