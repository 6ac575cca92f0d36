//! Kazoo, the Python client of ZooKeeper, in an environment of the tests' own.

use std::{
    path::PathBuf,
    process::Command,
    sync::{Mutex, PoisonError},
};

/// A Python that has kazoo, in a folder that outlives this run; or why there is none.
pub fn python() -> Result<PathBuf, String> {
    static MAKING: Mutex<()> = Mutex::new(());
    let _making = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("kazoo");
    let python = folder.join("bin/python");
    let ready = |python: &PathBuf| Command::new(python).args(["-c", "import kazoo"]).output().is_ok_and(|output| output.status.success());
    if !ready(&python) {
        let run = |program: &str, args: &[&str]| {
            let output = Command::new(program).args(args).output().map_err(|error| format!("{program}: {error}"))?;
            let said = || String::from_utf8_lossy(&output.stderr).lines().last().unwrap_or_default().to_owned();
            output.status.success().then_some(()).ok_or_else(|| format!("{program} {}: {}", args.join(" "), said()))
        };
        run("python3", &["-m", "venv", "--clear", &folder.display().to_string()])?;
        run(&python.display().to_string(), &["-m", "pip", "install", "--quiet", "kazoo==2.11.0"])?;
    }
    ready(&python).then_some(python).ok_or_else(|| "kazoo can't be imported".into())
}
