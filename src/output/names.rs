//! The text of `dlock names`.

use super::{TableStyle, holders, wrapped};
use crate::lock::{Excludes, Key, Neighbour, Sharing, printable};

/// The indentation of a library's text.
const INDENT: usize = 4;

/// Returns the lock's name, then for each library which side waits for the other, and code to
/// paste. Code is never wrapped.
pub fn view(
    key: &Key,
    name: Option<&str>,
    backend: &str,
    sharing: &Sharing,
    style: TableStyle,
) -> String {
    let store = name.map_or_else(
        || backend.to_owned(),
        |name| format!("{} ({backend})", holders::clean(name, 60)),
    );
    let mut lines = vec![format!(
        "{}   {store}   stored as  {}",
        key.escaped(),
        printable(&sharing.stored_as)
    )];
    if sharing.libraries.is_empty() {
        return format!(
            "{}\n{}\n",
            lines[0],
            wrapped(
                "no other library is known to share the locks of this store",
                INDENT,
                style
            )
        );
    }
    for neighbour in &sharing.libraries {
        let Neighbour {
            library,
            code,
            namespace,
        } = neighbour;
        let (sgr, how) = verdict(neighbour);
        lines.push(format!(
            "\n{}   {}",
            style.paint("1", library.name),
            style.paint(sgr, &how)
        ));
        let mut add = |text: &str| lines.push(format!("{}{text}", " ".repeat(INDENT)));
        if let Some(code) = code {
            add(&printable(code));
        }
        if let Some(namespace) = namespace {
            add(&wrapped(
                &format!(
                    "it can't name this lock; it shares those that dlock takes with --namespace {namespace}"
                ),
                INDENT,
                style,
            ));
        }
        if !library.about.is_empty() {
            add(&wrapped(library.about, INDENT, style));
        }
    }
    lines
        .iter()
        .flat_map(|line| [line, "\n"])
        .collect::<String>()
        + &test(key)
}

/// Returns the style and the text of which side waits for the other.
fn verdict(of: &Neighbour) -> (&'static str, String) {
    match of.library.excludes {
        Excludes::BothWays if of.code.is_some() => ("32", "both ways".into()),
        Excludes::BothWays => ("33", "another name".into()),
        Excludes::OneWay => (
            "1;31",
            "ONE WAY: dlock waits for it, it does not wait for dlock".into(),
        ),
        Excludes::No => ("1;31", "NO".into()),
    }
}

/// Returns instructions to test that dlock and the other program exclude each other.
fn test(key: &Key) -> String {
    let key = holders::shell(key);
    format!(
        "\nTest it, with the same options as here:\n\
         1. Start the other program, then: dlock inspect {key}\n   It must say HELD, by a client that is not dlock.\n\
         2. dlock run -k {key} -- sleep 60, then start the other program.\n   It must be refused, or wait.\n"
    )
}
