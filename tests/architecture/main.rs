//! The shape of the product: what imports what, what is too long, and who waits. `known.txt` lists
//! what is allowed until it is mended. Reads the files as rustfmt writes them, without their tests.

#![allow(clippy::unwrap_used)] // in the helpers of tests as well

use std::{collections::BTreeMap, fs, path::Path};

/// The modules of the crate's root: each may import only those behind it, and `backends` only
/// `settings` and `lock`.
const ORDER: [&str; 10] = [
    "",
    "cli",
    "commands",
    "backends",
    "output",
    "supervise",
    "exit",
    "lease",
    "settings",
    "lock",
];
const WAITS: [&str; 5] = ["sleep", "sleep_until", "timeout", "timeout_at", "interval"];

/// A file of the product without its tests: its path, the path of its module, and its lines.
type Source = (String, Vec<String>, Vec<String>);

fn add(folder: &Path, module: &[String], all: &mut Vec<Source>) {
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let (path, name) = (entry.path(), entry.file_name().into_string().unwrap());
        let name = name.strip_suffix(".rs").unwrap_or(&name);
        let module = [module, &[name.to_owned()]].concat();
        if path.is_dir() {
            add(&path, &module, all);
        } else if path.extension().is_some_and(|kind| kind == "rs") && name != "build" {
            let end = module.len() - usize::from(["mod", "main", "lib"].contains(&name));
            let lines = fs::read_to_string(&path)
                .unwrap()
                .lines()
                .map(str::to_owned)
                .collect();
            let path = path.strip_prefix(env!("CARGO_MANIFEST_DIR")).unwrap();
            all.push((path.display().to_string(), module[..end].to_vec(), lines));
        }
    }
}

fn product() -> Vec<Source> {
    let (mut all, mut tests) = (Vec::new(), Vec::new());
    add(
        &Path::new(env!("CARGO_MANIFEST_DIR")).join("src"),
        &[],
        &mut all,
    );
    for (_, module, lines) in &mut all {
        while let Some(at) = lines.iter().position(|line| line.trim() == "#[cfg(test)]") {
            let indent = " ".repeat(lines[at].len() - "#[cfg(test)]".len());
            let rest = |line: &String| line.strip_prefix(&indent).unwrap_or_default().to_owned();
            let is_end = |line: String| line.ends_with([';', ',', '}']) && !line.starts_with(' ');
            let end = lines[at..]
                .iter()
                .position(|line| is_end(rest(line)))
                .unwrap();
            for line in lines.drain(at..=at + end) {
                let name = line
                    .strip_suffix(';')
                    .and_then(|line| line.split_once("mod "));
                tests.extend(name.map(|(_, name)| [&**module, &[name.to_owned()]].concat()));
            }
        }
    }
    all.retain(|(_, module, _)| !tests.iter().any(|test| module.starts_with(test)));
    assert!(all.len() > 200, "the files of the product were not found");
    all
}

/// Adds the paths of a tree such as `a::{b, c::d}`, and returns what is behind it.
fn tree<'a>(text: &'a str, start: &[&'a str], all: &mut Vec<Vec<String>>) -> &'a str {
    let text = text.trim_start_matches([' ', '\n', ',']);
    if let Some(mut rest) = text.strip_prefix('{') {
        while !rest.is_empty() && !rest.starts_with('}') {
            rest = tree(rest, start, all).trim_start_matches([' ', '\n', ',']);
        }
        return rest.get(1..).unwrap_or_default();
    }
    let end = text
        .find(|c: char| !c.is_alphanumeric() && c != '_')
        .unwrap_or(text.len());
    let path = [start, &[&text[..end]]].concat();
    if let Some(rest) = text[end..].strip_prefix("::") {
        return tree(rest, &path, all);
    }
    all.push(path.into_iter().map(str::to_owned).collect());
    // Also takes a character that belongs to no tree, such as the `*` of `a::*`.
    text.get(end.max(1)..).unwrap_or_default()
}

/// Returns the paths that a file uses, those of the crate from its root.
fn paths((_, module, lines): &Source) -> Vec<Vec<String>> {
    let code: Vec<_> = lines
        .iter()
        .filter_map(|line| line.split("//").next())
        .collect();
    let (code, mut all) = (code.join("\n"), Vec::new());
    for root in [
        "crate::", "super::", "self::", "tokio::", "std::", "thread::",
    ] {
        for (at, _) in code.match_indices(root) {
            if !code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':') {
                tree(&code[at..], &[], &mut all);
            }
        }
    }
    for path in all
        .iter_mut()
        .filter(|path| ["crate", "super", "self"].contains(&&*path[0]))
    {
        let ups = path.iter().filter(|part| *part == "super").count();
        let base = if path[0] == "crate" {
            0
        } else {
            module.len().saturating_sub(ups)
        };
        let names = path
            .iter()
            .filter(|part| !["crate", "super", "self"].contains(&&***part));
        *path = module[..base].iter().chain(names).cloned().collect();
    }
    all
}

