//! The cron examples in README, the man pages and `contrib/`, used unchanged: units, configuration
//! and the container's command line.

use std::{fs, os::unix::fs::PermissionsExt as _, time::Duration};

use rustix::process::Signal;

use crate::{
    manual::{examples, items, read, readme_blocks},
    support::{
        self,
        dlock::{self, unique},
        process::{self, Process, Sweep},
        redis::Redis,
        stores::FIXTURES,
    },
};

const LIMIT: Duration = Duration::from_secs(60);

#[test]
fn systemd_accepts_the_units() {
    if !support::have("systemd_accepts_the_units", &["systemd-analyze"]) {
        return;
    }
    let folder = support::folder();
    let mut command = process::command("systemd-analyze");
    command.args(["verify", "--man=no"]);
    let mut all = String::new();
    for name in ["sms-job.service", "sms-job.timer", "importer.service"] {
        let unit = read(&format!("contrib/systemd/{name}"));
        assert!(
            unit.starts_with(&format!("# /etc/systemd/system/{name}\n")),
            "the unit's path"
        );
        all.push_str(&unit);
        // systemd-analyze checks that the program exists.
        let unit = unit.replace("/usr/bin/dlock", dlock::binary().to_str().expect("UTF-8"));
        fs::write(folder.path().join(name), &unit).expect("the unit");
        command.arg(folder.path().join(name));
    }
    for line in [
        "AccuracySec=1s",
        "SuccessExitStatus=75",
        "KillMode=mixed",
        "StartLimitIntervalSec=0",
        "LoadCredential=redis.pass:/etc/dlock/redis.pass",
    ] {
        assert!(all.lines().any(|found| found == line), "{line}");
    }
    // systemd-analyze only prints a message about unknown settings.
    let ended = Process::collect(command).wait(LIMIT);
    assert_eq!(
        (ended.code(), ended.stdout.as_str(), ended.stderr.as_str()),
        (0, "", "")
    );
}

#[test]
fn the_documented_configuration_works() {
    let folder = support::folder();
    let path = |name: &str| folder.path().join(name).to_str().expect("UTF-8").to_owned();
    // The page's first configuration; README's has one line more.
    let page = examples("cron")
        .into_iter()
        .find(|block| block.contains("[backends"))
        .expect("a configuration");
    let [readme] = &readme_blocks("toml")[..] else {
        panic!("README has one configuration")
    };
    let job = examples("cron")
        .into_iter()
        .find(|block| block.contains("metrics_file"))
        .expect("the metrics");
    let metrics = job
        .lines()
        .find(|line| line.starts_with("metrics_file = "))
        .expect("metrics_file");
    for text in [&page, readme] {
        assert!(text.trim_end().contains("[keys.\"sms-job\"]\n"), "{text}");
        // The last table is the job's.
        let text = format!("{}\n{metrics}\n", text.trim_end());
        let text = text.replace(
            "redis://dlock@redis1:6379/0",
            &format!("sqlite://{}", path("locks.db")),
        );
        let text = text.replace(
            "/var/lib/prometheus/node-exporter/dlock.prom",
            &path("dlock.prom"),
        );
        // SQLite has no password.
        let text: Vec<&str> = text
            .lines()
            .filter(|line| !line.starts_with("password_file"))
            .collect();
        fs::write(path("config.toml"), text.join("\n")).expect("the configuration");
        let mut command = dlock::command();
        command
            .env("DLOCK_CONFIG", path("config.toml"))
            .args(["run", "--key", "sms-job", "--anyway", "--reason", "test"]);
        command.args(["--", "sh", "-c", "exit 3"]);
        let ended = Process::collect(command).wait(LIMIT);
        assert_eq!((ended.code(), ended.stderr.as_str()), (3, ""));
    }
    assert!(
        support::lines(&folder.path().join("dlock.prom"))
            .contains(&"dlock_run_last_exit_status{key=\"sms-job\"} 3".to_owned())
    );
}

