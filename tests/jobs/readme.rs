//! What the README says of cron, as it stands there: the units, the configuration and the container's command line.

use std::{fs, os::unix::fs::PermissionsExt as _, time::Duration};

use rustix::process::Signal;

use crate::support::{
    self,
    dlock::{self, unique},
    process::{self, Process, Sweep},
};

const LIMIT: Duration = Duration::from_secs(60);

/// The blocks of code of the section "Cron" that are in this language.
fn blocks(language: &str) -> Vec<String> {
    let readme = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/README.md")).expect("the README");
    let cron = readme.split("\n## ").find(|section| section.starts_with("Cron\n")).expect("the section").to_owned();
    let blocks = cron.split("\n```").skip(1).step_by(2);
    blocks.filter_map(|block| Some(block.strip_prefix(language)?.strip_prefix('\n')?.to_owned() + "\n")).collect()
}

#[test]
fn systemd_takes_the_units() {
    if !support::have("systemd_takes_the_units", &["systemd-analyze"]) {
        return;
    }
    let folder = support::folder();
    let mut command = process::command("systemd-analyze");
    command.args(["verify", "--man=no"]);
    let units = blocks("ini");
    assert_eq!(units.len(), 2);
    for unit in &units {
        let name = unit.lines().next().and_then(|line| line.strip_prefix("# /etc/systemd/system/")).expect("the unit's path");
        // It looks whether the program is there.
        let unit = unit.replace("/usr/local/bin/dlock", dlock::binary().to_str().expect("UTF-8"));
        fs::write(folder.path().join(name), &unit).expect("the unit");
        command.arg(folder.path().join(name));
    }
    let all = units.concat();
    for line in ["AccuracySec=1s", "SuccessExitStatus=75", "KillMode=mixed", "LoadCredential=redis.pass:/etc/dlock/redis.pass"] {
        assert!(all.lines().any(|found| found == line), "{line}");
    }
    // What it doesn't understand it only tells.
    let ended = Process::collect(command).wait(LIMIT);
    assert_eq!((ended.code(), ended.stdout.as_str(), ended.stderr.as_str()), (0, "", ""));
}

#[test]
fn the_configuration_is_understood() {
    let folder = support::folder();
    let path = |name: &str| folder.path().join(name).to_str().expect("UTF-8").to_owned();
    // The others are hooks, which have a test of their own.
    let text = blocks("toml").into_iter().find(|block| block.contains("[backends")).expect("a configuration");
    let metrics = text.lines().find_map(|line| line.strip_prefix("metrics_file = \"")?.strip_suffix('"')).expect("metrics_file");
    let text = text.replace("redis://dlock@redis1:6379/0", &format!("sqlite://{}", path("locks.db"))).replace(metrics, &path("dlock.prom"));
    // SQLite has no password.
    let text: Vec<&str> = text.lines().filter(|line| !line.starts_with("password_file")).collect();
    fs::write(path("config.toml"), text.join("\n")).expect("the configuration");
    let mut command = dlock::command();
    command.env("DLOCK_CONFIG", path("config.toml")).args(["run", "--key", "sms-job", "--", "sh", "-c", "exit 3"]);
    let ended = Process::collect(command).wait(LIMIT);
    assert_eq!((ended.code(), ended.stderr.as_str()), (3, ""));
    assert!(support::lines(&folder.path().join("dlock.prom")).contains(&"dlock_run_last_exit_status{key=\"sms-job\"} 3".to_owned()));
}