/// Compares what was found of these kinds with `known.txt`.
fn compare(kinds: &[&str], found: &BTreeMap<String, usize>, what_to_do: &str) {
    let listed = include_str!("known.txt")
        .lines()
        .filter_map(|line| line.rsplit_once(' '));
    let mut listed: BTreeMap<_, usize> = listed.map(|(n, c)| (n, c.parse().unwrap())).collect();
    listed.retain(|name, _| kinds.iter().any(|kind| name.starts_with(kind)));
    let grown = found
        .iter()
        .filter(|(n, count)| listed.get(&***n).is_none_or(|old| old < *count));
    let mut wrong: Vec<_> = grown
        .map(|(n, count)| format!("{n} {count}: {what_to_do}"))
        .collect();
    let gone = listed.keys().filter(|name| !found.contains_key(**name));
    wrong.extend(gone.map(|n| format!("{n}: mended; delete it in tests/architecture/known.txt")));
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn imports_run_one_way() {
    for source in product() {
        let place = |name: &str| ORDER.iter().position(|other| *other == name);
        let own = place(source.1.first().map_or("", |top| top)).expect(&source.0);
        for other in paths(&source).iter().filter_map(|path| path.first()) {
            let up = place(other).is_some_and(|other| other < own);
            let aside = ORDER[own] == "backends" && place(other).is_some_and(|other| other > own);
            let wrong = up || aside && !["settings", "lock"].contains(&&**other);
            assert!(
                !wrong,
                "{} imports {other}: move down what it needs",
                source.0
            );
        }
    }
}

/// A module and its parts may import each other; other files may not, by whatever way. What a part
/// takes from the names that its module hands on counts as taken from the module.
#[test]
fn no_files_import_each_other() {
    let all = product();
    let file = |path: &Vec<String>| {
        let mut lengths = (1..=path.len()).rev();
        lengths.find_map(|n| all.iter().position(|(_, module, _)| *module == path[..n]))
    };
    let mut left: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (n, source) in all.iter().enumerate() {
        let apart =
            |other: &Vec<String>| !source.1.starts_with(other) && !other.starts_with(&source.1);
        let used = paths(source)
            .iter()
            .filter_map(file)
            .filter(|n| apart(&all[*n].1))
            .collect();
        left.insert(n, used);
    }
    // Whatever imports nothing that is left is in no circle, and neither is what nothing imports.
    while let Some(n) = left.iter().find_map(|(n, used)| {
        let imports = used.iter().any(|other| left.contains_key(other));
        let imported = left.values().any(|used| used.contains(n));
        (!imports || !imported).then_some(*n)
    }) {
        left.remove(&n);
    }
    let circle: Vec<_> = left.keys().map(|n| &all[*n].0).collect();
    assert!(
        circle.is_empty(),
        "move out what these need of each other: {circle:?}"
    );
}

#[test]
fn what_is_too_long_only_gets_shorter() {
    let mut found = BTreeMap::new();
    for (path, _, lines) in product() {
        found.insert(format!("lines {path}"), lines.len());
        for (at, line) in lines.iter().enumerate() {
            let indent = line.len() - line.trim_start().len();
            let Some((before, name)) = line.split_once("fn ") else {
                continue;
            };
            let is_head = !before.contains(['/', '"', '=', '.', ',']);
            let body = lines[at..]
                .iter()
                .find(|line| line.ends_with(['{', ';', '}']));
            let end = lines[at..]
                .iter()
                .position(|line| *line == " ".repeat(indent) + "}");
            if is_head && body.is_some_and(|line| line.ends_with('{')) {
                let name = name.split(['(', '<']).next().unwrap();
                let longest = found.entry(format!("function {path} {name}")).or_default();
                *longest = (*longest).max(end.unwrap_or_default() + 1);
            }
        }
    }
    found.retain(|name, n| *n > if name.starts_with("lines") { 400 } else { 80 });
    compare(
        &["lines", "function"],
        &found,
        "too long; split it by what it is about",
    );
}

#[test]
fn only_these_wait() {
    let mut found = BTreeMap::new();
    for source in product() {
        let waits = |path: &Vec<String>| {
            let is_wait = |last: &String| WAITS.contains(&&**last);
            path.iter().any(|part| part == "time" || part == "thread")
                && path.last().is_some_and(is_wait)
        };
        if paths(&source).iter().any(waits) {
            found.insert(format!("waits {}", source.0), 0);
        }
        let repeats = |line: &String| line.contains("for _ in 0..");
        if source.0.starts_with("src/backends") && source.2.iter().any(repeats) {
            found.insert(format!("repeats {}", source.0), 0);
        }
    }
    compare(
        &["waits", "repeats"],
        &found,
        "waiting is the lease core's; see src/ARCHITECTURE.md",
    );
}
