//! The candidates that Tab offers in each shell.

use std::{
    os::unix::fs::symlink,
    path::Path,
    process::{Command, Stdio},
};

use crate::{lab::Lab, terminal::Terminal};

/// A folder with a configuration, held locks, and the completions of a shell in `comp`.
fn lab(shell: &str) -> (Lab, String) {
    let mut lab = Lab::new();
    let config =
        lab.write("config.toml", 0o644, "[backends.prod]\nurl = 'redis://r1'\nnamespace = 'ns1'\n[keys.\"nightly job\"]\nttl = 60\n");
    std::fs::create_dir(lab.path("bin")).unwrap();
    symlink(env!("CARGO_BIN_EXE_dlock"), lab.path("bin/dlock")).unwrap();
    let path = format!("{}:/usr/bin:/bin", lab.path("bin").display());
    lab.set("PATH", path).set("DLOCK_CONFIG", config);
    lab.run(["acquire", "deploy", "--ttl", "5m"]);
    // Key names from other users must never be executed.
    lab.run(["acquire", "a$(touch pwned)", "--ttl", "5m"]);
    lab.write(
        "comp",
        0o644,
        &String::from_utf8(lab.run(["completions", shell]).stdout).unwrap(),
    );
    let fence =
        String::from_utf8(lab.run(["__complete", "fences", "break", "deploy"]).stdout).unwrap();
    assert!(fence.trim().parse::<u64>().is_ok(), "{fence}");
    (lab, fence.trim().to_owned())
}

/// Returns the output of the script, or `None` if the shell isn't installed.
fn run(lab: &Lab, shell: &str, arguments: &[&str], script: &str) -> Option<String> {
    let program = format!("/usr/bin/{shell}");
    if !std::path::Path::new(&program).exists() {
        assert!(
            std::env::var_os("DLOCK_TEST_REQUIRE").is_none(),
            "{shell} is not installed"
        );
        eprintln!("SKIPPED: there is no {shell}");
        return None;
    }
    // The lab's environment, for another program.
    let with_env = lab.dlock([""; 0]);
    let mut command = Command::new(program);
    command
        .args(arguments)
        .arg(lab.write("script", 0o644, script))
        .env_clear()
        .current_dir(lab.path(""))
        .stdin(Stdio::null());
    command
        .envs(
            with_env
                .get_envs()
                .filter_map(|(name, value)| Some((name, value?))),
        )
        .env("TERM", "dumb");
    let output = command.output().unwrap();
    assert!(!lab.path("pwned").exists());
    Some(
        String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr),
    )
}

#[track_caller]
fn assert_offers(said: &str, expected: &[(&str, &[&str])]) {
    for (line, offers) in expected {
        let said = said
            .lines()
            .find_map(|said| said.strip_prefix(&format!("{line}=>")))
            .unwrap_or_else(|| panic!("{line}: {said}"));
        for offer in *offers {
            assert!(said.contains(offer), "{line}: no {offer}: {said}");
        }
    }
}

/// The candidates that each shell offers, apart from their quoting.
fn expected(fence: &str) -> Vec<(&'static str, Vec<&str>)> {
    vec![
        ("dlock inspect ", vec!["deploy", "nightly", "pwned"]),
        ("dlock run -k ", vec!["deploy", "nightly"]),
        ("dlock run -b ", vec!["local", "prod"]),
        ("dlock run --namespace ", vec!["dlock", "ns1"]),
        ("dlock break deploy --fence ", vec![fence]),
        ("dlock run -k x -- trunc", vec!["truncate"]),
        ("dlock run -k x -- cat conf", vec!["config.toml"]),
        ("dlock --config conf", vec!["config.toml"]),
        ("dlock ins", vec!["inspect"]),
    ]
}

#[test]
fn completion_in_bash() {
    let (lab, fence) = lab("bash");
    let expected = expected(&fence);
    let mut script = String::from(
        "source ./comp\ntry() { COMP_WORDS=(\"$@\"); COMP_CWORD=$(($#-1)); COMP_LINE=\"$*\"; COMP_POINT=${#COMP_LINE};\n\
         __dlock_complete dlock \"${COMP_WORDS[COMP_CWORD]}\" \"${COMP_WORDS[COMP_CWORD-1]}\"; echo \"$*=>${COMPREPLY[*]}\"; }\n",
    );
    for (line, _) in &expected {
        script += &format!(
            "try {}\n",
            if line.ends_with(' ') {
                format!("{line}''")
            } else {
                (*line).to_owned()
            }
        );
    }
    let Some(said) = run(&lab, "bash", &["--norc", "--noprofile"], &script) else {
        return;
    };
    assert_offers(
        &said,
        &expected
            .iter()
            .map(|(line, offers)| (*line, offers.as_slice()))
            .collect::<Vec<_>>(),
    );
    // Candidates are quoted for a command line.
    assert!(said.contains("nightly\\ job"), "{said}");
}

