//! Checks that `man/` and `completions/` are the binary's output.

use snapbox::{Data, assert_data_eq};

use crate::lab::Lab;

fn compare(arguments: &[&str], file: &str) {
    let output = Lab::new().run(arguments);
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{arguments:?}: {output:?}"
    );
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    if std::env::var("SNAPSHOTS").is_ok_and(|value| value == "overwrite") {
        std::fs::write(&path, &output.stdout).unwrap();
    }
    assert_data_eq!(
        String::from_utf8(output.stdout).unwrap(),
        Data::read_from(&path, None).raw()
    );
}

/// Returns the names of all pages except dlock's own: the commands, then the topics.
pub fn pages(lab: &Lab) -> Vec<String> {
    let refused = lab.run(["man", "nope"]);
    let text = String::from_utf8(refused.stderr).unwrap();
    let names = text
        .lines()
        .find_map(|line| line.strip_prefix("hint: it is one of "))
        .expect("the names");
    names.split(", ").map(str::to_owned).collect()
}

/// The pages that don't describe a command.
pub const TOPICS: [&str; 5] = ["stores", "cron", "daemon", "interop", "migrate"];

#[test]
fn man_pages() {
    let mut expected = vec!["dlock.1".to_owned(), "dlock.schema.json".to_owned()];
    compare(&["man"], "man/dlock.1");
    for page in pages(&Lab::new()) {
        let section = if TOPICS.contains(&&*page) { 7 } else { 1 };
        compare(&["man", &page], &format!("man/dlock-{page}.{section}"));
        expected.push(format!("dlock-{page}.{section}"));
    }
    let folder = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/man")).unwrap();
    let mut found: Vec<String> = folder
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .collect();
    found.sort();
    expected.sort();
    assert_eq!(found, expected);
}

#[test]
fn completions() {
    for (shell, file) in [
        ("bash", "dlock.bash"),
        ("elvish", "dlock.elv"),
        ("fish", "dlock.fish"),
        ("zsh", "_dlock"),
    ] {
        compare(&["completions", shell], &format!("completions/{file}"));
    }
}
