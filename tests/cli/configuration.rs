//! The configuration file, and the precedence of the layers.

use snapbox::{assert_data_eq, file};

use crate::lab::Lab;

#[test]
fn configuration_errors_name_the_line() {
    let mut lab = Lab::new();
    lab.set("DLOCK_BACKEND", "");
    let path = lab.path("c.toml");
    lab.set("DLOCK_CONFIG", &path);
    lab.note("no such file").say("list");
    for text in [
        "backend = \"prod\n",
        "tll = 5\n",
        "backend = \"prod\"\n[backends.prod]\nurl = \"redis://h\"\npasword_file = \"/x\"\n",
        "[keys.\"sms-job\"]\nonce_per = \"1m\"\nonly_per = \"1m\"\n",
        "once_per = \"1m\"\n",
        "[keys.\"\"]\nttl = 60\n",
        "[keys.\"a\\u0000b\"]\nttl = 60\n",
        "[backends.local]\nurl = \"redis://h\"\n",
        "backends = 5\n",
        "ttl = [60]\n",
        "backend = \"prod\"\n",
        "backend = \"prod\"\n[backends.prdo]\nurl = \"redis://h\"\n",
        "backend = \"prod\"\n[backends.prod]\nttl = 5\n",
        "backend = \"prod\"\n[backends.prod]\nurl = \"redis://u:hunter2@h:x\"\n",
        "backend = \"reddis://h\"\n",
        "namespace = \"a/b\"\n",
        "backend_timeout = \"0\"\n",
        "color = \"sometimes\"\n",
        "quiet = \"perhaps\"\n",
    ] {
        lab.write("c.toml", 0o600, text);
        let shown: String = text.lines().map(|line| format!("\n#   {line}")).collect();
        lab.note(&format!("c.toml:{shown}")).say("list");
    }
    lab.note("of a key")
        .write("c.toml", 0o600, "[keys.job]\nttl = \"soon\"\n");
    lab.say("run -k job -- true");
    for text in [
        "once = true",
        "once = true\nkeep = \"30d\"\nonce_per = \"1m\"",
        "once_per = \".5\"",
        "once_per = \"1m\"\nskew_guard = \"40s\"",
        "retry_failed = 2",
    ] {
        lab.write("c.toml", 0o600, &format!("[keys.job]\n{text}\n"));
        let shown: String = text.lines().map(|line| format!("\n#   {line}")).collect();
        lab.note(&format!("c.toml: [keys.job]{shown}"))
            .say("run -k job -- true");
    }
    lab.note("a folder").set("DLOCK_CONFIG", "/").say("list");
    let text = lab.transcript();
    assert!(
        text.lines()
            .filter(|line| !line.starts_with('#'))
            .all(|line| !line.contains("hunter2"))
    );
    assert_data_eq!(text, file!["snapshots/configuration.txt"].raw());
    lab.assert_untouched();
}

#[test]
fn world_readable_secrets_are_refused() {
    let mut lab = Lab::new();
    let path = lab.path("c.toml");
    lab.set("DLOCK_BACKEND", "").set("DLOCK_CONFIG", &path);
    let with_password = "backend = \"p\"\nbackend_timeout = 0.2\n[backends.p]\nurl = \"redis://127.0.0.1:1\"\npassword = \"hunter2\"\n";
    for (mode, text) in [
        (0o644, with_password),
        (0o644, "backend = \"redis://:hunter2@127.0.0.1:1\"\n"),
        (0o640, with_password),
        (
            0o644,
            "backend = \"redis://127.0.0.1:1\"\nbackend_timeout = 0.2\n",
        ),
    ] {
        lab.write("c.toml", mode, text);
        lab.note(&format!(
            "c.toml has mode {mode:o}, {}",
            if text.contains("hunter2") {
                "with a password"
            } else {
                "without one"
            }
        ))
        .say("list");
    }
    lab.set("DLOCK_CONFIG", "")
        .set("DLOCK_BACKEND", "redis://127.0.0.1:1?backend_timeout=200ms");
    for (mode, text) in [
        (0o644, "hunter2\n"),
        (0o640, "hunter2\n"),
        (0o600, ""),
        (0o600, "two\nlines\n"),
    ] {
        let path = lab.write("pass", mode, text);
        lab.note(&format!("pass has mode {mode:o}: {text:?}"))
            .say_args(&[
                "list".as_ref(),
                "--password-file".as_ref(),
                path.as_os_str(),
            ]);
        lab.set("DLOCK_PASSWORD_FILE", &path)
            .say("list")
            .set("DLOCK_PASSWORD_FILE", "");
    }
    lab.say("list --password-file /nonexistent");
    lab.note("SQLite has none")
        .set("DLOCK_BACKEND", "sqlite:///nonexistent/x")
        .say("list --password-file /nonexistent");
    assert_data_eq!(lab.transcript(), file!["snapshots/secrets.txt"].raw());
}

