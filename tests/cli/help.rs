//! Help fits a terminal of 80 columns and 24 lines.

use snapbox::{assert_data_eq, file};

use crate::lab::Lab;

const COMMANDS: [&str; 16] = [
    "run",
    "acquire",
    "renew",
    "verify",
    "release",
    "hold",
    "inspect",
    "names",
    "list",
    "history",
    "break",
    "doctor",
    "init",
    "gc",
    "completions",
    "man",
];

#[test]
fn screens() {
    let mut lab = Lab::new();
    lab.say("--help");
    for command in COMMANDS {
        lab.say_args(&[command, "--help"]);
    }
    let text = lab.transcript();
    for screen in text.split("[0]\n") {
        let lines: Vec<&str> = screen.trim().lines().skip(1).collect();
        assert!(lines.len() <= 24 && lines.iter().all(|line| line.chars().count() <= 80), "{} lines:\n{screen}", lines.len());
    }
    assert_data_eq!(text, file!["snapshots/help.txt"].raw());
    lab.assert_untouched();
}

#[test]
fn short_and_long_are_the_same_and_a_command_keeps_its_own() {
    let lab = Lab::new();
    for command in COMMANDS {
        assert_eq!(lab.run([command, "-h"]).stdout, lab.run([command, "--help"]).stdout, "{command}");
    }
    assert_eq!(lab.line("run -k x -- echo --help -h --json -V"), "--help -h --json -V");
    assert_eq!(lab.line("run -k x echo -k y -- -n"), "-k y -- -n");
    assert_eq!(lab.line("--version"), format!("dlock {}", env!("CARGO_PKG_VERSION")));
}