/// The printed rights, typed as they are, are those of the user whom README's configuration names,
/// and each mend that doctor prints afterwards names that user too.
#[test]
fn the_printed_rights_are_those_of_the_documented_user() {
    const NAME: &str = "the_printed_rights_are_those_of_the_documented_user";
    if !support::have(NAME, &[Redis::PROGRAM]) {
        return;
    }
    let server = Redis::plain();
    let folder = support::folder();
    let (config, password) = (
        folder.path().join("config.toml"),
        folder.path().join("redis.pass"),
    );
    let [readme] = &readme_blocks("toml")[..] else {
        panic!("README has one configuration")
    };
    assert!(readme.contains("redis1:6379") && readme.contains("/etc/dlock/redis.pass"));
    let text = readme
        .replace("redis1:6379", &format!("127.0.0.1:{}", server.port))
        .replace("/etc/dlock/redis.pass", password.to_str().expect("UTF-8"));
    fs::write(&config, text).expect("the configuration");
    let say = |words: &[&str]| {
        let mut command = dlock::command();
        command.env("DLOCK_CONFIG", &config).args(words);
        Process::collect(command).wait(LIMIT)
    };
    let job = ["run", "--key", "sms-job", "--", "true"];
    let without = say(&job);
    let hint = format!(
        "hint: sudo install -D -m 640 -g GROUP /dev/stdin {}",
        password.display()
    );
    assert!(
        without.code() == 78 && without.stderr.contains(&hint),
        "{}",
        without.stderr
    );
    fs::write(&password, "s3cret\n").expect("the password");
    fs::set_permissions(&password, fs::Permissions::from_mode(0o640)).expect("its mode");
    assert_eq!(say(&job).code(), 78, "nobody has that name yet");
    let printed = say(&["doctor", "--print-grants", "run"]).stdout;
    let line: Vec<&str> = printed.split_whitespace().collect();
    assert_eq!(line[..3], ["ACL", "SETUSER", "dlock"]);
    let line: Vec<&str> = line
        .into_iter()
        .map(|word| match word {
            ">CHANGE-ME" => ">s3cret",
            word => word,
        })
        .collect();
    server.command(&line);
    let ended = say(&job);
    assert_eq!((ended.code(), &*ended.stderr), (0, ""));
    let report = say(&["doctor"]).stdout;
    let mend = "        fix: ACL SETUSER dlock +info +config|get";
    assert!(report.lines().any(|line| line == mend), "{report}");
    server.command(&["ACL", "SETUSER", "dlock", "+info", "+config|get"]);
    let report = say(&["doctor"]).stdout;
    assert!(
        !report.contains("not checked") && !report.contains("SETUSER"),
        "{report}"
    );
}

#[test]
fn the_containers_command_line_runs_as_pid_1() {
    let name = "the_containers_command_line_runs_as_pid_1";
    if !rustix::process::geteuid().is_root() {
        return support::skip(name, "only root can make a PID namespace");
    }
    let job = read("contrib/kubernetes/cronjob.yaml");
    let list = |name: &str| {
        job.lines().find_map(|line| {
            line.trim()
                .strip_prefix(name)?
                .strip_prefix(": [")?
                .strip_suffix(']')
        })
    };
    let lists = [
        list("command").expect("its command"),
        list("args").expect("its arguments"),
    ];
    let words: Vec<&str> = lists
        .iter()
        .flat_map(|list| list.split(", "))
        .map(|word| word.trim_matches('"'))
        .collect();
    assert_eq!((words[0], words[1]), ("dlock", "run"));
    let (folder, key) = (support::folder(), unique("sms-job"));
    let _sweep = Sweep(key.clone());
    let container = |script: &str| {
        let mut command = process::command("unshare");
        command
            .args(["--pid", "--fork", "--kill-child", "--mount-proc", "--"])
            .arg(dlock::binary());
        let fill = |word: &str| match word {
            "sms-job" => key.clone(),
            "$(NODE)" => "node7".to_owned(),
            word => word.to_owned(),
        };
        command
            .args(words[1..words.len() - 1].iter().map(|word| fill(word)))
            .args(["sh", "-c", script]);
        command.env(
            "DLOCK_BACKEND",
            format!("sqlite://{}", folder.path().join("locks.db").display()),
        );
        Process::collect(command)
    };
    let over = folder.path().join("over");
    let first = container(&format!(
        "echo > {0}/ready; until [ -e {0}/over ]; do sleep 0.05; done; exit $(( $$ > 1 ? 5 : 6 ))",
        folder.path().display()
    ));
    support::must("the first container runs", LIMIT, || {
        folder.path().join("ready").exists()
    });
    let held = dlock::run(
        &format!("sqlite://{}", folder.path().join("locks.db").display()),
        &["inspect", &key, "--json"],
    );
    assert!(held.stdout.contains("\"host\":\"node7\""), "{held:?}");
    assert_eq!(
        container("exit 9").wait(LIMIT).code(),
        0,
        "a skip is a success"
    );
    fs::write(over, "").expect("the end");
    assert_eq!(first.wait(LIMIT).code(), 5);
}

