//! A real cron daemon, which starts three jobs in one minute with next to nothing in their environment.
//!
//! It runs in a mount namespace with an /etc, a /run, a /dev/log and a mail program of its own, and in a PID
//! namespace, so that nothing of it stays.

use std::{
    fs,
    os::unix::{fs::PermissionsExt as _, net::UnixDatagram},
    path::Path,
    process::Stdio,
    time::{Duration, Instant},
};

use crate::support::{
    self,
    dlock::{self, unique},
    process::{self, Process, Sweep},
    redis::Redis,
};

/// Puts private folders over the system's, and becomes cron. `$1` is the test's folder.
const ENTER: &str = r#"
set -e
cd "$1"
cp -a /etc/. etc/
# What this machine's own crontabs say is not for here.
rm -rf etc/crontab etc/cron.d/*
cp -a private/. etc/
mkdir real-sbin
mount --bind /usr/sbin real-sbin
for program in real-sbin/*; do ln -s "$1/$program" sbin/; done
ln -sf "$1/sendmail" sbin/sendmail
for device in null zero full random urandom; do touch dev/$device; mount --bind /dev/$device dev/$device; done
mkdir crontabs
install -m 600 crontab crontabs/root
mount -t tmpfs none /run
mount --bind crontabs /var/spool/cron/crontabs
mount --bind etc /etc
mount --rbind dev /dev
mount --bind sbin /usr/sbin
exec "$1/real-sbin/cron" -f
"#;

/// The whole environment that a program started by cron sees, besides what dlock adds.
const FROM_CRON: [&str; 7] = ["HOME", "LANG", "LOGNAME", "PATH", "PWD", "SHELL", "_"];

#[test]
fn three_crontab_lines_run_the_job_once() {
    let name = "three_crontab_lines_run_the_job_once";
    if !support::have(name, &["cron", "unshare", Redis::PROGRAM]) {
        return;
    }
    if !may_unshare() {
        support::skip(name, "namespaces are for root only here");
        return;
    }
    let server = Redis::plain();
    let (folder, key) = (support::folder(), unique("sms-job"));
    let _sweep = Sweep(key.clone());
    let at = folder.path();
    fs::set_permissions(at, fs::Permissions::from_mode(0o755)).expect("readable");
    for name in ["etc", "private/dlock", "dev", "sbin", "mail"] {
        fs::create_dir_all(at.join(name)).expect("a folder");
    }
    let config = format!("backend = \"prod\"\n[backends.prod]\nurl = \"{}\"\n", server.url());
    fs::write(at.join("private/dlock/config.toml"), config).expect("the configuration");
    fs::write(at.join("private/crontab"), "").expect("the system's crontab");
    let program = |name: &str, text: &str| {
        fs::write(at.join(name), text).expect("a program");
        fs::set_permissions(at.join(name), fs::Permissions::from_mode(0o755)).expect("executable");
    };
    program("sendmail", &format!("#!/bin/sh\ncat > {}/mail/$$\n", at.display()));
    program("job", &format!("#!/bin/sh\necho \"$DLOCK_FENCE\" >> {0}/ran\nenv > {0}/environment\nsleep 3\n", at.display()));
    let line = format!("* * * * * {} run --key {key} -- {}/job\n", dlock::binary().display(), at.display());
    // The fourth line shows that cron would mail what is printed.
    fs::write(at.join("crontab"), format!("{line}{line}{line}* * * * * echo control\n")).expect("the crontab");

    let log = UnixDatagram::bind(at.join("dev/log")).expect("the syslog socket");
    log.set_read_timeout(Some(Duration::from_millis(100))).expect("a timeout");
    let mut command = process::command("unshare");
    command.args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", ENTER, "enter"]).arg(at);
    command.stdin(Stdio::null());
    let mut cron = Process::collect(command);

    let lines = listen(&log, at, &key, &mut cron);
    let (said, count) = (|what: &str| lines.iter().filter(|line| line.contains(what)).count(), lines.len());
    assert_eq!((said(" ran "), said(" skipped busy "), count), (1, 2, 3), "{lines:?}");
    let ran = support::lines(&at.join("ran"));
    assert_eq!(ran.len(), 1, "the job ran {} times", ran.len());
    for line in lines.iter().filter(|line| line.contains("skipped")) {
        assert!(line.contains(&format!("fence={}", ran[0])) && line.contains("holder="), "{line}");
    }
    support::must("the control is mailed", Duration::from_secs(5), || !mails(at).is_empty());
    let mails = mails(at);
    assert!(mails.len() == 1 && mails[0].contains("control"), "cron mailed: {mails:?}");
    let environment = support::lines(&at.join("environment"));
    let names: Vec<_> = environment.iter().filter_map(|line| Some(line.split_once('=')?.0)).collect();
    let strange = names.iter().find(|name| !FROM_CRON.contains(name) && !name.starts_with("DLOCK_"));
    assert_eq!(strange, None, "this is not cron's environment: {environment:?}");
    assert!(["DLOCK_KEY", "DLOCK_TOKEN", "DLOCK_FENCE", "DLOCK_HELD"].iter().all(|name| names.contains(name)), "{names:?}");
}

/// What dlock told syslog of this key, from the first line on until the three jobs can have ended.
fn listen(log: &UnixDatagram, folder: &Path, key: &str, cron: &mut Process) -> Vec<String> {
    let began = Instant::now();
    let mut first: Option<Instant> = None;
    let mut lines = Vec::new();
    let mut others = Vec::new();
    let mut buffer = [0; 4096];
    while first.is_none_or(|first| first.elapsed() < Duration::from_secs(8)) {
        assert!(!cron.has_ended(), "cron ended");
        let patience = Duration::from_secs(75);
        assert!(began.elapsed() < patience, "no job told of itself in a minute; in the log: {others:#?}; mailed: {:#?}", mails(folder));
        let Ok(length) = log.recv(&mut buffer) else { continue };
        let line = String::from_utf8_lossy(&buffer[..length]).into_owned();
        if line.contains(" dlock[") && line.contains(key) {
            first.get_or_insert_with(Instant::now);
            lines.push(line);
        } else {
            others.push(line);
        }
        // Of the next minute there must be nothing.
        if lines.len() == 3 && first.is_some_and(|first| first.elapsed() > Duration::from_secs(4)) {
            break;
        }
    }
    lines
}

fn mails(folder: &Path) -> Vec<String> {
    let files = fs::read_dir(folder.join("mail")).expect("the mails");
    files.filter_map(|file| fs::read_to_string(file.ok()?.path()).ok()).filter(|text| !text.is_empty()).collect()
}

fn may_unshare() -> bool {
    let mut command = process::command("unshare");
    command.args(["--mount", "--pid", "--fork", "mount", "-t", "tmpfs", "none", "/run"]);
    Process::collect(command).wait(Duration::from_secs(10)).status.success()
}
