use std::{fs, os::unix::fs::PermissionsExt as _};

use super::*;
use crate::lock::Fence;

fn verdict(key: &str, outcome: RunResult, status: u8) -> Verdict {
    Verdict::new(outcome, &Key::new(key).unwrap(), "local", status)
}

fn ran(key: &str, status: u8) -> Verdict {
    let started = Some("2026-11-20T02:00:00.5Z".parse().unwrap());
    let ran = Some(Duration::from_millis(1500));
    Verdict {
        started,
        ran,
        fence: Some(Fence(7)),
        ..verdict(key, RunResult::Ok, status)
    }
}

fn after(verdicts: &[Verdict]) -> String {
    let mut all = BTreeMap::new();
    for verdict in verdicts {
        count(
            all.entry(escape(verdict.key.as_str())).or_default(),
            verdict,
            1_795_140_000_250,
        );
    }
    render(&all)
}

#[test]
fn the_file_has_prometheus_text_format() {
    let waited = Verdict {
        waited: Duration::from_millis(250),
        ..verdict("job", RunResult::Busy, 0)
    };
    let text = after(&[
        ran("job", 0),
        ran("job", 3),
        waited,
        verdict("a\"b\\c", RunResult::Lost, 76),
    ]);
    let wanted = r#"# HELP dlock_run_last_try_timestamp_seconds When this host last ended a dlock run of the key, or skipped.
# TYPE dlock_run_last_try_timestamp_seconds gauge
dlock_run_last_try_timestamp_seconds{key="a\"b\\c"} 1795140000.25
dlock_run_last_try_timestamp_seconds{key="job"} 1795140000.25
# HELP dlock_run_last_start_timestamp_seconds When this host last started the command.
# TYPE dlock_run_last_start_timestamp_seconds gauge
dlock_run_last_start_timestamp_seconds{key="job"} 1795140000.5
# HELP dlock_run_last_success_timestamp_seconds When the command last ended with status 0 on this host.
# TYPE dlock_run_last_success_timestamp_seconds gauge
dlock_run_last_success_timestamp_seconds{key="job"} 1795140000.25
# HELP dlock_run_last_duration_seconds How long the command last ran.
# TYPE dlock_run_last_duration_seconds gauge
dlock_run_last_duration_seconds{key="job"} 1.5
# HELP dlock_run_last_exit_status The exit status of the last dlock run that did not skip.
# TYPE dlock_run_last_exit_status gauge
dlock_run_last_exit_status{key="a\"b\\c"} 76
dlock_run_last_exit_status{key="job"} 3
# HELP dlock_run_last_wait_seconds How long the lock was last waited for.
# TYPE dlock_run_last_wait_seconds gauge
dlock_run_last_wait_seconds{key="a\"b\\c"} 0
dlock_run_last_wait_seconds{key="job"} 0.25
# HELP dlock_run_runs_total Commands that were started and came to an end.
# TYPE dlock_run_runs_total counter
dlock_run_runs_total{key="a\"b\\c"} 0
dlock_run_runs_total{key="job"} 2
# HELP dlock_run_skipped_total Runs that did not happen because of others, by reason.
# TYPE dlock_run_skipped_total counter
dlock_run_skipped_total{key="a\"b\\c",reason="busy"} 0
dlock_run_skipped_total{key="job",reason="busy"} 1
# HELP dlock_run_lost_total Runs that lost the lock, or had it taken away.
# TYPE dlock_run_lost_total counter
dlock_run_lost_total{key="a\"b\\c"} 1
dlock_run_lost_total{key="job"} 0
"#;
    assert_eq!(text, wanted);
    assert_eq!(render(&parse(&text).unwrap()), text);
}

#[test]
fn skips_are_counted_by_option_without_its_duration() {
    let names = [
        "busy",
        "skew guard 5s",
        "at least 1h 30m",
        "once per 1m",
        "once",
    ]
    .map(reason);
    assert_eq!(
        names,
        ["busy", "skew_guard", "at_least", "once_per", "once"]
    );
}

#[test]
fn odd_keys_stay_distinct() {
    let odd = [
        "a\\",
        "a\",reason=\"b",
        "} 1",
        "# HELP x",
        " ",
        "é\u{2028}",
        "\\\\\"\"",
        "key=\"a\"",
    ];
    let text = after(&odd.map(|key| ran(key, 0)));
    let all = parse(&text).unwrap();
    assert_eq!(
        all.keys()
            .cloned()
            .collect::<std::collections::BTreeSet<_>>(),
        odd.map(escape).into()
    );
    assert!(all.values().all(|samples| samples.len() == 9));
    assert_eq!(render(&all), text);
}

#[test]
fn a_file_of_another_program_is_not_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("others.prom");
    let file = MetricsFile::new(&path).unwrap();
    for text in [
        "root:x:0:0:root:/root:/bin/bash\n",
        "# a comment\n",
        "node_x{key=\"a\"} 1\n",
        "dlock_run_x 1\n",
        "\n",
        "dlock_run_x{key=\"a\"} y\n",
    ] {
        fs::write(&path, text).unwrap();
        let error = file.ended(&ran("job", 0)).unwrap_err();
        assert!(
            file.hint(&error).contains("for dlock alone"),
            "{text}: {error}"
        );
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
    }
    // A newer dlock may have written more metrics; its next run writes them again.
    fs::write(
        &path,
        "# HELP dlock_run_more x\n# TYPE dlock_run_more gauge\ndlock_run_more{key=\"a\"} 1\n",
    )
    .unwrap();
    file.ended(&ran("job", 0)).unwrap();
    assert!(!fs::read_to_string(&path).unwrap().contains("more"));
}

#[test]
fn the_file_is_world_readable_and_leaves_no_temporary() {
    let folder = tempfile::tempdir().unwrap();
    let file = MetricsFile::new(&folder.path().join("dlock.prom")).unwrap();
    file.started(&Key::new("job").unwrap(), Timestamp::UNIX_EPOCH)
        .unwrap();
    file.ended(&ran("job", 0)).unwrap();
    let mode = fs::metadata(file.path()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o644 & !umask(), "{mode:o}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

fn umask() -> u32 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let umask = status
        .lines()
        .find_map(|line| line.strip_prefix("Umask:"))
        .unwrap();
    u32::from_str_radix(umask.trim(), 8).unwrap()
}

#[test]
fn non_files_are_refused_early_and_missing_folders_late() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(
        MetricsFile::new(folder.path()).unwrap_err(),
        "it is a folder"
    );
    assert!(
        MetricsFile::new(Path::new("/dev/null"))
            .unwrap_err()
            .contains("not a file")
    );
    assert!(MetricsFile::new(Path::new("")).is_err() && MetricsFile::new(Path::new("/")).is_err());
    let file = MetricsFile::new(&folder.path().join("none/dlock.prom")).unwrap();
    let error = file.ended(&ran("job", 0)).unwrap_err();
    assert_eq!(
        file.hint(&error),
        format!(
            "create the folder: mkdir -p {}/none",
            folder.path().display()
        )
    );
}

#[test]
fn the_oldest_keys_are_dropped() {
    let mut all: BTreeMap<String, Samples> = BTreeMap::new();
    for n in 0..MAX_KEYS as u64 + 5 {
        count(
            all.entry(format!("order-{n:05}")).or_default(),
            &ran("order", 0),
            2_000_000_000_000 + n,
        );
    }
    drop_oldest(&mut all);
    assert_eq!(
        (all.len(), all.keys().next().unwrap().as_str()),
        (MAX_KEYS, "order-00005")
    );
}