#[test]
fn a_cancelled_pipeline_releases_the_lock() {
    let folder = support::folder();
    let backend = format!("sqlite://{}", folder.path().join("locks.db").display());
    let blocks = examples("cron");
    let line = blocks
        .iter()
        .find(|block| block.starts_with("dlock run -k deploy-prod"))
        .expect("the pipeline's line");
    support::program::write(
        folder.path().join("deploy.sh"),
        "#!/bin/sh\necho > ready\nexec sleep 1000\n",
    );
    let mut command = process::command("sh");
    command.args([
        "-c",
        &format!(
            "exec {}",
            line.replace("dlock run", &format!("{} run", dlock::binary().display()))
        ),
    ]);
    command
        .current_dir(folder.path())
        .env("DLOCK_BACKEND", &backend)
        .env("CI_JOB_URL", "https://ci.example/42");
    let pipeline = Process::collect(command);
    support::must("the deployment runs", LIMIT, || {
        folder.path().join("ready").exists()
    });
    let report = dlock::run(&backend, &["inspect", "deploy-prod"]);
    assert!(
        report.stdout.contains("https://ci.example/42"),
        "{report:?}"
    );
    pipeline.signal(Signal::TERM);
    assert_eq!(pipeline.wait(LIMIT).code(), 143);
    assert!(
        dlock::run(&backend, &["list"])
            .stdout
            .lines()
            .all(|line| !line.contains("deploy-prod"))
    );
}

/// Returns the first cell of each row in the table below this line.
fn first_cells<'a>(text: &'a str, head: &str) -> Vec<&'a str> {
    let table = text
        .split(head)
        .nth(1)
        .unwrap_or_else(|| panic!("no table {head:?}"));
    let rows = table
        .lines()
        .skip(2)
        .take_while(|line| line.starts_with('|'));
    rows.map(|row| row[2..].split(" | ").next().expect("a cell"))
        .collect()
}

#[test]
fn each_promise_has_an_existing_test() {
    let (readme, tests) = (read("README.md"), read("tests/README.md"));
    let section = readme
        .split("\n## ")
        .find_map(|section| section.strip_prefix("What is promised\n"))
        .expect("the section");
    let promised = section
        .split("\n- **")
        .skip(1)
        .filter_map(|item| item.split(".**").next());
    let mut promises: Vec<String> = promised.map(str::to_owned).collect();
    assert!(promises.len() >= 4, "{promises:?}");
    for (page, section) in [
        ("cron", "WHAT HAPPENS WHEN"),
        ("interop", "WHICH LIBRARIES"),
        ("stores", "WHAT A STORE CAN FORGET"),
    ] {
        let found = items(page, section);
        assert!(found.len() >= 8, "{page}: {found:?}");
        promises.extend(found);
    }
    assert_eq!(first_cells(&tests, "| promise | "), promises);
    let rows = tests
        .split("| promise | ")
        .nth(1)
        .expect("the table")
        .lines()
        .skip(2);
    for row in rows {
        let cases: Vec<&str> = row.split('`').filter(|part| part.contains("::")).collect();
        assert!(!cases.is_empty(), "{row}");
        for case in cases {
            let (file, name) = case.split_once("::").expect("a case");
            let text = read(&format!("tests/{file}.rs"));
            // A function, or a row of the table of libraries.
            assert!(
                text.contains(&format!("fn {name}(")) || text.contains(&format!("\n    {name}: ")),
                "{case}"
            );
        }
    }
}

/// What the binary calls its stores is what people read, and what tests start.
#[test]
fn each_store_has_a_fixture_a_row_and_a_section() {
    let version = dlock::run("", &["--version", "--verbose"]).stdout;
    let stores = version
        .lines()
        .skip_while(|line| !line.starts_with("stores"));
    let named = stores
        .skip(1)
        .filter_map(|line| line.trim().split_once("  "));
    let named: Vec<&str> = named.map(|(name, _)| name).collect();
    let mut started = FIXTURES.map(|fixture| fixture.store);
    let mut expected = named.clone();
    started.sort_unstable();
    expected.sort_unstable();
    assert_eq!(started[..], expected);
    let (readme, page) = (read("README.md"), read("src/commands/man/stores.md"));
    let table = readme.split("| URL | store |").nth(1).expect("a table");
    let table = table
        .split("\n\n")
        .next()
        .unwrap_or_default()
        .to_lowercase();
    for name in named {
        for product in name.split(", ") {
            let row = product.to_lowercase();
            assert!(table.contains(&row), "README has no row for {product}");
        }
        let head = format!("\n# {}\n", name.to_uppercase().replace(", ", " AND "));
        assert!(page.contains(&head), "stores.md has no section {head:?}");
    }
}

#[test]
fn the_readme_is_short_and_its_links_lead_somewhere() {
    let readme = read("README.md");
    let words = readme.split_whitespace().count();
    assert!(words <= 1900, "{words} words");
    let links: Vec<&str> = readme
        .split("](")
        .skip(1)
        .filter_map(|rest| rest.split(')').next())
        .collect();
    assert!(links.len() > 5, "{links:?}");
    for link in links.into_iter().filter(|link| !link.contains("://")) {
        assert!(
            fs::exists(format!("{}/{link}", env!("CARGO_MANIFEST_DIR"))).expect("a path"),
            "{link}"
        );
    }
}
