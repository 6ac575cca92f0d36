//! Fills values into statements, so that several statements make one round trip.
//!
//! No value can end its literal under any `sql_mode` or character set: strings are in hexadecimal,
//! and names between backticks that are doubled within.

use std::fmt::Write as _;

/// The value of a parameter.
#[derive(Clone, Copy, Debug)]
pub(super) enum Value<'a> {
    /// Bytes, compared as such.
    Bytes(&'a str),
    /// Text, which is compared by its bytes with any column.
    Text(&'a str),
    /// Text that the other side compares by its own rules.
    Words(&'a str),
    /// A whole number.
    Int(i64),
    /// The name of a table, or of a database and a table, and the end of the table's name.
    Name(&'a str, &'static str),
    /// A part of a statement.
    Sql(&'a str),
    /// NULL.
    Null,
}

impl<'a> Value<'a> {
    pub(super) fn text_or_null(text: Option<&'a str>) -> Self {
        text.map_or(Self::Null, Value::Text)
    }

    fn write(self, out: &mut String) {
        // Writing to a String can't fail.
        match self {
            Self::Bytes(bytes) => hex(out, "", bytes),
            // Without its collation, the text would have the server's or the connection's, which
            // may not fit the column's.
            Self::Text(text) => {
                hex(out, "_utf8mb4 ", text);
                out.push_str(" COLLATE utf8mb4_bin");
            }
            Self::Words(text) => hex(out, "_utf8mb4 ", text),
            Self::Int(number) => {
                let _ = write!(out, "{number}");
            }
            Self::Name(name, suffix) => {
                let quoted: Vec<_> = name
                    .splitn(2, '.')
                    .map(|part| part.replace('`', "``"))
                    .collect();
                let _ = write!(out, "`{}{suffix}`", quoted.join("`.`"));
            }
            Self::Sql(sql) => out.push_str(sql),
            Self::Null => out.push_str("NULL"),
        }
    }
}

/// Returns a value by itself, as SQL.
pub(super) fn literal(value: Value<'_>) -> String {
    let mut out = String::new();
    value.write(&mut out);
    out
}

fn hex(out: &mut String, charset: &str, text: &str) {
    out.push_str(charset);
    out.push_str("X'");
    for byte in text.bytes() {
        let _ = write!(out, "{byte:02X}");
    }
    out.push('\'');
}

/// Returns a template with a value for each `:name`, without its comments. A `:name` in a value is
/// left alone.
///
/// # Panics
/// If a name has no value, which is a mistake in a template of dlock.
pub(super) fn fill(template: &str, values: &[(&str, Value<'_>)]) -> String {
    let lines = template
        .lines()
        .map(str::trim)
        .filter(|line| !line.starts_with("--") && !line.is_empty());
    lines.map(|line| substitute(line, values) + "\n").collect()
}

/// Replaces the parameters of a line: see [`fill`].
pub(super) fn substitute(line: &str, values: &[(&str, Value<'_>)]) -> String {
    let mut out = String::with_capacity(line.len() * 2);
    let mut rest = line;
    while let Some(at) = rest.find(':') {
        let (before, after) = rest.split_at(at);
        out.push_str(before);
        let after = &after[1..];
        let end = after
            .find(|c: char| !c.is_ascii_lowercase() && c != '_')
            .unwrap_or(after.len());
        let (name, after) = after.split_at(end);
        rest = after;
        if name.is_empty() {
            out.push(':');
            continue;
        }
        let value = values.iter().find(|(known, _)| *known == name);
        value
            .unwrap_or_else(|| panic!("no value for :{name}"))
            .1
            .write(&mut out);
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_stay_values() {
        let odd = "x' OR '1'='1'; -- :b \\";
        let sql = fill(
            "-- a comment :with\nSELECT :a, :b\n  FROM :table;\n",
            &[
                ("a", Value::Text(odd)),
                ("b", Value::Null),
                ("table", Value::Name("d`b.t.x", "")),
            ],
        );
        assert_eq!(
            sql,
            "SELECT _utf8mb4 X'7827204F52202731273D2731273B202D2D203A62205C' COLLATE utf8mb4_bin, NULL\nFROM `d``b`.`t.x`;\n"
        );
        assert_eq!(
            fill(
                ":n, :b",
                &[("n", Value::Int(-7)), ("b", Value::Bytes("\u{e9}"))]
            ),
            "-7, X'C3A9'\n"
        );
    }
}
