//! `man/` and `completions/` are what the binary makes.

use snapbox::{Data, assert_data_eq};

use crate::lab::Lab;

fn compare(arguments: &[&str], file: &str) {
    let output = Lab::new().run(arguments);
    assert!(output.status.success() && output.stderr.is_empty(), "{arguments:?}: {output:?}");
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    if std::env::var("SNAPSHOTS").is_ok_and(|value| value == "overwrite") {
        std::fs::write(&path, &output.stdout).unwrap();
    }
    assert_data_eq!(String::from_utf8(output.stdout).unwrap(), Data::read_from(&path, None).raw());
}

#[test]
fn man_pages() {
    compare(&["man"], "man/dlock.1");
    compare(&["man", "interop"], "man/dlock-interop.7");
    for command in [
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
        "explain",
        "forget",
        "doctor",
        "init",
        "gc",
        "completions",
        "man",
    ] {
        compare(&["man", command], &format!("man/dlock-{command}.1"));
    }
}

#[test]
fn completions() {
    for (shell, file) in [("bash", "dlock.bash"), ("elvish", "dlock.elv"), ("fish", "dlock.fish"), ("zsh", "_dlock")] {
        compare(&["completions", shell], &format!("completions/{file}"));
    }
}
