//! Checks that the planted bugs (`tests/planted`), which are patches against `src`, still apply.

use std::{path::Path, process::Command};

/// Applies each patch to the current tree in a dry run.
pub fn every_patch_applies() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let patches = std::fs::read_dir(root.join("tests/planted"))
        .unwrap()
        .flatten()
        .map(|entry| entry.path());
    let mut patches: Vec<_> = patches
        .filter(|path| path.extension().is_some_and(|end| end == "patch"))
        .collect();
    patches.sort();
    assert!(patches.len() >= 20, "{patches:?}");
    let mut failed = Vec::new();
    for patch in &patches {
        let text = std::fs::read_to_string(patch).unwrap();
        assert!(
            text.starts_with("bug: ") && text.contains("\nfind: "),
            "{} does not say what it is",
            patch.display()
        );
        let mut command = Command::new("patch");
        command
            .args(["--dry-run", "--batch", "--fuzz=1", "-p1", "-d"])
            .arg(root)
            .arg("-i")
            .arg(patch);
        let tried = command.output().expect("patch(1)");
        if !tried.status.success() {
            failed.push(format!(
                "{}: {}",
                patch.display(),
                String::from_utf8_lossy(&tried.stdout)
            ));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}
