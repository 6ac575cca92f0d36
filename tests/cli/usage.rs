//! Usage errors: one line, a hint, the right status, and no store touched.

use std::{ffi::OsStr, os::unix::ffi::OsStrExt as _};

use snapbox::{assert_data_eq, file};

use crate::lab::Lab;

#[test]
fn arguments() {
    let mut lab = Lab::new();
    lab.say("")
        .say("bogus")
        .say("rnu")
        .say("verify x")
        .say("run")
        .say("run -k")
        .say("run -k x")
        .say("run -k x --");
    lab.say_args(&["run", "-k", "x", "--", ""]);
    lab.say("run -k x --bogus -- true")
        .say("run -k x --tll 5 -- true")
        .say("run -k x -k y -k x -- true")
        .say("run x true");
    lab.say("run -k x -w 5 -n -- true")
        .say("run -k x -w soon -- true")
        .say("run -k x -w -1 -- true");
    lab.say("run -k x -E 256 -- true")
        .say("run -k x -E -1 -- true");
    lab.say("run -k x --leftover foo -- true")
        .say("run -k x --contain foo -- true")
        .say("run -k x --log foo -- true");
    lab.say("run -k x --on-lost kil -- true")
        .say("run -k x --on-lost signal:KILL -- true")
        .say("run -k x --on-lost signal:SIG -- true");
    lab.say("run -k x -c true true");
    lab.say_args(&[
        "run",
        "-k",
        "x",
        "--describe",
        &"d".repeat(501),
        "--",
        "true",
    ]);
    lab.say_args(&["run", "-k", "x", "--describe", "a\nb", "--", "true"]);
    lab.say("run -k x --status-file /dev/null -- true")
        .say("run -k x --status-file /nonexistent/f -- true");
    lab.say("run -k x --metrics-file / -- true")
        .say("run -k x --metrics-file /tmp -- true")
        .say("run -k x --metrics-file /dev/null -- true");
    lab.say("run -k x --once -- true")
        .say("run -k x --keep 1d -- true")
        .say("run -k x --once --keep 1d --once-per 1m -- true");
    lab.say("run -k x --once --keep 0 -- true")
        .say("run -k x --once-per .5 -- true")
        .say("run -k x --once-per soon -- true");
    lab.say("run -k x --retry-failed 2 -- true")
        .say("run -k x --retry-crashed -- true");
    lab.say("run -k x --once-per 1m --retry-failed many -- true")
        .say("run -k x --once-per 1m --retry-failed -1 -- true");
    lab.say("run -k x --once-per 1m --skew-guard 31s -- true")
        .say("run -k x --skew-guard 25h -- true");
    lab.say("run -k x -w 5 --skew-guard 9s -- true")
        .say("run -k x -s --once-per 1m -- true")
        .say("run -k x -s --at-least 1m -- true");
    lab.say("run -k x --at-least -1 -- true")
        .say("run -k x --at-least 367d -- true")
        .say("run -k x --warn-held soon -- true");
    lab.say("run -k x --max-runtime soon -- true")
        .say("run -k x --max-runtime -1 -- true");
    lab.say("inspect")
        .say("forget")
        .say("inspect x y")
        .say("inspect x -k y")
        .say("inspect x --ttl 5")
        .say("list a b");
    lab.say("acquire x")
        .say("acquire x --ttl 5 -w 5 -n")
        .say("acquire -k x -k y -k x --ttl 5")
        .say("acquire x -k y --ttl 5");
    lab.say("run -k x --permits 0 -- true")
        .say("run -k x --permits 1001 -- true")
        .say("run -k x --limit many -- true");
    lab.say("run -k x -s --permits 2 -- true")
        .say("run -k x -x --permits 2 -- true")
        .say("run -k x -k y --permits 2 -- true");
    lab.say("run -k x --permits 2 --once-per 1m -- true");
    lab.say("renew")
        .say("renew x")
        .say("renew --token T")
        .say("release x")
        .say("renew x --token T")
        .say("release x --token @/nonexistent");
    lab.say("completions")
        .say("completions tcsh")
        .say("man bogus")
        .say("inspect x -o yaml")
        .say("inspect x --json -o json");
    lab.say("inspect x --color sometimes")
        .say("inspect x --backend-timeout 0");
    assert_data_eq!(lab.transcript(), file!["snapshots/arguments.txt"].raw());
    lab.assert_untouched();
}

