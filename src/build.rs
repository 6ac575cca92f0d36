//! Passes the commit to the compiler, for `dlock --version --verbose`.
//!
//! A packaged crate has no repository, but cargo's file `.cargo_vcs_info.json` names the commit. A
//! package built from a bare tree sets `DLOCK_BUILD_COMMIT` itself. Development builds name no
//! commit: otherwise each commit would recompile the crate.

use std::{env, fs, path::Path, process::Command};

fn main() {
    println!("cargo:rerun-if-changed=src/build.rs");
    println!("cargo:rerun-if-env-changed=DLOCK_BUILD_COMMIT");
    let target = env::var("TARGET").unwrap_or_default();
    println!("cargo:rustc-env=DLOCK_TARGET={target}");
    let commit = env::var("DLOCK_BUILD_COMMIT")
        .ok()
        .or_else(packaged)
        .or_else(checked_out);
    println!(
        "cargo:rustc-env=DLOCK_COMMIT={}",
        commit.as_deref().unwrap_or("unknown")
    );
}

/// Returns the commit that `cargo package` recorded.
fn packaged() -> Option<String> {
    let note = fs::read_to_string(".cargo_vcs_info.json").ok()?;
    let (_, rest) = note.split_once("\"sha1\"")?;
    let commit = rest.split('"').nth(1)?.get(..12)?;
    let modified = note
        .split_once("\"dirty\"")
        .is_some_and(|(_, rest)| rest.trim_start_matches([':', ' ']).starts_with("true"));
    Some(format!(
        "{commit}{}",
        if modified { "-modified" } else { "" }
    ))
}

/// Returns the commit of the repository around the sources, with its date.
fn checked_out() -> Option<String> {
    if env::var("PROFILE").ok()? != "release" {
        return Some("development".to_owned());
    }
    if !Path::new(".git").exists() {
        return None;
    }
    let log = git(&["rev-parse", "--git-path", "logs/HEAD"])?;
    println!("cargo:rerun-if-changed={log}");
    git(&[
        "show",
        "--no-patch",
        "--abbrev=12",
        "--format=%h of %cs",
        "HEAD",
    ])
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output
        .status
        .success()
        .then(|| text.trim().to_owned())
        .filter(|text| !text.is_empty())
}
