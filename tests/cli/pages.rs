//! README and the man pages document exactly the options and exit statuses of the binary.

use std::{collections::BTreeSet, fs, path::Path, process::Command};

use crate::{
    generated::{TOPICS, pages},
    lab::Lab,
};

/// Options of other programs in the texts.
const FOREIGN: [&str; 15] = [
    "--auto-compaction-retention", // etcd
    "--bump-revision",             // etcdctl
    "--endpoints",                 // etcdctl
    "--experimental-enable-lease-checkpoint",
    "--from",               // COPY in a Containerfile
    "--locked",             // cargo
    "--mark-compacted",     // etcdctl
    "--path",               // cargo
    "--init",               // docker
    "--name",               // docker
    "--rm",                 // docker
    "--no-block",           // systemctl
    "--scope",              // systemd-run
    "--single-transaction", // mysqldump
    "--port",               // a job of the examples
];

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

/// Returns a page without roff's escapes.
fn page(lab: &Lab, name: Option<&str>) -> String {
    let text = String::from_utf8(lab.run(std::iter::once("man").chain(name)).stdout).unwrap();
    let text = text
        .replace("\\-", "-")
        .replace("\\*(Aq", "'")
        .replace("\\&", "");
    text.replace("\\fB", "")
        .replace("\\fR", "")
        .replace("\\fI", "")
}

/// Returns the long options in a text.
fn options(text: &str) -> BTreeSet<String> {
    let is_part = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let starts = text.match_indices("--").map(|(at, _)| at);
    let starts = starts.filter(|at| {
        !text[..*at].ends_with(is_part)
            && text[at + 2..].starts_with(|c: char| c.is_ascii_lowercase())
    });
    starts
        .map(|at| {
            text[at..]
                .chars()
                .take_while(|c| is_part(*c))
                .collect::<String>()
                .trim_end_matches('-')
                .to_owned()
        })
        .collect()
}

/// Returns the options of a command from its complete help.
fn taken(lab: &Lab, command: Option<&str>) -> BTreeSet<String> {
    let help = String::from_utf8(lab.run(command.into_iter().chain(["--help"])).stdout).unwrap();
    let lines = help
        .lines()
        .filter(|line| line.starts_with("  ") && line.trim_start().starts_with('-'));
    let names = lines.filter_map(|line| line.trim_start().split("  ").next());
    let mut names: BTreeSet<String> = names.flat_map(options).collect();
    // The help lists its alias.
    if names.contains("--permits") {
        names.insert("--limit".into());
    }
    names
}

#[test]
fn each_option_of_the_binary_is_in_its_page() {
    let lab = Lab::new();
    let common = taken(&lab, None);
    assert!(common.len() > 10, "{common:?}");
    for name in pages(&lab)
        .iter()
        .filter(|name| !TOPICS.contains(&&***name))
    {
        let (text, taken) = (page(&lab, Some(name)), taken(&lab, Some(name)));
        let described: BTreeSet<String> = text
            .lines()
            .filter(|line| line.starts_with('-'))
            .flat_map(options)
            .collect();
        let missing: Vec<&String> = taken
            .iter()
            .filter(|option| !described.contains(*option) && !common.contains(*option))
            .collect();
        // Each page names the options of all commands; dlock(1) describes them.
        let unnamed: Vec<&String> = taken
            .iter()
            .filter(|option| !options(&text).contains(*option) && **option != "--limit")
            .collect();
        assert!(
            (missing.is_empty() || missing == ["--limit"]) && unnamed.is_empty(),
            "{name}: {missing:?} {unnamed:?}"
        );
    }
    let text = page(&lab, None);
    let described: BTreeSet<String> = text
        .lines()
        .filter(|line| line.starts_with('-'))
        .flat_map(options)
        .collect();
    assert!(common.is_subset(&described), "{described:?}");
}

#[test]
fn no_text_names_an_unknown_option() {
    let lab = Lab::new();
    let names = pages(&lab);
    let commands: Vec<&str> = names
        .iter()
        .map(|name| &**name)
        .filter(|name| !TOPICS.contains(name))
        .collect();
    let mut all: BTreeSet<String> = commands
        .iter()
        .flat_map(|command| taken(&lab, Some(command)))
        .collect();
    all.extend(taken(&lab, None));
    all.extend(FOREIGN.map(str::to_owned));
    let mut texts = vec![
        ("README.md".to_owned(), read("README.md")),
        ("dlock".to_owned(), page(&lab, None)),
    ];
    texts.extend(
        names
            .iter()
            .map(|name| (name.clone(), page(&lab, Some(name)))),
    );
    for (name, text) in &texts {
        let unknown: Vec<String> = options(text)
            .into_iter()
            .filter(|option| !all.contains(option))
            .collect();
        assert!(unknown.is_empty(), "{name}: {unknown:?}");
        // A line with a command must use that command's own options.
        for line in text.replace("\\\n", " ").lines() {
            for (at, _) in line.match_indices("dlock ") {
                let line = line[at + 6..].split(" -- ").next().unwrap_or_default();
                let line = line.split(['|', ';', '&', '(']).next().unwrap_or_default();
                let Some(command) = commands
                    .iter()
                    .find(|command| line.split(' ').next() == Some(*command))
                else {
                    continue;
                };
                // In a sentence, options after the next punctuation may belong to another command.
                let own: String = line
                    .split(' ')
                    .take_while(|word| !word.ends_with(['.', ',', ':']))
                    .collect::<Vec<_>>()
                    .join(" ");
                let wrong: Vec<String> = options(&own)
                    .into_iter()
                    .filter(|option| !taken(&lab, Some(command)).contains(option))
                    .collect();
                assert!(wrong.is_empty(), "{name}: {line}: {wrong:?}");
            }
        }
    }
}

