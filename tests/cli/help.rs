//! `-h` fits a terminal of 80 columns and 24 lines with the next prompt. `--help` and `dlock help`
//! list all options.

use snapbox::{assert_data_eq, file};

use crate::lab::Lab;

const COMMANDS: [&str; 19] = [
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
    "report",
    "break",
    "explain",
    "forget",
    "doctor",
    "init",
    "gc",
    "completions",
    "man",
];

#[test]
fn screens() {
    let mut lab = Lab::new();
    lab.say("-h");
    for command in COMMANDS {
        lab.say_args(&[command, "-h"]);
    }
    let text = lab.transcript();
    for screen in text.split("[0]\n") {
        let lines: Vec<&str> = screen.trim().lines().skip(1).collect();
        assert!(
            lines.len() <= 23 && lines.iter().all(|line| line.chars().count() <= 80),
            "{} lines:\n{screen}",
            lines.len()
        );
    }
    assert_data_eq!(text, file!["snapshots/help.txt"].raw());
    lab.assert_untouched();
}

#[test]
fn all_options() {
    let mut lab = Lab::new();
    lab.say("--help");
    for command in COMMANDS {
        lab.say_args(&[command, "--help"]);
    }
    assert_data_eq!(lab.transcript(), file!["snapshots/help-all.txt"].raw());
}

#[test]
fn help_is_a_command_and_a_command_keeps_its_own_help_option() {
    let lab = Lab::new();
    assert_eq!(lab.run(["help"]).stdout, lab.run(["--help"]).stdout);
    for command in COMMANDS {
        let all = lab.run([command, "--help"]).stdout;
        assert_eq!(lab.run(["help", command]).stdout, all, "{command}");
        assert!(
            String::from_utf8(all).unwrap().contains("--namespace"),
            "{command}"
        );
    }
    assert_eq!(
        lab.line("run -k x -- echo --help -h --json -V"),
        "--help -h --json -V"
    );
    assert_eq!(lab.line("run -k x echo -k y -- -n"), "-k y -- -n");
    assert_eq!(
        lab.line("--version"),
        format!("dlock {}", env!("CARGO_PKG_VERSION"))
    );
}
