//! Parses the documentation: README and the sources of the man pages.

use std::fs;

/// Returns the text of a file of the project.
pub fn read(path: &str) -> String {
    fs::read_to_string(format!("{}/{path}", env!("CARGO_MANIFEST_DIR")))
        .unwrap_or_else(|_| panic!("no {path}"))
}

/// Returns README's code blocks in this language.
pub fn readme_blocks(language: &str) -> Vec<String> {
    let readme = read("README.md");
    let blocks = readme.split("\n```").skip(1).step_by(2);
    blocks
        .filter_map(|block| {
            Some(block.strip_prefix(language)?.strip_prefix('\n')?.to_owned() + "\n")
        })
        .collect()
}

/// Returns the examples of a man page: the indented blocks between its paragraphs.
pub fn examples(page: &str) -> Vec<String> {
    let text = read(&format!("src/commands/man/{page}.md"));
    let mut blocks = vec![String::new()];
    for line in text.lines() {
        let block = blocks.last_mut().expect("a block");
        match line.strip_prefix("    ") {
            Some(line) => block.extend([line, "\n"]),
            None if line.is_empty() && !block.is_empty() => block.push('\n'),
            None if !block.is_empty() => blocks.push(String::new()),
            None => {}
        }
    }
    blocks.retain(|block| !block.is_empty());
    blocks
}

/// Returns the names of the items in a section of a man page.
pub fn items(page: &str, section: &str) -> Vec<String> {
    let text = read(&format!("src/commands/man/{page}.md"));
    let section = text
        .split("\n# ")
        .find_map(|part| part.strip_prefix(section)?.strip_prefix('\n'))
        .expect("the section")
        .to_owned();
    let names = section
        .lines()
        .filter_map(|line| line.strip_prefix("- ")?.split(": ").next());
    names.map(str::to_owned).collect()
}