/// Returns the statuses in `src/exit.rs`, and 0.
fn statuses() -> BTreeSet<u8> {
    let source = read("src/exit.rs");
    let constants = source.lines().filter_map(|line| {
        line.strip_prefix("pub const ")?
            .split(" = ")
            .nth(1)?
            .trim_end_matches(';')
            .parse()
            .ok()
    });
    constants.collect()
}

/// Returns the numbers in the names of items or cells about statuses.
fn numbers<'a>(names: impl Iterator<Item = &'a str>) -> BTreeSet<u8> {
    names
        .flat_map(|name| name.split(", "))
        .filter_map(|word| word.trim().parse().ok())
        .collect()
}

#[test]
fn all_texts_list_the_exit_statuses_of_the_binary() {
    let lab = Lab::new();
    let all = statuses();
    assert!(all.len() > 12, "{all:?}");
    let in_page = |text: &str| {
        let section = text
            .split(".SH \"EXIT STATUS\"\n")
            .nth(1)
            .expect("a section")
            .split(".SH ")
            .next()
            .unwrap_or_default()
            .to_owned();
        let lines: Vec<&str> = section.lines().collect();
        numbers(
            lines
                .windows(2)
                .filter(|pair| pair[0] == ".TP")
                .map(|pair| pair[1]),
        )
    };
    assert_eq!(in_page(&page(&lab, None)), all, "dlock(1)");
    for name in pages(&lab)
        .iter()
        .filter(|name| !TOPICS.contains(&&***name))
    {
        let found = in_page(&page(&lab, Some(name)));
        assert!(
            found.len() > 2 && found.is_subset(&all),
            "{name}: {found:?}"
        );
    }
    let readme = read("README.md");
    let table = readme.split("| exit status | ").nth(1).expect("a table");
    let rows = table
        .lines()
        .skip(2)
        .take_while(|line| line.starts_with('|'));
    let found = numbers(rows.filter_map(|row| row[2..].split(" | ").next()));
    assert!(found.len() > 4 && found.is_subset(&all), "{found:?}");
}

#[test]
fn each_commands_page_has_all_sections() {
    let lab = Lab::new();
    for name in pages(&lab) {
        let text = page(&lab, Some(&name));
        let sections: Vec<&str> = text
            .lines()
            .filter_map(|line| line.strip_prefix(".SH "))
            .map(|title| title.trim_matches('"'))
            .collect();
        let wanted: &[&str] = if TOPICS.contains(&&*name) {
            &["NAME", "DESCRIPTION", "SEE ALSO"]
        } else {
            &[
                "NAME",
                "SYNOPSIS",
                "DESCRIPTION",
                "OPTIONS",
                "EXIT STATUS",
                "EXAMPLES",
                "SEE ALSO",
            ]
        };
        let found: Vec<&str> = sections
            .iter()
            .copied()
            .filter(|title| wanted.contains(title))
            .collect();
        assert_eq!(found, wanted, "{name}");
        // A placeholder of the template is left over.
        assert!(
            !text
                .lines()
                .any(|line| line.starts_with('{') && line.ends_with('}')),
            "{name}"
        );
    }
}

/// Returns the pages in `man/`.
fn files() -> Vec<std::path::PathBuf> {
    let folder = fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/man")).unwrap();
    let files = folder.map(|file| file.unwrap().path());
    files
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "1" || extension == "7")
        })
        .collect()
}

#[test]
fn mandoc_finds_no_errors() {
    if !support::have("mandoc_finds_no_errors", &["mandoc"]) {
        return;
    }
    let output = Command::new("mandoc")
        .args(["-T", "lint", "-W", "warning"])
        .args(files())
        .output()
        .unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && said.is_empty(), "{said}");
}

#[test]
fn pages_fit_80_columns() {
    if !support::have("pages_fit_80_columns", &["man"]) {
        return;
    }
    for file in files() {
        let output = Command::new("man")
            .args(["--warnings", "-l"])
            .arg(&file)
            .env("MANWIDTH", "80")
            .env("LC_ALL", "C.UTF-8")
            .output()
            .unwrap();
        let (text, said) = (
            String::from_utf8(output.stdout).unwrap(),
            String::from_utf8(output.stderr).unwrap(),
        );
        assert!(
            output.status.success() && said.is_empty(),
            "{}: {said}",
            file.display()
        );
        let long: Vec<&str> = text
            .lines()
            .filter(|line| line.chars().count() > 80)
            .collect();
        assert!(
            text.lines().count() > 20 && long.is_empty(),
            "{}: {long:#?}",
            file.display()
        );
    }
}
