//! Parses signals by name or number.

use libc::{
    SIGABRT, SIGALRM, SIGCONT, SIGHUP, SIGINT, SIGPIPE, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2,
    SIGWINCH,
};

const NAMES: &[(&str, i32)] = &[
    ("HUP", SIGHUP),
    ("INT", SIGINT),
    ("QUIT", SIGQUIT),
    ("ABRT", SIGABRT),
    ("USR1", SIGUSR1),
    ("USR2", SIGUSR2),
    ("PIPE", SIGPIPE),
    ("ALRM", SIGALRM),
    ("TERM", SIGTERM),
    ("CONT", SIGCONT),
    ("WINCH", SIGWINCH),
];

/// Returns the number of a signal that a process can handle, so never of KILL or STOP.
pub fn number(name: &str) -> Option<i32> {
    let upper = name.to_ascii_uppercase();
    let short = upper.strip_prefix("SIG").unwrap_or(&upper);
    let by_name = NAMES
        .iter()
        .find(|(name, _)| *name == short)
        .map(|(_, number)| *number);
    by_name.or_else(|| {
        name.parse()
            .ok()
            .filter(|number| NAMES.iter().any(|(_, known)| known == number))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers() {
        assert_eq!(
            [number("TERM"), number("sigusr1"), number("2")],
            [Some(SIGTERM), Some(SIGUSR1), Some(SIGINT)]
        );
        for name in ["", "KILL", "9", "STOP", "0", "-1", "999", "SIG"] {
            assert_eq!(number(name), None, "{name}");
        }
    }
}
