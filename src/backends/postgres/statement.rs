//! Fills values into statements: sqlx prepares a statement with parameters, which costs one more
//! round trip.
//!
//! No value can end its literal, or a dollar-quoted body around it, under any settings of the
//! server.

use std::fmt::Write as _;

use serde::Serialize;

use crate::{backends::sql, lock::Result};

/// The value of a parameter.
#[derive(Clone, Copy, Debug)]
pub(super) enum Value<'a> {
    /// Text.
    Text(&'a str),
    /// Text or NULL.
    Maybe(Option<&'a str>),
    /// Texts.
    Texts(&'a [String]),
    /// A `bigint`.
    Int(i64),
    /// A `bigint` or NULL.
    MaybeInt(Option<i64>),
    /// A `double precision`.
    Real(f64),
    /// A truth value.
    Bool(bool),
    /// A part of a statement that has its values.
    Sql(&'a str),
}

impl Value<'_> {
    fn write(self, out: &mut String) {
        // Writing to a String can't fail.
        let _ = match self {
            Self::Text(text) | Self::Maybe(Some(text)) => {
                quote(out, text);
                Ok(())
            }
            Self::Maybe(None) => write!(out, "NULL::text"),
            Self::Texts(texts) => {
                out.push_str("ARRAY[");
                for (nth, text) in texts.iter().enumerate() {
                    out.push_str(if nth == 0 { "" } else { "," });
                    quote(out, text);
                }
                write!(out, "]::text[]")
            }
            Self::Int(number) | Self::MaybeInt(Some(number)) => write!(out, "'{number}'::bigint"),
            Self::MaybeInt(None) => write!(out, "NULL::bigint"),
            Self::Real(number) => write!(out, "'{number}'::double precision"),
            Self::Bool(truth) => write!(out, "{truth}"),
            Self::Sql(sql) => write!(out, "{}", sql.trim_end()),
        };
    }
}

/// Returns a value by itself, as SQL.
pub(super) fn literal(value: Value<'_>) -> String {
    let mut out = String::new();
    value.write(&mut out);
    out
}

/// Writes a literal with escapes, which no setting changes. Characters beyond ASCII need no escape:
/// the session speaks UTF-8.
fn quote(out: &mut String, text: &str) {
    out.push_str("E'");
    for c in text.chars() {
        if c.is_ascii_control() || matches!(c, '\'' | '\\' | '$') {
            let _ = write!(out, "\\x{:02X}", u32::from(c));
        } else {
            out.push(c);
        }
    }
    out.push_str("'::text");
}

/// Returns a statement with the nth value for each `$n`, without its comments. `$n` in a value is
/// left alone.
///
/// # Panics
/// If a value is missing, which is a mistake in a statement of dlock.
pub(super) fn fill(sql: &str, values: &[Value<'_>]) -> String {
    let mut out = String::with_capacity(sql.len() * 2);
    for line in sql
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with("--"))
    {
        let mut parts = line.split('$');
        out.push_str(parts.next().unwrap_or_default());
        for part in parts {
            let digits = part
                .find(|c: char| !c.is_ascii_digit())
                .unwrap_or(part.len());
            let (number, rest) = part.split_at(digits);
            let value = number
                .parse()
                .ok()
                .and_then(|number: usize| values.get(number.checked_sub(1)?));
            value
                .unwrap_or_else(|| panic!("no value for ${number}"))
                .write(&mut out);
            out.push_str(rest);
        }
        out.push('\n');
    }
    out
}

/// Returns a column's JSON.
pub(super) fn json(value: Option<&impl Serialize>) -> Result<Option<String>> {
    Ok(sql::json(value)?.map(|json| ascii(&json)))
}

/// Returns JSON in ASCII, which every encoding has.
pub(super) fn ascii(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        if c.is_ascii() {
            out.push(c);
            continue;
        }
        for unit in c.encode_utf16(&mut [0; 2]) {
            // Writing to a String can't fail.
            let _ = write!(out, "\\u{unit:04x}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn values_replace_their_numbers() {
        let values: Vec<_> = (1..=10)
            .map(Value::Int)
            .chain([Value::Text("$1 '; --"), Value::Maybe(None)])
            .collect();
        assert_eq!(
            fill("-- $1 a comment\n  SELECT $1,$10\n\n  , $11, $12;", &values),
            "SELECT '1'::bigint,'10'::bigint\n, E'\\x241 \\x27; --'::text, NULL::text;\n"
        );
        let texts = ["a".to_owned(), "b'".to_owned()];
        assert_eq!(
            fill("$1 $2", &[Value::Texts(&texts), Value::Bool(true)]),
            "ARRAY[E'a'::text,E'b\\x27'::text]::text[] true\n"
        );
    }

    proptest! {
        #[test]
        fn no_value_ends_its_literal(text in ".{0,40}|['\\\\$a\n\u{0}]{0,20}") {
            let mut out = String::new();
            quote(&mut out, &text);
            let inner = out.strip_prefix("E'").and_then(|rest| rest.strip_suffix("'::text")).expect("a literal");
            prop_assert!(!inner.contains(['\'', '$', '\n', '\0']));
            // Read as the server does: two hexadecimal digits follow each backslash.
            let mut parts = inner.split('\\');
            let mut read = parts.next().unwrap_or_default().to_owned();
            for part in parts {
                let (code, rest) = part[1..].split_at(2);
                read.push(char::from(u8::from_str_radix(code, 16).expect("digits")));
                read.push_str(rest);
            }
            prop_assert_eq!(read, text);
        }
    }
}
