//! Programs that a test creates and then executes.
//!
//! Another process writes them. A file that any process has open for writing can't be executed
//! ("text file busy"), and a child that another test forks meanwhile inherits each descriptor of
//! this process until the child executes its own program.

use std::{
    io::Write as _,
    path::Path,
    process::{Command, Stdio},
};

/// Copies a program, with this mode.
pub fn copy(from: impl AsRef<Path>, to: impl AsRef<Path>, mode: u32) {
    install(
        Command::new("install").arg(from.as_ref()),
        to.as_ref(),
        mode,
        "",
    );
}

/// Writes a script that everyone can execute.
pub fn write(path: impl AsRef<Path>, text: &str) {
    install(
        Command::new("install").arg("/dev/stdin"),
        path.as_ref(),
        0o755,
        text,
    );
}

fn install(command: &mut Command, to: &Path, mode: u32, text: &str) {
    let mut install = command
        .arg(to)
        .args(["-m", &format!("{mode:o}")])
        .stdin(Stdio::piped())
        .spawn()
        .expect("install(1)");
    install
        .stdin
        .take()
        .expect("its stdin")
        .write_all(text.as_bytes())
        .expect("the text");
    assert!(
        install.wait().expect("install(1)").success(),
        "{}",
        to.display()
    );
}
