//! Real cron daemons, which start jobs with an almost empty environment.
//!
//! Each daemon runs in a mount namespace with its own /etc, /run, /dev/log and mail program, and in
//! a PID namespace, so that no process or file remains.

use std::{
    fs,
    os::unix::{fs::PermissionsExt as _, net::UnixDatagram},
    path::{Path, PathBuf},
    process::Stdio,
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use crate::manual::readme_blocks;
use crate::support::{
    self,
    dlock::{self, unique},
    process::{self, Process, Sweep},
    program,
    redis::Redis,
};

/// Mounts private folders over the system's, and executes cron. `$1` is the node's folder, `$2` its
/// name, `$3` its clock error, `$4` dlock.
const ENTER: &str = r#"
set -e
cd "$1"
cp -a /etc/. etc/
# What this machine's own crontabs say is not for here.
rm -rf etc/crontab etc/cron.d/*
cp -a private/. etc/
# Nor what its user has configured.
mkdir home
sed -i "s|^\(root:.*\):[^:]*:\([^:]*\)$|\1:$1/home:\2|" etc/passwd
mkdir real-sbin
mount --bind /usr/sbin real-sbin
for program in real-sbin/*; do ln -s "$1/$program" sbin/; done
ln -sf "$1/sendmail" sbin/sendmail
for device in null zero full random urandom; do touch dev/$device; mount --bind /dev/$device dev/$device; done
# The node's folder may be there.
mkdir dev/shm
mount --rbind /dev/shm dev/shm
mkdir crontabs
install -m 600 crontab crontabs/root
mount -t tmpfs none /run
mount --bind crontabs /var/spool/cron/crontabs
mount --bind etc /etc
mount --rbind dev /dev
mount --bind sbin /usr/sbin
# A machine on which dlock was just installed and never ran.
mount -t tmpfs none /var/lib
mkdir bin
touch bin/dlock
mount --bind "$4" bin/dlock
mount --rbind bin /usr/local/bin
hostname "$2"
[ -z "$3" ] || export LD_PRELOAD=/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1 FAKETIME="$3"
exec "$1/real-sbin/cron" -f
"#;

/// The environment of a program started by cron, without the variables that dlock adds.
const FROM_CRON: [&str; 7] = ["HOME", "LANG", "LOGNAME", "PATH", "PWD", "SHELL", "_"];

/// A host with its own cron.
struct Node {
    cron: Process,
    log: UnixDatagram,
    folder: PathBuf,
}

impl Node {
    /// Starts cron with this crontab in a world-readable folder.
    fn start(folder: &Path, name: &str, clock: &str, backend: &str, crontab: &str) -> Self {
        let at = folder.join(name);
        for name in ["etc", "private/dlock", "dev", "sbin", "mail"] {
            fs::create_dir_all(at.join(name)).expect("a folder");
        }
        let config = format!(
            "backend = \"prod\"\non_event = \"cat >> {}/events\"\n[backends.prod]\nurl = \"{backend}\"\n",
            at.display()
        );
        fs::write(at.join("private/dlock/config.toml"), config).expect("the configuration");
        fs::write(at.join("private/crontab"), "").expect("the system's crontab");
        program::write(
            at.join("sendmail"),
            &format!("#!/bin/sh\ncat > {}/mail/$$\n", at.display()),
        );
        fs::write(at.join("crontab"), crontab).expect("the crontab");
        let log = UnixDatagram::bind(at.join("dev/log")).expect("the syslog socket");
        log.set_read_timeout(Some(Duration::from_millis(100)))
            .expect("a timeout");
        let mut command = process::command("unshare");
        command.args([
            "--mount",
            "--pid",
            "--uts",
            "--fork",
            "--kill-child",
            "--mount-proc",
            "sh",
            "-c",
            ENTER,
            "enter",
        ]);
        command
            .arg(&at)
            .args([name, clock])
            .arg(dlock::binary())
            .stdin(Stdio::null());
        Self {
            cron: Process::collect(command),
            log,
            folder: at,
        }
    }
}

/// Whether everything that such a host needs is available.
fn may_run(name: &str) -> bool {
    if !support::have(name, &["cron", "unshare", Redis::PROGRAM]) {
        return false;
    }
    if !may_unshare() {
        support::skip(name, "only root can make namespaces here");
        return false;
    }
    true
}

#[test]
fn three_crontab_lines_run_the_job_once() {
    if !may_run("three_crontab_lines_run_the_job_once") {
        return;
    }
    let server = Redis::plain();
    let (folder, key) = (support::folder(), unique("sms-job"));
    let _sweep = Sweep(key.clone());
    let at = folder.path();
    fs::set_permissions(at, fs::Permissions::from_mode(0o755)).expect("readable");
    program::write(
        at.join("job"),
        &format!(
            "#!/bin/sh\necho \"$DLOCK_FENCE\" >> {0}/ran\nenv > {0}/environment\nsleep 3\n",
            at.display()
        ),
    );
    let line = format!(
        "* * * * * {} run --key {key} -- {}/job\n",
        dlock::binary().display(),
        at.display()
    );
    // The fourth line proves that cron would mail any output.
    let crontab = format!("{line}{line}{line}* * * * * echo control\n");
    let mut node = Node::start(at, "web1", "", &server.url(), &crontab);

    let lines = listen(&mut node, &key, 3);
    let (said, count) = (
        |what: &str| lines.iter().filter(|line| line.contains(what)).count(),
        lines.len(),
    );
    assert_eq!(
        (said(" ran "), said(" skipped busy "), count),
        (1, 2, 3),
        "{lines:?}"
    );
    let ran = support::lines(&at.join("ran"));
    assert_eq!(ran.len(), 1, "the job ran {} times", ran.len());
    for line in lines.iter().filter(|line| line.contains("skipped")) {
        assert!(
            line.contains(&format!("fence={}", ran[0])) && line.contains("holder=web1"),
            "{line}"
        );
    }
    support::must(
        "the control line's output is mailed",
        Duration::from_secs(5),
        || !mails(&node.folder).is_empty(),
    );
    let mails = mails(&node.folder);
    assert!(
        mails.len() == 1 && mails[0].contains("control"),
        "cron mailed: {mails:?}"
    );
    let environment = support::lines(&at.join("environment"));
    let names: Vec<_> = environment
        .iter()
        .filter_map(|line| Some(line.split_once('=')?.0))
        .collect();
    let strange = names
        .iter()
        .find(|name| !FROM_CRON.contains(name) && !name.starts_with("DLOCK_"));
    assert_eq!(
        strange, None,
        "this is not cron's environment: {environment:?}"
    );
    let events = support::lines(&node.folder.join("events"));
    let report = |what: &str| {
        events
            .iter()
            .filter(|line| line.contains(&format!("\"event\":\"{what}\"")))
            .count()
    };
    assert_eq!(
        (
            report("acquired"),
            report("ended"),
            report("skipped"),
            events.len()
        ),
        (1, 1, 2, 4),
        "{events:?}"
    );
    assert!(
        ["DLOCK_KEY", "DLOCK_TOKEN", "DLOCK_FENCE", "DLOCK_HELD"]
            .iter()
            .all(|name| names.contains(name)),
        "{names:?}"
    );
}

/// The clocks of three nodes. They differ by less than the skew guard, and by more than the job's
/// length.
const CLOCKS: [(&str, &str); 3] = [("web1", ""), ("web2", "-1.5s"), ("web3", "+2s")];

#[test]
fn three_nodes_whose_clocks_differ_run_each_tick_once() {
    let name = "three_nodes_whose_clocks_differ_run_each_tick_once";
    if !may_run(name) {
        return;
    }
    if !Path::new("/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1").exists() {
        return support::skip(name, "libfaketime is not installed");
    }
    let server = Redis::plain();
    let (folder, guarded, once) = (support::folder(), unique("guarded"), unique("once-per"));
    let _sweeps = [Sweep(guarded.clone()), Sweep(once.clone())];
    let at = folder.path();
    fs::set_permissions(at, fs::Permissions::from_mode(0o755)).expect("readable");
    program::write(
        at.join("job"),
        &format!(
            "#!/bin/sh\necho \"$DLOCK_KEY $DLOCK_FENCE $(hostname)\" >> {}/ran\n",
            at.display()
        ),
    );
    let (dlock, job) = (
        dlock::binary().display().to_string(),
        at.join("job").display().to_string(),
    );
    let crontab = format!(
        "* * * * * {dlock} run --key {guarded} -- {job}\n* * * * * {dlock} run --key {once} --skew-guard 0 --once-per 1m -- {job}\n"
    );
    // The first tick is one for all nodes, not of a minute that has already begun on some of them.
    let second = || {
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .expect("after 1970")
            .as_secs()
            % 60
    };
    while !(5..50).contains(&second()) {
        thread::sleep(Duration::from_millis(100));
    }
    let mut nodes: Vec<Node> = CLOCKS
        .iter()
        .map(|(name, clock)| Node::start(at, name, clock, &server.url(), &crontab))
        .collect();

    // Two ticks: each node reports both jobs.
    let began = Instant::now();
    let mut lines: Vec<String> = Vec::new();
    let mut buffer = [0; 4096];
    while lines.len() < 2 * 2 * CLOCKS.len() {
        assert!(
            began.elapsed() < Duration::from_secs(150),
            "no more than {lines:#?}"
        );
        for node in &mut nodes {
            assert!(!node.cron.has_ended(), "cron ended");
            let Ok(length) = node.log.recv(&mut buffer) else {
                continue;
            };
            let line = String::from_utf8_lossy(&buffer[..length]).into_owned();
            if line.contains(" dlock[") {
                lines.push(line);
            }
        }
    }
    let ran = support::lines(&at.join("ran"));
    for (key, reason) in [(&guarded, "skew guard 5s"), (&once, "once per 1m")] {
        let runs: Vec<_> = ran
            .iter()
            .filter(|line| line.starts_with(&format!("{key} ")))
            .collect();
        assert_eq!(runs.len(), 2, "{key} in two ticks: {ran:?}; {lines:#?}");
        let skips: Vec<_> = lines
            .iter()
            .filter(|line| line.contains(key.as_str()) && line.contains("skipped"))
            .collect();
        assert_eq!(skips.len(), 4, "{lines:#?}");
        for run in runs {
            let [_, fence, host] = run.split(' ').collect::<Vec<_>>()[..] else {
                panic!("{run}")
            };
            let report = |line: &&&String| {
                line.contains(&format!("fence={fence}")) && line.contains(&format!("holder={host}"))
            };
            assert_eq!(
                skips.iter().filter(report).count(),
                2,
                "each skip names the host and the fence of the run: {skips:#?}"
            );
        }
        let named = skips
            .iter()
            .filter(|line| line.contains(&format!("skipped \"{reason}\"")))
            .count();
        assert_eq!(named, 4, "{skips:#?}");
        let report = dlock::run(&server.url(), &["history", key, "--json"]);
        let report: serde_json::Value = serde_json::from_str(&report.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}", report.stderr));
        let counted: u64 = report["skips"]
            .as_array()
            .expect("skips")
            .iter()
            .filter_map(|skip| skip["count"].as_u64())
            .sum();
        assert_eq!(counted, 4, "{report}");
    }
    assert!(
        nodes.iter().all(|node| mails(&node.folder).is_empty()),
        "nothing is mailed"
    );
}

/// README's crontab, except for the path of its output file.
#[test]
fn the_readmes_crontab_works_on_a_fresh_machine() {
    if !may_run("the_readmes_crontab_works_on_a_fresh_machine") {
        return;
    }
    let folder = support::folder();
    let at = folder.path();
    fs::set_permissions(at, fs::Permissions::from_mode(0o755)).expect("readable");
    let crontab = readme_blocks("crontab")
        .into_iter()
        .find(|block| block.contains("* * * * *"))
        .expect("a crontab");
    assert!(
        crontab.contains("DLOCK_BACKEND=local\n") && crontab.contains("/tmp/hello"),
        "{crontab}"
    );
    let crontab = crontab.replace("/tmp/hello", &at.join("hello").display().to_string());
    let mut node = Node::start(at, "fresh1", "", "local", &crontab);
    let lines = listen(&mut node, " hello ", 1);
    assert!(
        lines.len() == 1 && lines[0].contains(" ran status=0 "),
        "{lines:?}"
    );
    assert_eq!(support::lines(&at.join("hello")).len(), 1);
    assert!(mails(&node.folder).is_empty(), "{:?}", mails(&node.folder));
}

/// Returns dlock's syslog lines about this key, from the first one until the jobs can have ended.
fn listen(node: &mut Node, key: &str, jobs: usize) -> Vec<String> {
    let began = Instant::now();
    let mut first: Option<Instant> = None;
    let mut lines = Vec::new();
    let mut others = Vec::new();
    let mut buffer = [0; 4096];
    while first.is_none_or(|first| first.elapsed() < Duration::from_secs(8)) {
        assert!(!node.cron.has_ended(), "cron ended");
        let limit = Duration::from_secs(75);
        assert!(
            began.elapsed() < limit,
            "no job reported in a minute; in the log: {others:#?}; mailed: {:#?}",
            mails(&node.folder)
        );
        let Ok(length) = node.log.recv(&mut buffer) else {
            continue;
        };
        let line = String::from_utf8_lossy(&buffer[..length]).into_owned();
        if line.contains(" dlock[") && line.contains(key) {
            first.get_or_insert_with(Instant::now);
            lines.push(line);
        } else {
            others.push(line);
        }
        // The next minute must have no line.
        if lines.len() == jobs
            && first.is_some_and(|first| first.elapsed() > Duration::from_secs(4))
        {
            break;
        }
    }
    lines
}

fn mails(folder: &Path) -> Vec<String> {
    let files = fs::read_dir(folder.join("mail")).expect("the mails");
    files
        .filter_map(|file| fs::read_to_string(file.ok()?.path()).ok())
        .filter(|text| !text.is_empty())
        .collect()
}

fn may_unshare() -> bool {
    let mut command = process::command("unshare");
    command.args([
        "--mount", "--pid", "--uts", "--fork", "mount", "-t", "tmpfs", "none", "/run",
    ]);
    Process::collect(command)
        .wait(Duration::from_secs(10))
        .status
        .success()
}