#[test]
fn flag_beats_variable_beats_key_beats_backend_beats_top_level() {
    let mut lab = Lab::new();
    let store = lab.path("store.db").display().to_string();
    let text = format!(
        "backend = \"mine\"\nttl = 10\n[backends.mine]\nurl = \"sqlite://{store}\"\nttl = 20\n[keys.job]\nttl = 30\n[keys.other]\n"
    );
    let path = lab.write("dlock/config.toml", 0o644, &text);
    assert_eq!(path, lab.path("dlock/config.toml"));
    let home = lab.path("");
    lab.set("DLOCK_BACKEND", "").set("XDG_CONFIG_HOME", &home);
    let ttl = |lab: &Lab, arguments: &str| {
        let output = lab.run(format!("acquire --json {arguments}").split(' '));
        let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let key = json["key"].as_str().unwrap_or_default().to_owned();
        lab.line(&format!(
            "release {key} --token {}",
            json["token"]
                .as_str()
                .unwrap_or_else(|| panic!("{output:?}"))
        ));
        json["ttl_ms"].as_u64().unwrap() / 1000
    };
    assert_eq!(ttl(&lab, "other"), 20);
    assert_eq!(ttl(&lab, "job"), 30);
    lab.set("DLOCK_TTL", "40");
    assert_eq!(ttl(&lab, "job"), 40);
    assert_eq!(ttl(&lab, "job --ttl 50"), 50);
    lab.set("DLOCK_TTL", "");
    assert_eq!(ttl(&lab, "job"), 30, "an empty variable counts as unset");
    let url = format!("sqlite://{store}?ttl=25");
    assert_eq!(ttl(&lab, &format!("other -b {url}")), 25);
    assert_eq!(ttl(&lab, &format!("job -b {url}")), 30);
    let other = lab.write(
        "other.toml",
        0o644,
        &format!("backend = \"sqlite://{store}\"\nttl = 60\n"),
    );
    assert_eq!(
        ttl(&lab, &format!("job --config {}", other.display())),
        60,
        "files are not merged"
    );
    assert!(
        lab.line("inspect job").contains("mine (sqlite://"),
        "the name is shown"
    );
}