#[test]
fn the_containers_command_line_runs_as_pid_1() {
    let name = "the_containers_command_line_runs_as_pid_1";
    if !rustix::process::geteuid().is_root() {
        return support::skip(name, "only root can make a PID namespace");
    }
    let job = blocks("yaml").into_iter().find(|block| block.contains("kind: CronJob")).expect("the CronJob");
    let line = job.lines().find_map(|line| line.trim().strip_prefix("command: [")?.strip_suffix(']')).expect("its command");
    let words: Vec<&str> = line.split(", ").map(|word| word.trim_matches('"')).collect();
    let (folder, key) = (support::folder(), unique("sms-job"));
    let _sweep = Sweep(key.clone());
    let container = |script: &str| {
        let mut command = process::command("unshare");
        command.args(["--pid", "--fork", "--kill-child", "--mount-proc", "--"]).arg(dlock::binary());
        let fill = |word: &str| match word {
            "sms-job" => key.clone(),
            "$(NODE)" => "node7".to_owned(),
            word => word.to_owned(),
        };
        command.args(words[1..words.len() - 1].iter().map(|word| fill(word))).args(["sh", "-c", script]);
        command.env("DLOCK_BACKEND", format!("sqlite://{}", folder.path().join("locks.db").display()));
        Process::collect(command)
    };
    let over = folder.path().join("over");
    let first = container(&format!(
        "echo > {0}/ready; until [ -e {0}/over ]; do sleep 0.05; done; exit $(( $$ > 1 ? 5 : 6 ))",
        folder.path().display()
    ));
    support::must("the first one runs", LIMIT, || folder.path().join("ready").exists());
    let held = dlock::run(&format!("sqlite://{}", folder.path().join("locks.db").display()), &["inspect", &key, "--json"]);
    assert!(held.stdout.contains("\"host\":\"node7\""), "{held:?}");
    assert_eq!(container("exit 9").wait(LIMIT).code(), 0, "a skip is a success");
    fs::write(over, "").expect("the end");
    assert_eq!(first.wait(LIMIT).code(), 5);
}

#[test]
fn a_cancelled_pipeline_gives_the_lock_back() {
    let folder = support::folder();
    let backend = format!("sqlite://{}", folder.path().join("locks.db").display());
    let lines = blocks("sh");
    let line = lines.iter().find(|line| line.starts_with("dlock run")).expect("the pipeline's line");
    let program = |name: &str, text: &str| {
        fs::write(folder.path().join(name), text).expect("a program");
        fs::set_permissions(folder.path().join(name), fs::Permissions::from_mode(0o755)).expect("executable");
    };
    program("deploy.sh", "#!/bin/sh\necho > ready\nexec sleep 1000\n");
    let mut command = process::command("sh");
    command.args(["-c", &format!("exec {}", line.replace("dlock run", &format!("{} run", dlock::binary().display())))]);
    command.current_dir(folder.path()).env("DLOCK_BACKEND", &backend).env("CI_JOB_URL", "https://ci.example/42");
    let pipeline = Process::collect(command);
    support::must("it deploys", LIMIT, || folder.path().join("ready").exists());
    let told = dlock::run(&backend, &["inspect", "deploy-prod"]);
    assert!(told.stdout.contains("https://ci.example/42"), "{told:?}");
    pipeline.signal(Signal::TERM);
    assert_eq!(pipeline.wait(LIMIT).code(), 143);
    assert!(dlock::run(&backend, &["list"]).stdout.lines().all(|line| !line.contains("deploy-prod")));
}

/// The first cell of each row of the table below this line of a text.
fn first_cells<'a>(text: &'a str, head: &str) -> Vec<&'a str> {
    let table = text.split(head).nth(1).unwrap_or_else(|| panic!("no table {head:?}"));
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    rows.map(|row| row[2..].split(" | ").next().expect("a cell")).collect()
}

#[test]
fn each_promise_is_tested_by_something_that_exists() {
    let read = |path: &str| fs::read_to_string(format!("{}/{path}", env!("CARGO_MANIFEST_DIR"))).unwrap_or_else(|_| panic!("no {path}"));
    let (readme, tests) = (read("README.md"), read("tests/README.md"));
    let section = readme.split("\n## ").find_map(|section| section.strip_prefix("What is promised\n")).expect("the section");
    let mut promises: Vec<&str> = section.split("\n- **").skip(1).filter_map(|item| item.split(".**").next()).collect();
    promises.extend(first_cells(&readme, "| what happens | "));
    promises.extend(first_cells(&readme, "| library | "));
    promises.extend(first_cells(&readme, "| store | its server restarts | "));
    assert_eq!(first_cells(&tests, "| promise | "), promises);
    let rows = tests.split("| promise | ").nth(1).expect("the table").lines().skip(2);
    for row in rows {
        let cases: Vec<&str> = row.split('`').filter(|part| part.contains("::")).collect();
        assert!(!cases.is_empty(), "{row}");
        for case in cases {
            let (file, name) = case.split_once("::").expect("a case");
            let text = read(&format!("tests/{file}.rs"));
            // A function, or a row of the table of libraries.
            assert!(text.contains(&format!("fn {name}(")) || text.contains(&format!("\n    {name}: ")), "{case}");
        }
    }
}
