//! Fifty runs that share one metrics file, checked with Prometheus' own tools.

use std::{collections::BTreeMap, fs, path::Path, process::Stdio, time::Duration};

use crate::support::{
    self,
    dlock::{self, unique},
    process::{self, Process, Sweep},
    stretched,
};

const RUNS: usize = 50;
const LIMIT: Duration = Duration::from_secs(60);

/// Returns the value of each series in a file.
fn samples(file: &Path) -> BTreeMap<String, f64> {
    let sample = |line: &String| {
        let (series, value) = line.rsplit_once(' ')?;
        Some((series.to_owned(), value.parse().ok()?))
    };
    support::lines(file)
        .iter()
        .filter(|line| !line.starts_with('#'))
        .map(|line| sample(line).expect("a sample"))
        .collect()
}

fn store(folder: &Path) -> String {
    format!("sqlite://{}", folder.join("locks.db").display())
}

#[test]
fn fifty_runs_at_once_are_all_counted() {
    let (folder, metrics) = (support::folder(), support::folder());
    let file = metrics.path().join("dlock.prom");
    let path = file.to_str().expect("UTF-8");
    // Five keys with ten runs each: some run, and the others skip.
    let keys: Vec<String> = (0..5).map(|n| unique(&format!("k\"{n}\\"))).collect();
    let runs: Vec<Process> = (0..RUNS)
        .map(|n| {
            let script = "sleep 0.2; exit $1";
            let status = if n % 10 < 5 { "0" } else { "3" };
            dlock::spawn(
                &store(folder.path()),
                &[
                    "run",
                    "-k",
                    &keys[n % 5],
                    "--metrics-file",
                    path,
                    "--",
                    "sh",
                    "-c",
                    script,
                    "sh",
                    status,
                ],
            )
        })
        .collect();
    let mut codes: BTreeMap<i32, usize> = BTreeMap::new();
    for run in runs {
        let ended = run.wait(LIMIT);
        assert_eq!(ended.stderr, "");
        *codes.entry(ended.code()).or_default() += 1;
    }
    let samples = samples(&file);
    let all = |name: &str| -> Vec<f64> {
        let start = format!("dlock_run_{name}{{");
        samples
            .iter()
            .filter(|(series, _)| series.starts_with(&start))
            .map(|(_, value)| *value)
            .collect()
    };
    let sum = |name: &str| all(name).iter().sum::<f64>();
    let count = |status: i32| codes.get(&status).copied().unwrap_or_default();
    let as_f64 = |count: usize| f64::from(u32::try_from(count).expect("a few"));
    assert_eq!(count(0) + count(3) + count(75), RUNS, "{codes:?}");
    assert_eq!(
        (sum("runs_total"), sum("skipped_total")),
        (as_f64(count(0) + count(3)), as_f64(count(75))),
        "{samples:#?}"
    );
    assert_eq!(
        (all("lost_total"), all("last_start_timestamp_seconds").len()),
        (vec![0.0; 5], 5)
    );
    assert!(
        all("last_duration_seconds")
            .iter()
            .all(|ran| (0.15..30.0).contains(ran)),
        "{samples:#?}"
    );
    let left: Vec<_> = fs::read_dir(metrics.path())
        .expect("the folder")
        .map(|entry| entry.expect("an entry").file_name())
        .collect();
    assert_eq!(left, ["dlock.prom"], "the file is the only one");
    check(&file);
}

/// Checks the file with promtool or else with Prometheus' Python library, if one of them is
/// installed.
fn check(file: &Path) {
    let mut command = if support::find_program("promtool").is_some() {
        let mut command = process::command("promtool");
        command
            .args(["check", "metrics"])
            .stdin(fs::File::open(file).expect("the metrics"));
        command
    } else {
        let parse = "import sys\ntry:\n import prometheus_client.parser as p\nexcept ImportError:\n sys.exit(44)\n\
                     assert len(list(p.text_string_to_metric_families(open(sys.argv[1]).read()))) > 5";
        if support::find_program("python3").is_none() {
            return support::say("neither promtool nor python3 is here to read the metrics");
        }
        let mut command = process::command("python3");
        command.args(["-c", parse]).arg(file).stdin(Stdio::null());
        command
    };
    match Process::collect({
        command.env("LC_ALL", "C.UTF-8");
        command
    })
    .wait(LIMIT)
    {
        ended if ended.code() == 44 => {
            support::say("neither promtool nor prometheus_client is here to read the metrics");
        }
        ended => assert_eq!(
            (ended.code(), ended.stdout.as_str(), ended.stderr.as_str()),
            (0, "", "")
        ),
    }
}