/// The test mounts its own `/etc`, because it must not depend on the host's.
#[test]
fn the_users_file_is_completed_by_the_one_in_etc() {
    let mut lab = Lab::new();
    let store = lab.path("store.db").display().to_string();
    lab.write(
        "etc/dlock/config.toml",
        0o644,
        &format!("backend = \"prod\"\n[backends.prod]\nurl = \"sqlite://{store}\"\nttl = 20\n"),
    );
    lab.write(
        ".config/dlock/config.toml",
        0o644,
        "# mine\n[keys.job]\nwait = 3\n",
    );
    std::fs::copy("/etc/passwd", lab.path("etc/passwd")).unwrap();
    lab.set("DLOCK_BACKEND", "");
    let mut command = std::process::Command::new("unshare");
    command
        .args([
            "--mount",
            "sh",
            "-c",
            "mount --bind \"$0\" /etc && exec \"$@\"",
        ])
        .arg(lab.path("etc"));
    command
        .arg(env!("CARGO_BIN_EXE_dlock"))
        .args(["explain", "job", "--json"]);
    let with_env = lab.dlock([""; 0]);
    command.env_clear().envs(
        with_env
            .get_envs()
            .filter_map(|(name, value)| Some((name, value?))),
    );
    let output = command.output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    if stderr.contains("unshare:") || stderr.contains("mount:") {
        assert!(std::env::var_os("DLOCK_TEST_REQUIRE").is_none(), "{stderr}");
        eprintln!("SKIPPED the_users_file_is_completed_by_the_one_in_etc: {stderr}");
        return;
    }
    let report: serde_json::Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
    assert_eq!(
        (&report["would"], &report["backend"]),
        (&"run".into(), &format!("sqlite://{store}").into()),
        "{report}"
    );
    let from = |name: &str| {
        let settings = report["settings"].as_array().unwrap().iter();
        settings
            .filter(|setting| setting["name"] == name)
            .map(|setting| setting["from"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(from("backend"), ["/etc/dlock/config.toml:1"], "{report}");
    assert_eq!(from("ttl"), ["/etc/dlock/config.toml:4"], "{report}");
    assert_eq!(
        from("wait"),
        [format!(
            "{}:3",
            lab.path(".config/dlock/config.toml").display()
        )],
        "{report}"
    );
}

#[test]
fn a_keys_policy_applies_to_run() {
    let mut lab = Lab::new();
    let text = "[keys.job]\nconflict_exit_code = 3\ndescribe = \"from the file\"\n";
    let path = lab.write("c.toml", 0o644, text);
    lab.set("DLOCK_CONFIG", &path);
    let token = lab.line("acquire job --ttl 60");
    assert_eq!(
        lab.run("run -k job -- true".split(' ')).status.code(),
        Some(3)
    );
    assert_eq!(
        lab.run("run -k job -E 4 -- true".split(' ')).status.code(),
        Some(4)
    );
    let inspected = lab.line("inspect job");
    assert!(
        inspected.contains("note     \"from the file\""),
        "{inspected}"
    );
    lab.line(&format!("release job --token {token}"));
}

#[test]
fn the_default_store_warns_of_its_scope_unless_requested() {
    let mut lab = Lab::new();
    let state = lab.path("state");
    lab.set("DLOCK_BACKEND", "").set("XDG_STATE_HOME", &state);
    let root = rustix::process::geteuid().is_root();
    let dlock = crate::lab::copy_of_dlock(&lab.path(""));
    let mut run = |words: &str| {
        // Root's default is /var/lib/dlock on the host, so root runs the test as another user.
        let output = if root {
            std::os::unix::fs::chown(lab.path(""), Some(65534), Some(65534)).unwrap();
            let mut command = lab.dlock(["--reuid=65534", "--regid=65534", "--clear-groups"]);
            let env: Vec<_> = command
                .get_envs()
                .map(|(name, value)| (name.to_owned(), value.unwrap().to_owned()))
                .collect();
            command = std::process::Command::new("setpriv");
            command
                .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
                .arg(&dlock)
                .args(words.split(' '))
                .env_clear()
                .envs(env);
            command.stdin(std::process::Stdio::null()).output().unwrap()
        } else {
            lab.run(words.split(' '))
        };
        lab.add(&format!("$ dlock {words}\n"), &output);
    };
    run("run -k x -- echo done");
    run("run -q -k x -- echo done");
    run("run -b local -k x -- echo done");
    run("list");
    assert_data_eq!(lab.transcript(), file!["snapshots/default.txt"].raw());
    assert!(lab.path("state/dlock/dlock.db").exists());
}

#[test]
fn root_refuses_another_users_file() {
    if !rustix::process::geteuid().is_root() {
        eprintln!(
            "SKIPPED root_refuses_another_users_file: only root can make another user's file"
        );
        return;
    }
    let mut lab = Lab::new();
    let home = lab.path("home");
    let file = lab.write(
        "home/.config/dlock/config.toml",
        0o600,
        "[keys.job]\nttl = \"90s\"\n",
    );
    lab.set("HOME", &home);
    assert_eq!(lab.run(["list"]).status.code(), Some(0));
    std::os::unix::fs::chown(&file, Some(65534), None).unwrap();
    let refused = lab.run(["list"]);
    assert_eq!(refused.status.code(), Some(78), "{refused:?}");
    assert!(
        String::from_utf8_lossy(&refused.stderr).contains("user 65534 owns it"),
        "{refused:?}"
    );
}
