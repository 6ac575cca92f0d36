//! What README and the man pages say of options and exit statuses is what the binary has, and they say all of it.

use std::{collections::BTreeSet, fs, path::Path, process::Command};

use crate::{
    generated::{TOPICS, pages},
    lab::Lab,
};

/// Options of other programs that the texts name.
const FOREIGN: [&str; 9] = [
    "--auto-compaction-retention", // etcd
    "--bump-revision",             // etcdctl
    "--endpoints",                 // etcdctl
    "--experimental-enable-lease-checkpoint",
    "--from",           // COPY in a Containerfile
    "--locked",         // cargo
    "--mark-compacted", // etcdctl
    "--path",           // cargo
    "--port",           // a job of the examples
];

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

/// A page as it is read: without roff's escapes.
fn page(lab: &Lab, name: Option<&str>) -> String {
    let text = String::from_utf8(lab.run(std::iter::once("man").chain(name)).stdout).unwrap();
    let text = text.replace("\\-", "-").replace("\\*(Aq", "'").replace("\\&", "");
    text.replace("\\fB", "").replace("\\fR", "").replace("\\fI", "")
}

/// The long options that a text names.
fn options(text: &str) -> BTreeSet<String> {
    let is_part = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let starts = text.match_indices("--").map(|(at, _)| at);
    let starts = starts.filter(|at| !text[..*at].ends_with(is_part) && text[at + 2..].starts_with(|c: char| c.is_ascii_lowercase()));
    starts.map(|at| text[at..].chars().take_while(|c| is_part(*c)).collect::<String>().trim_end_matches('-').to_owned()).collect()
}

/// The options that a command takes, by its complete help.
fn taken(lab: &Lab, command: Option<&str>) -> BTreeSet<String> {
    let help = String::from_utf8(lab.run(command.into_iter().chain(["--help"])).stdout).unwrap();
    let lines = help.lines().filter(|line| line.starts_with("  ") && line.trim_start().starts_with('-'));
    let names = lines.filter_map(|line| line.trim_start().split("  ").next());
    let mut names: BTreeSet<String> = names.flat_map(options).collect();
    // Its other name stands in the help.
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
    for name in pages(&lab).iter().filter(|name| !TOPICS.contains(&&***name)) {
        let (text, taken) = (page(&lab, Some(name)), taken(&lab, Some(name)));
        let described: BTreeSet<String> = text.lines().filter(|line| line.starts_with('-')).flat_map(options).collect();
        let missing: Vec<&String> = taken.iter().filter(|option| !described.contains(*option) && !common.contains(*option)).collect();
        // What all commands have is named in each page, and described in dlock(1).
        let unnamed: Vec<&String> = taken.iter().filter(|option| !options(&text).contains(*option) && **option != "--limit").collect();
        assert!((missing.is_empty() || missing == ["--limit"]) && unnamed.is_empty(), "{name}: {missing:?} {unnamed:?}");
    }
    let text = page(&lab, None);
    let described: BTreeSet<String> = text.lines().filter(|line| line.starts_with('-')).flat_map(options).collect();
    assert!(common.is_subset(&described), "{described:?}");
}

#[test]
fn no_text_names_an_option_that_the_binary_has_not() {
    let lab = Lab::new();
    let names = pages(&lab);
    let commands: Vec<&str> = names.iter().map(|name| &**name).filter(|name| !TOPICS.contains(name)).collect();
    let mut all: BTreeSet<String> = commands.iter().flat_map(|command| taken(&lab, Some(command))).collect();
    all.extend(taken(&lab, None));
    all.extend(FOREIGN.map(str::to_owned));
    let mut texts = vec![("README.md".to_owned(), read("README.md")), ("dlock".to_owned(), page(&lab, None))];
    texts.extend(names.iter().map(|name| (name.clone(), page(&lab, Some(name)))));
    for (name, text) in &texts {
        let unknown: Vec<String> = options(text).into_iter().filter(|option| !all.contains(option)).collect();
        assert!(unknown.is_empty(), "{name}: {unknown:?}");
        // A line with a command has that command's own.
        for line in text.replace("\\\n", " ").lines() {
            for (at, _) in line.match_indices("dlock ") {
                let line = line[at + 6..].split(" -- ").next().unwrap_or_default();
                let line = line.split(['|', ';', '&', '(']).next().unwrap_or_default();
                let Some(command) = commands.iter().find(|command| line.split(' ').next() == Some(*command)) else { continue };
                // In a sentence the options after the next words may be another's.
                let own: String = line.split(' ').take_while(|word| !word.ends_with(['.', ',', ':'])).collect::<Vec<_>>().join(" ");
                let wrong: Vec<String> = options(&own).into_iter().filter(|option| !taken(&lab, Some(command)).contains(option)).collect();
                assert!(wrong.is_empty(), "{name}: {line}: {wrong:?}");
            }
        }
    }
}

