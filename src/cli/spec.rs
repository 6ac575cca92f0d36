//! The table of all settings: names, allowed tables of the configuration file, and descriptions.
//!
//! The layers, the check of the file's keys, the list of variables that the command keeps, and the
//! man page's ENVIRONMENT section use this table.

use crate::backends::{
    STORES,
    kit::{Parameter, Place},
};

/// One setting.
#[derive(Debug)]
pub struct Spec {
    /// Its key in the configuration file; `DLOCK_` and this in upper case is its variable.
    pub name: &'static str,
    /// Its flag; empty if it has none.
    pub flag: &'static str,
    /// The tables of the file in which it is allowed: `t`op level, `b`ackend, `k`ey.
    pub tables: &'static str,
    /// Whether it has a variable. A setting of one job has none, because the variable would apply
    /// to all jobs.
    pub from_env: bool,
    /// Whether the command that `run` starts sees the variable. Only settings that select the store
    /// are kept, because a nested `dlock run` must find the same one.
    pub kept: bool,
    /// The description for the man page.
    pub help: &'static str,
}

impl Spec {
    /// Returns the name of the environment variable.
    pub fn variable(&self) -> String {
        let mut variable = ["DLOCK_", self.name].concat();
        variable.make_ascii_uppercase();
        variable
    }
}

const fn spec(
    name: &'static str,
    flag: &'static str,
    tables: &'static str,
    kept: bool,
    help: &'static str,
) -> Spec {
    Spec {
        name,
        flag,
        tables,
        from_env: true,
        kept,
        help,
    }
}

/// A setting of the configuration file alone.
const fn from_file(name: &'static str, tables: &'static str, help: &'static str) -> Spec {
    Spec {
        name,
        flag: "",
        tables,
        from_env: false,
        kept: false,
        help,
    }
}

/// A setting of one job.
const fn of_job(name: &'static str, flag: &'static str, help: &'static str) -> Spec {
    Spec {
        name,
        flag,
        tables: "k",
        from_env: false,
        kept: false,
        help,
    }
}

/// All settings.
pub const SETTINGS: &[Spec] = &[
    spec(
        "backend",
        "--backend",
        "tk",
        true,
        "the store: a URL, or a name from the configuration file",
    ),
    spec("config", "--config", "", true, "the configuration file"),
    spec("password", "", "b", false, "the store's password"),
    spec(
        "password_file",
        "--password-file",
        "tb",
        true,
        "a file that holds the store's password",
    ),
    from_file(
        "password_command",
        "tb",
        "a command that prints the store's password",
    ),
    spec(
        "sentinel_password",
        "",
        "b",
        false,
        "the sentinels' password",
    ),
    spec(
        "sentinel_password_file",
        "",
        "b",
        true,
        "a file that holds the sentinels' password",
    ),
    from_file(
        "sentinel_password_command",
        "b",
        "a command that prints the sentinels' password",
    ),
    spec(
        "backend_timeout",
        "--backend-timeout",
        "tbk",
        true,
        "how long the store may take to answer",
    ),
    spec("host", "--host", "t", true, "this machine's name in leases"),
    spec(
        "namespace",
        "--namespace",
        "tbk",
        true,
        "the prefix of every key in the store",
    ),
    spec(
        "output",
        "--output",
        "tk",
        false,
        "human, json, or on-failure for run",
    ),
    spec("color", "--color", "t", false, "auto, always or never"),
    spec("quiet", "--quiet", "t", false, "no notices"),
    spec(
        "verbose",
        "--verbose",
        "t",
        false,
        "print the causes of errors, and why a run is skipped",
    ),
    spec("ttl", "--ttl", "tbk", false, "the length of a lease"),
    spec(
        "wait",
        "--wait",
        "tk",
        false,
        "how long to wait for a busy lock",
    ),
    spec(
        "fair",
        "--fair",
        "tk",
        false,
        "whether waiters are served in the order of asking",
    ),
    of_job("permits", "--permits", "how many hold the lock at once"),
    spec(
        "conflict_exit_code",
        "--conflict-exit-code",
        "tk",
        false,
        "the exit status when the lock is busy",
    ),
    spec(
        "grace",
        "--grace",
        "tk",
        false,
        "the time between TERM and KILL",
    ),
    spec(
        "max_runtime",
        "--max-runtime",
        "tk",
        false,
        "how long a command may run",
    ),
    of_job("once_per", "--once-per", "how often the schedule fires"),
    spec(
        "skew_guard",
        "--skew-guard",
        "tk",
        false,
        "how long after a start tries from other hosts are refused",
    ),
    spec(
        "at_least",
        "--at-least",
        "tk",
        false,
        "the shortest time for which a lock is kept",
    ),
    of_job("once", "--once", "retry until success, then refuse"),
    of_job(
        "keep",
        "--keep",
        "how long the success of once is remembered",
    ),
    of_job(
        "done_exit_code",
        "--done-exit-code",
        "the exit status when once or once_per finds the work done",
    ),
    of_job(
        "retry_failed",
        "--retry-failed",
        "how often a failed run is repeated",
    ),
    of_job(
        "retry_crashed",
        "--retry-crashed",
        "whether a run with an unknown outcome is repeated",
    ),
    spec(
        "warn_held",
        "--warn-held",
        "tk",
        false,
        "the age from which a skipping run warns of a hold",
    ),
    spec(
        "on_lost",
        "--on-lost",
        "tk",
        false,
        "what happens to the command when the lock is lost",
    ),
    spec(
        "leftover",
        "--leftover",
        "tk",
        false,
        "what happens to processes that outlive the command",
    ),
    spec(
        "contain",
        "--contain",
        "tk",
        false,
        "how the command's processes are kept together",
    ),
    spec(
        "describe",
        "--describe",
        "tk",
        false,
        "a note that inspect and list show",
    ),
    spec(
        "no_metadata",
        "--no-metadata",
        "tk",
        false,
        "store no host, user or command",
    ),
    spec(
        "no_reentrant",
        "--no-reentrant",
        "tk",
        false,
        "refuse to enter the lock of an outer run",
    ),
    spec(
        "status_file",
        "--status-file",
        "k",
        false,
        "where the verdict is written",
    ),
    spec(
        "metrics_file",
        "--metrics-file",
        "tk",
        false,
        "where metrics are written for Prometheus",
    ),
    spec(
        "on_event",
        "--on-event",
        "tk",
        false,
        "a line for /bin/sh that is run for each event of a run",
    ),
    spec("log", "--log", "tk", false, "lines for syslog"),
];