/// bash splits words at colons and equals signs, and inserts only the part after the last one.
#[test]
fn keys_with_colons_in_bash() {
    let (lab, _) = lab("bash");
    for key in ["db:backup:nightly", "db:restore", "a=b:c d", "db:'quoted"] {
        assert!(lab.run(["acquire", key, "--ttl", "5m"]).status.success());
    }
    let bash = ["TERM=dumb", "bash", "--norc", "--noprofile", "-i"];
    let mut terminal = Terminal::program(&lab, (24, 80), Path::new("/usr/bin/env"), &bash);
    terminal.press(b"source ./comp; PS1='rea''dy> '\n");
    terminal.await_text("ready>");
    for (at, (typed, becomes)) in [
        ("dlock inspect db:b", "dlock inspect db:backup:nightly "),
        (
            "dlock inspect db:backup:",
            "dlock inspect db:backup:nightly ",
        ),
        (
            "dlock run -k db:backup:ni",
            "dlock run -k db:backup:nightly ",
        ),
        (
            "dlock release --key=db:res",
            "dlock release --key=db:restore ",
        ),
        ("dlock inspect a=b", "dlock inspect a=b:c\\ d "),
        ("dlock inspect a=b:c\\ ", "dlock inspect a=b:c\\ d "),
        ("dlock inspect db:\\'", "dlock inspect db:\\'quoted "),
        (
            "true; X=1 dlock inspect db:res",
            "dlock inspect db:restore ",
        ),
        (
            "dlock run -b sqlite:///nonexistent/x -k nigh",
            "-k nightly\\ job ",
        ),
    ]
    .into_iter()
    .enumerate()
    {
        terminal.press(format!("{typed}\t.").as_bytes());
        let whole = format!("{becomes}.");
        let last = |screen: &[String]| {
            screen
                .iter()
                .rfind(|line| !line.is_empty())
                .cloned()
                .unwrap_or_default()
        };
        terminal.await_screen(&whole, |screen| last(screen).ends_with(&whole));
        // As a comment the line ends without effect. bash sometimes loses a Ctrl-C that comes while
        // it draws the last key.
        terminal.press(b"\x01#\n");
        terminal.await_screen("another prompt", |screen| {
            screen
                .iter()
                .filter(|line| line.starts_with("ready>"))
                .count()
                > at + 1
        });
    }
    // Several candidates with the same prefix are listed.
    terminal.press(b"dlock inspect db:\t\t");
    terminal.await_screen("all keys with this prefix", |screen| {
        ["backup:nightly", "restore", "quoted"]
            .iter()
            .all(|end| screen.iter().any(|line| line.contains(end)))
    });
}

#[test]
fn completion_in_fish() {
    let (lab, fence) = lab("fish");
    let expected = expected(&fence);
    let lines: Vec<String> = expected
        .iter()
        .map(|(line, _)| format!("'{line}'"))
        .collect();
    let script = format!(
        "source ./comp\nfor l in {}\n echo \"$l=>\" (complete -C \"$l\" | string join ' ')\nend\n",
        lines.join(" ")
    );
    let Some(said) = run(&lab, "fish", &["--no-config"], &script) else {
        return;
    };
    assert_offers(
        &said,
        &expected
            .iter()
            .map(|(line, offers)| (*line, offers.as_slice()))
            .collect::<Vec<_>>(),
    );
}

#[test]
fn completion_in_zsh() {
    let (lab, fence) = lab("zsh");
    let expected = expected(&fence);
    // An interactive zsh on its own terminal lists the candidates at each Tab, and then gets a new
    // line.
    let mut script = String::from(
        "zmodload zsh/zpty\nzpty z 'PS1= zsh -f -i'\n\
         until_seen() { local chunk; out=; for n in {1..200}; do while zpty -r -t z chunk; do out+=$chunk; done; \
         [[ $out == *$1* ]] && return; sleep 0.05; done }\n\
         zpty -w z 'autoload -U compinit; compinit -u -D; setopt noautomenu nolistambiguous; bindkey \"^I\" list-choices; LISTMAX=1000'\n\
         zpty -w z 'source ./comp; echo REA''DY'\nuntil_seen READY\n",
    );
    for (line, offers) in &expected {
        let last = offers.last().copied().unwrap_or_default();
        script += &format!(
            "zpty -w -n z '{line}'$'\\t'; until_seen '{last}'; print -r -- '{line}=>'${{(V)out//$'\\n'/ }}\n"
        );
        script += "zpty -w -n z $'\\x15'; sleep 0.05; while zpty -r -t z chunk; do :; done\n";
    }
    script += "zpty -d z\n";
    let Some(said) = run(&lab, "zsh", &["-f"], &script) else {
        return;
    };
    // zsh inserts a single candidate instead of listing it.
    let expected: Vec<_> = expected
        .iter()
        .map(|(line, offers)| (*line, offers.as_slice()))
        .collect();
    assert_offers(&said, &expected);
}

#[test]
fn nothing_is_offered_without_candidates() {
    let lab = Lab::new();
    for words in [
        &["__complete", "keys"][..],
        &["__complete", "fences", "break"],
        &["__complete", "nonsense"],
        &["__complete", "keys", "-b", "bogus"],
    ] {
        let output = lab.run(words);
        assert!(
            output.status.success() && output.stdout.is_empty() && output.stderr.is_empty(),
            "{words:?}: {output:?}"
        );
    }
    lab.assert_untouched();
}