/// Common first mistakes of users of other tools or shells.
#[test]
fn first_tries() {
    let mut lab = Lab::new();
    lab.say("lock p")
        .say("unlock p")
        .say("status p")
        .say("ls")
        .say("help nosuch");
    lab.say("-k p -- echo")
        .say("run p -- echo")
        .say("run -k x --timeout 5 -- true")
        .say("run -k x --ttl -5s -- true");
    lab.say("run -k x -w 5M -- true")
        .say("acquire x --ttl 1y")
        .say("run -k x --max-runtime 2months -- true");
    lab.say("acquire x --while-pid -5");
    lab.assert_untouched();
    lab.say_args(&["run", "-k", "x", "echo hi; exit 1"]);
    lab.say("run -k x -- ./nosuch.sh")
        .say("run -k x -- /tmp")
        .say("run -k x -- cd /")
        .say("run -k x -n 3 -- true");
    let script = lab.write("script", 0o755, "#!/nonexistent/interp\n");
    lab.say_args(&["run", "-k", "x", "--", script.to_str().unwrap()]);
    lab.set("DLOCK_TLL", "5").say("run -k x -- true");
    let text = lab.transcript().replace(
        &std::env::current_dir().unwrap().display().to_string(),
        "[HERE]",
    );
    assert_data_eq!(text, file!["snapshots/first-tries.txt"].raw());
}

#[test]
fn keys() {
    let mut lab = Lab::new();
    for command in [["run", "-k"].as_slice(), &["acquire", "-k"], &["inspect"]] {
        for key in [
            b"".as_slice(),
            &[b'x'; 100_000],
            b"a\nb",
            b"\x7f",
            b"\xff\xfe",
            "\u{85}".as_bytes(),
        ] {
            let arguments: Vec<&OsStr> = command
                .iter()
                .map(OsStr::new)
                .chain([OsStr::from_bytes(key)])
                .collect();
            lab.say_args(&arguments);
        }
    }
    assert_data_eq!(lab.transcript(), file!["snapshots/keys.txt"].raw());
    lab.assert_untouched();
}

#[test]
fn durations() {
    let mut lab = Lab::new();
    for ttl in [
        "0",
        "-1",
        "1ms",
        "1e30",
        "NaN",
        "",
        "999ms",
        "366d",
        "inf",
        "5 parsecs",
        "99999999999999999999",
    ] {
        lab.say_args(&["acquire", "x", "--ttl", ttl]);
    }
    lab.note("the grace has to fit the lease")
        .say("run -k x --grace 30s -- true")
        .say("run -k x --ttl 10 --grace 3 -- true")
        .say("run -k x --grace -1 -- true");
    for variable in [
        "DLOCK_TTL",
        "DLOCK_WAIT",
        "DLOCK_GRACE",
        "DLOCK_BACKEND_TIMEOUT",
    ] {
        lab.note(&format!("{variable}=soon"))
            .set(variable, "soon")
            .say("run -k x -- true")
            .set(variable, "");
    }
    assert_data_eq!(lab.transcript(), file!["snapshots/durations.txt"].raw());
    lab.assert_untouched();
}

#[test]
fn backends() {
    let mut lab = Lab::new();
    for url in [
        "redis://ana:hunter2@h",
        "redis://:hunter2@h",
        "reddis://h",
        "tair://h",
        "redis+sentinel://a,b",
        "redis",
        "prod",
        "redis://h:x",
        "redis://h?tls=1",
        "redis://h?cacert=/x",
        "redis://ana@h",
        "redis://a,b",
        "redis://",
        "rediss://h?cert=/x",
        "sqlite:x.db",
        "sqlite://host/x.db",
        "/var/locks.db",
        "://h",
        "valkey://h",
        "zk://h",
        "http://h:2379",
        " redis://h",
    ] {
        lab.say_args(&["list", "-b", url]);
    }
    lab.note("a misplaced URL")
        .say("list x redis://ana:hunter2@h")
        .say("list --redis://ana:hunter2@h");
    lab.note("DLOCK_BACKEND=redis://ana:hunter2/@h")
        .set("DLOCK_BACKEND", "redis://ana:hunter2/@h")
        .say("list");
    lab.set("DLOCK_BACKEND", "")
        .say("list -b redis://ana:hunter2@127.0.0.1:1 --insecure-argv --backend-timeout .2");
    let text = lab.transcript();
    let said: String = text
        .lines()
        .filter(|line| !line.starts_with(['$', '#']))
        .collect();
    assert!(!said.contains("hunter2"), "{said}");
    assert_data_eq!(text, file!["snapshots/backends.txt"].raw());
    lab.assert_untouched();
}

#[test]
fn usage_errors_are_also_printed_as_json() {
    let mut lab = Lab::new();
    lab.say("inspect --json")
        .say("inspect x y -o json")
        .say("bogus --output=json")
        .say("acquire x --ttl 0 --json");
    lab.note("DLOCK_OUTPUT=json")
        .set("DLOCK_OUTPUT", "json")
        .say("inspect")
        .say("inspect -o human")
        .set("DLOCK_OUTPUT", "");
    assert!(
        lab.run(["run", "--json", "--bogus"]).stdout.is_empty(),
        "stdout is the command's"
    );
    lab.note("on stderr, since stdout is the command's")
        .say("run --json -k x --ttl 0 -- true")
        .say("run -k x --bogus -- true --json");
    assert_data_eq!(lab.transcript(), file!["snapshots/json-mistakes.txt"].raw());
    lab.assert_untouched();
}