/// Returns the keys of a `[backends.NAME]` table that are not settings.
pub fn backend_keys() -> Vec<&'static str> {
    let keys = parameters().filter(|parameter| parameter.place != Place::Url);
    let keys = keys
        .map(|parameter| parameter.name)
        .filter(|name| find(name).is_none());
    let mut keys: Vec<&str> = keys.chain(["url"]).collect();
    keys.sort_unstable();
    keys.dedup();
    keys
}

/// Whether this parameter is allowed in a URL's query.
pub fn is_url_parameter(name: &str) -> bool {
    in_urls().any(|known| known == name)
}

/// Returns the parameters that are allowed in a URL's query: those of the stores, and the settings
/// that concern every store.
pub fn url_parameters() -> Vec<&'static str> {
    let mut names: Vec<&str> = in_urls().collect();
    names.sort_unstable();
    names.dedup();
    names
}

fn in_urls() -> impl Iterator<Item = &'static str> {
    parameters()
        .filter(|parameter| parameter.place != Place::Table)
        .map(|parameter| parameter.name)
        .chain(["backend_timeout", "namespace", "ttl"])
}

/// Returns the parameters of all stores; several have one of the same name.
pub fn parameters() -> impl Iterator<Item = &'static Parameter> {
    STORES.iter().flat_map(|store| store.parameters())
}

/// Returns the setting with this name.
pub fn find(name: &str) -> Option<&'static Spec> {
    SETTINGS.iter().find(|spec| spec.name == name)
}

/// Returns the settings that are allowed in tables of this kind (`t`, `b` or `k`).
pub fn names(table: char) -> impl Iterator<Item = &'static str> {
    SETTINGS
        .iter()
        .filter(move |spec| spec.tables.contains(table))
        .map(|spec| spec.name)
}

/// Returns the variables that the command of `run` keeps.
pub fn kept_variables() -> Vec<String> {
    SETTINGS
        .iter()
        .filter(|spec| spec.kept && spec.from_env)
        .map(Spec::variable)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_keeps_the_variables_of_the_store_but_no_secret() {
        let names = kept_variables();
        for gone in [
            "DLOCK_WAIT",
            "DLOCK_TTL",
            "DLOCK_PASSWORD",
            "DLOCK_STATUS_FILE",
        ] {
            assert!(!names.iter().any(|name| name == gone), "{gone}");
        }
        for kept in [
            "DLOCK_BACKEND",
            "DLOCK_CONFIG",
            "DLOCK_NAMESPACE",
            "DLOCK_PASSWORD_FILE",
        ] {
            assert!(names.iter().any(|name| name == kept), "{kept}");
        }
    }

    #[test]
    fn every_url_parameter_is_a_key_of_the_backends_table() {
        let keys = backend_keys();
        for name in url_parameters().iter().filter(|name| **name != "host") {
            assert!(
                keys.contains(name) || names('b').any(|n| n == *name),
                "{name}"
            );
        }
    }
}
