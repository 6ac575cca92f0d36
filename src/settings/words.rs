//! Splits a command into words, with the quotes of a shell and nothing else of it.

/// Returns the words: single quotes keep everything, double quotes keep spaces, a backslash keeps
/// the next character.
///
/// # Errors
/// If a quote has no end, or there is no word.
pub fn split(text: &str) -> Result<Vec<String>, String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match (quote, c) {
            (Some(open), _) if c == open => quote = None,
            (Some('\''), _) => word.get_or_insert_default().push(c),
            (_, '\\') => word
                .get_or_insert_default()
                .push(chars.next().ok_or("it ends with a backslash")?),
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, _) if c.is_whitespace() => words.extend(word.take()),
            _ => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    match (quote, words.is_empty()) {
        (Some(_), _) => Err("a quote has no end".into()),
        (None, true) => Err("it names no command".into()),
        (None, false) => Ok(words),
    }
}

#[cfg(test)]
mod tests {
    use super::split;

    #[test]
    fn quotes_and_backslashes_keep_spaces() {
        for (text, words) in [
            (
                "vault read -field=password  db/creds/x",
                &["vault", "read", "-field=password", "db/creds/x"] as &[&str],
            ),
            (
                r#" a 'b c' "d e" f\ g '' "#,
                &["a", "b c", "d e", "f g", ""],
            ),
            (r#"x'y z'"\"q" 'a\b'"#, &["xy z\"q", r"a\b"]),
            ("$HOME `id` ; |", &["$HOME", "`id`", ";", "|"]),
        ] {
            assert_eq!(split(text).unwrap(), words, "{text}");
        }
        for text in ["", "  ", "'a", "\"a", "a\\"] {
            assert!(split(text).is_err(), "{text}");
        }
    }
}
