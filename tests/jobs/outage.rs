//! The output while a store doesn't answer, or when it refuses the user.

use std::{net::TcpListener, time::Duration};

use crate::support::{
    self,
    dlock::{self, unique},
    process::{self, Process},
    redis::Redis,
};

const LIMIT: Duration = Duration::from_secs(30);

/// Returns the output of `dlock` on a terminal, line by line as drawn.
fn on_a_terminal(line: &str) -> String {
    let mut command = process::command("script");
    command.args([
        "-qec",
        &format!("{} {line}", dlock::binary().display()),
        "/dev/null",
    ]);
    command
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("HOME", "/nonexistent")
        .env("TERM", "xterm");
    Process::collect(command)
        .wait(LIMIT)
        .stdout
        .replace("\r\u{1b}[K", "\n")
}

#[test]
fn a_terminal_shows_that_the_store_does_not_answer() {
    if !support::have(
        "a_terminal_shows_that_the_store_does_not_answer",
        &["script"],
    ) {
        return;
    }
    let (silent, key) = (
        TcpListener::bind("127.0.0.1:0").expect("a port"),
        unique("outage"),
    );
    let silent = format!(
        "127.0.0.1:{}",
        silent.local_addr().expect("an address").port()
    );
    for command in [format!("inspect {key}"), format!("run -k {key} true")] {
        let (name, rest) = command.split_once(' ').expect("a command");
        // Longer than a busy machine needs to draw the first line.
        let (refused, unanswered) = (
            support::stretched(Duration::from_secs(5)),
            support::stretched(Duration::from_secs(3)),
        );
        let said = on_a_terminal(&format!(
            "{name} -b redis://127.0.0.1:1 --backend-timeout {}s {rest}",
            refused.as_secs()
        ));
        let line = said.lines().find_map(|line| {
            line.strip_prefix("dlock: redis://127.0.0.1:1: nothing listens there; trying for ")
        });
        let left = line.and_then(|rest| rest.strip_suffix("s more")?.parse().ok());
        assert!(
            left.is_some_and(|left| (1..refused.as_secs()).contains(&left)),
            "{said}"
        );
        let said = on_a_terminal(&format!(
            "{name} -b rediss://{silent} --backend-timeout {}s {rest}",
            unanswered.as_secs()
        ));
        assert!(
            said.contains(&format!(
                "dlock: rediss://{silent}: no answer yet; trying for "
            )),
            "{said}"
        );
    }
    // Without a terminal nothing is drawn, and the hint names the expected service.
    let ended = dlock::run(
        &format!("rediss://{silent}"),
        &["inspect", &key, "--backend-timeout", "2s"],
    );
    assert!(
        !ended.stderr.contains("trying")
            && ended
                .stderr
                .contains("does Redis answer on this port, with TLS?"),
        "{}",
        ended.stderr
    );
}

/// Output after the store's answer starts on a line of its own.
#[test]
fn the_status_line_is_cleared_before_other_output() {
    if !support::have(
        "the_status_line_is_cleared_before_other_output",
        &[Redis::PROGRAM, "script"],
    ) {
        return;
    }
    let (server, key, folder) = (Redis::plain(), unique("frozen"), support::folder());
    assert_eq!(
        dlock::run(&server.url(), &["acquire", &key, "--ttl", "5m"]).code(),
        0
    );
    for (at, command) in ["inspect", "break --yes --now"].into_iter().enumerate() {
        server.freeze();
        let (copy, mut script) = (
            folder.path().join(at.to_string()),
            process::command("script"),
        );
        script
            .args([
                "-qefc",
                &format!(
                    "{} {command} {key} -b {}",
                    dlock::binary().display(),
                    server.url()
                ),
            ])
            .arg(&copy);
        script
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("HOME", "/nonexistent")
            .env("TERM", "xterm");
        let script = Process::collect(script);
        support::must("the status line appears", LIMIT, || {
            std::fs::read(&copy)
                .is_ok_and(|text| String::from_utf8_lossy(&text).contains("no answer yet"))
        });
        server.thaw();
        let ended = script.wait(LIMIT);
        let said = ended.stdout.replace("\r\u{1b}[K", "\n");
        assert!(ended.code() == 0 && said.contains(&key), "{said}");
        assert!(
            said.lines()
                .filter(|line| line.contains("trying for"))
                .all(|line| line.trim_end().ends_with(" more")),
            "{said}"
        );
    }
}

#[test]
fn a_refused_user_is_named_and_the_password_is_not() {
    if !support::have(
        "a_refused_user_is_named_and_the_password_is_not",
        &[Redis::PROGRAM],
    ) {
        return;
    }
    let server = Redis::plain();
    server.command(&["ACL", "SETUSER", "bob", "on", ">right", "~*", "&*", "+@all"]);
    for arguments in [
        ["inspect", "job"].as_slice(),
        &["run", "-k", "job", "--", "true"],
    ] {
        let mut command = dlock::command();
        command
            .args(arguments)
            .env(
                "DLOCK_BACKEND",
                server.url().replace("redis://", "redis://bob@"),
            )
            .env("DLOCK_PASSWORD", "wrong-secret");
        let ended = Process::collect(command).wait(LIMIT);
        assert_eq!(ended.code(), 78, "{}", ended.stderr);
        assert!(
            ended
                .stderr
                .contains("refused the user or the password (user bob)"),
            "{}",
            ended.stderr
        );
        assert!(!ended.stderr.contains("wrong-secret"), "{}", ended.stderr);
    }
}