#[test]
fn a_start_is_in_the_metrics_while_the_command_runs() {
    let (folder, key) = (support::folder(), unique("job"));
    let _sweep = Sweep(key.clone());
    let file = folder.path().join("dlock.prom");
    let over = folder.path().join("over");
    let script = r#"until [ -e "$1" ]; do sleep 0.05; done; exit 4"#;
    let (path, until) = (file.to_str().expect("UTF-8"), over.to_str().expect("UTF-8"));
    let run = dlock::spawn(
        &store(folder.path()),
        &[
            "run",
            "-k",
            &key,
            "--metrics-file",
            path,
            "--",
            "sh",
            "-c",
            script,
            "sh",
            until,
        ],
    );
    support::must("the start is in the metrics", LIMIT, || {
        support::lines(&file).len() == 3
    });
    assert!(samples(&file).keys().all(
        |series| *series == format!("dlock_run_last_start_timestamp_seconds{{key=\"{key}\"}}")
    ));
    fs::write(over, "").expect("the end");
    assert_eq!(run.wait(LIMIT).code(), 4);
    let status = format!("dlock_run_last_exit_status{{key=\"{key}\"}} 4");
    assert!(
        support::lines(&file).contains(&status),
        "{:#?}",
        support::lines(&file)
    );
}

/// The node exporter is another user. Its collector loses all jobs of the host with a file that it
/// can't read.
#[test]
fn metrics_are_readable_whatever_the_umask_says() {
    use std::os::unix::fs::PermissionsExt as _;
    let (folder, key) = (support::folder(), unique("job"));
    let file = folder.path().join("dlock.prom");
    let run = |umask: &str| {
        let mut command = process::command("sh");
        let script =
            format!("umask {umask}; exec \"$0\" run -k \"$1\" --metrics-file \"$2\" -- true");
        command
            .args(["-c", &script])
            .arg(dlock::binary())
            .arg(&key)
            .arg(&file)
            .env("DLOCK_BACKEND", store(folder.path()));
        assert_eq!(Process::collect(command).wait(LIMIT).code(), 0);
        fs::metadata(&file).expect("metrics").permissions().mode() & 0o777
    };
    assert_eq!(["077", "777"].map(run), [0o644; 2]);
    fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).expect("a mode");
    assert_eq!(run("022"), 0o640, "the file's own mode stays");
}

#[test]
fn unwritable_metrics_stop_no_job() {
    let (folder, key) = (support::folder(), unique("job"));
    let missing = folder.path().join("none");
    let path = missing.join("dlock.prom");
    let run = |path: &Path| {
        dlock::run(
            &store(folder.path()),
            &[
                "run",
                "-k",
                &key,
                "--metrics-file",
                path.to_str().expect("UTF-8"),
                "--",
                "sh",
                "-c",
                "exit 3",
            ],
        )
    };
    let ended = run(&path);
    let said = format!(
        "dlock: {}: the metrics can't be written: no such file or directory\nhint: create the folder: mkdir -p {}\n",
        path.display(),
        missing.display()
    );
    assert_eq!((ended.code(), ended.stderr), (3, said));
    // A permanent lock on the folder by another process blocks no run.
    let _locked = fs::File::open(folder.path()).map(|folder| {
        rustix::fs::flock(&folder, rustix::fs::FlockOperation::LockExclusive).map(|()| folder)
    });
    let ended = run(&folder.path().join("dlock.prom"));
    assert_eq!(ended.code(), 3);
    assert!(
        ended
            .stderr
            .contains("another process keeps its folder locked")
            && ended.took < stretched(Duration::from_secs(20)),
        "{ended:?}"
    );
}
