//! `dlock --version`, and with `--verbose` details to compare between nodes.

use std::{ffi::OsString, fmt::Write as _};

use crate::backends::STORES;

/// Returns clap's line, followed by the details if `--verbose` is given.
pub fn text(line: &str, arguments: &[OsString]) -> String {
    let verbose = arguments
        .iter()
        .take_while(|argument| *argument != "--")
        .any(|argument| {
            let short = argument.to_str().is_some_and(|word| {
                word.starts_with('-') && !word.starts_with("--") && word.contains('v')
            });
            short || argument == "--verbose"
        });
    if !verbose {
        return line.to_owned();
    }
    let mut text = format!(
        "{}\ncommit  {}\ntarget  {}\nstores  (layout)\n",
        line.trim_end(),
        env!("DLOCK_COMMIT"),
        env!("DLOCK_TARGET")
    );
    for store in STORES {
        let _ = writeln!(text, "  {:<16}{}", store.name, (store.layout)());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_verbose_version_names_stores() {
        let of = |line: &str| {
            text(
                "dlock 1\n",
                &line.split(' ').map(OsString::from).collect::<Vec<_>>(),
            )
        };
        assert_eq!(of("dlock --version"), "dlock 1\n");
        for line in ["dlock --version -v", "dlock -vV", "dlock --verbose -V"] {
            assert!(
                of(line).starts_with("dlock 1\ncommit  ") && of(line).contains("\n  etcd  "),
                "{line}"
            );
        }
    }
}