/// The statuses of `src/exit.rs`, and 0.
fn statuses() -> BTreeSet<u8> {
    let source = read("src/exit.rs");
    let constants =
        source.lines().filter_map(|line| line.strip_prefix("pub const ")?.split(" = ").nth(1)?.trim_end_matches(';').parse().ok());
    constants.collect()
}

/// The numbers in the names of the items or cells that tell of statuses.
fn numbers<'a>(names: impl Iterator<Item = &'a str>) -> BTreeSet<u8> {
    names.flat_map(|name| name.split(", ")).filter_map(|word| word.trim().parse().ok()).collect()
}

#[test]
fn the_texts_have_the_exit_statuses_of_the_binary() {
    let lab = Lab::new();
    let all = statuses();
    assert!(all.len() > 12, "{all:?}");
    let in_page = |text: &str| {
        let section = text.split(".SH \"EXIT STATUS\"\n").nth(1).expect("a section").split(".SH ").next().unwrap_or_default().to_owned();
        let lines: Vec<&str> = section.lines().collect();
        numbers(lines.windows(2).filter(|pair| pair[0] == ".TP").map(|pair| pair[1]))
    };
    assert_eq!(in_page(&page(&lab, None)), all, "dlock(1)");
    for name in pages(&lab).iter().filter(|name| !TOPICS.contains(&&***name)) {
        let found = in_page(&page(&lab, Some(name)));
        assert!(found.len() > 2 && found.is_subset(&all), "{name}: {found:?}");
    }
    let readme = read("README.md");
    let table = readme.split("| exit status | ").nth(1).expect("a table");
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    let found = numbers(rows.filter_map(|row| row[2..].split(" | ").next()));
    assert!(found.len() > 4 && found.is_subset(&all), "{found:?}");
}

#[test]
fn each_commands_page_has_all_sections() {
    let lab = Lab::new();
    for name in pages(&lab) {
        let text = page(&lab, Some(&name));
        let sections: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix(".SH ")).map(|title| title.trim_matches('"')).collect();
        let wanted: &[&str] = if TOPICS.contains(&&*name) {
            &["NAME", "DESCRIPTION", "SEE ALSO"]
        } else {
            &["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXIT STATUS", "EXAMPLES", "SEE ALSO"]
        };
        let found: Vec<&str> = sections.iter().copied().filter(|title| wanted.contains(title)).collect();
        assert_eq!(found, wanted, "{name}");
        // A placeholder that nothing filled.
        assert!(!text.lines().any(|line| line.starts_with('{') && line.ends_with('}')), "{name}");
    }
}

/// The pages in `man/`.
fn files() -> Vec<std::path::PathBuf> {
    let folder = fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/man")).unwrap();
    let files = folder.map(|file| file.unwrap().path());
    files.filter(|path| path.extension().is_some_and(|extension| extension == "1" || extension == "7")).collect()
}

#[test]
fn mandoc_has_nothing_to_say() {
    if !support::have("mandoc_has_nothing_to_say", &["mandoc"]) {
        return;
    }
    let output = Command::new("mandoc").args(["-T", "lint", "-W", "warning"]).args(files()).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && said.is_empty(), "{said}");
}

#[test]
fn pages_fit_80_columns() {
    if !support::have("pages_fit_80_columns", &["man"]) {
        return;
    }
    for file in files() {
        let output =
            Command::new("man").args(["--warnings", "-l"]).arg(&file).env("MANWIDTH", "80").env("LC_ALL", "C.UTF-8").output().unwrap();
        let (text, said) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
        assert!(output.status.success() && said.is_empty(), "{}: {said}", file.display());
        let long: Vec<&str> = text.lines().filter(|line| line.chars().count() > 80).collect();
        assert!(text.lines().count() > 20 && long.is_empty(), "{}: {long:#?}", file.display());
    }
}
