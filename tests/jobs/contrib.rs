//! The files of `contrib/`, each checked by the tool that it is for.

use std::{collections::BTreeSet, process::Command, time::Duration};

use serde_json::Value;

use crate::{
    manual::read,
    support::{
        self,
        dlock::{self, unique},
        libraries,
        process::{self, Process, Sweep},
    },
};

const LIMIT: Duration = Duration::from_secs(60);

fn path(name: &str) -> String {
    format!("{}/contrib/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// Runs a checker and asserts that it finds nothing.
fn passes(mut command: Command, arguments: &[&str]) {
    command.args(arguments);
    let ended = Process::collect(command).wait(LIMIT);
    assert_eq!(ended.code(), 0, "{}{}", ended.stdout, ended.stderr);
}

#[test]
fn prometheus_accepts_the_alerts_and_fires_them() {
    if !support::have(
        "prometheus_accepts_the_alerts_and_fires_them",
        &["promtool"],
    ) {
        return;
    }
    passes(
        process::command("promtool"),
        &["check", "rules", &path("prometheus/alerts.yml")],
    );
    passes(
        process::command("promtool"),
        &["test", "rules", &path("prometheus/alerts.test.yml")],
    );
}

#[test]
fn kubernetes_accepts_the_manifests() {
    let name = "kubernetes_accepts_the_manifests";
    match libraries::python() {
        Ok(python) => {
            let program = python.to_str().expect("UTF-8");
            passes(
                process::command(program),
                &[
                    "-m",
                    "kubernetes_validate",
                    "--strict",
                    &path("kubernetes/cronjob.yaml"),
                    &path("kubernetes/deployment.yaml"),
                ],
            );
        }
        Err(why) => support::skip(name, &why),
    }
}

#[test]
fn hadolint_accepts_the_containerfile() {
    let name = "hadolint_accepts_the_containerfile";
    match libraries::python() {
        Ok(python) => passes(
            process::command(python.with_file_name("hadolint").to_str().expect("UTF-8")),
            &[&path("Containerfile")],
        ),
        Err(why) => support::skip(name, &why),
    }
}

#[test]
fn alerts_and_dashboard_use_existing_metrics() {
    let folder = support::folder();
    let key = unique("metrics");
    let _sweep = Sweep(key.clone());
    let file = folder.path().join("dlock.prom");
    let mut command = dlock::command();
    command.env(
        "DLOCK_BACKEND",
        format!("sqlite://{}", folder.path().join("locks.db").display()),
    );
    command
        .args(["run", "-k", &key, "--metrics-file"])
        .arg(&file)
        .args(["--", "true"]);
    assert_eq!(Process::collect(command).wait(LIMIT).code(), 0);
    let lines = support::lines(&file);
    let written: BTreeSet<&str> = lines
        .iter()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next())
        .collect();
    assert!(written.len() > 8, "{written:?}");
    let dashboard = read("contrib/grafana/dlock.json");
    let panels: Value = serde_json::from_str(&dashboard).expect("JSON");
    assert!(
        panels["panels"]
            .as_array()
            .is_some_and(|panels| panels.len() > 5)
    );
    let named = |text: &str| -> BTreeSet<String> {
        let names = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
        names
            .filter(|name| name.starts_with("dlock_run_"))
            .map(str::to_owned)
            .collect()
    };
    for (text, least) in [
        (dashboard, 7),
        (read("contrib/prometheus/alerts.yml"), 4),
        (read("src/commands/man/cron.md"), written.len()),
    ] {
        let named = named(&text);
        assert!(
            named.len() >= least && named.iter().all(|name| written.contains(name.as_str())),
            "{named:?}"
        );
    }
}

#[test]
fn the_packaged_configuration_works_with_and_without_its_settings() {
    let folder = support::folder();
    let text = read("contrib/config.toml");
    // A # without a space starts a commented-out setting.
    let set: String = text
        .lines()
        .map(|line| {
            line.strip_prefix('#')
                .filter(|rest| !rest.starts_with(' '))
                .unwrap_or(line)
                .to_owned()
                + "\n"
        })
        .collect();
    assert!(
        text.lines()
            .all(|line| line.is_empty() || line.starts_with('#'))
            && set.contains("\nurl = "),
        "{set}"
    );
    let store = format!("sqlite://{}", folder.path().join("locks.db").display());
    let set = set
        .replace("redis://dlock@redis1:6379/0", &store)
        .replace("password_file", "#password_file");
    for (text, backend) in [(text, Some(&store)), (set, None)] {
        let config = folder.path().join("config.toml");
        std::fs::write(&config, text).expect("a file");
        let mut command = dlock::command();
        command.env("DLOCK_CONFIG", &config);
        if let Some(backend) = backend {
            command.env("DLOCK_BACKEND", backend);
        }
        command.args(["explain", "sms-job", "--json"]);
        let ended = Process::collect(command).wait(LIMIT);
        assert_eq!((ended.code(), ended.stderr.as_str()), (0, ""));
        assert_eq!(
            ended.stdout.contains("config.toml:"),
            backend.is_none(),
            "{}",
            ended.stdout
        );
    }
}
