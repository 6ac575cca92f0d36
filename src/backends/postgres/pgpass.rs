//! Reads PostgreSQL's password file as libpq does: lines `host:port:database:user:password`, of
//! which the first match counts.

use std::{fs::File, io::Read as _, path::Path};

use crate::{
    lock::{Error, Kind, Result},
    settings::secret_file,
};

/// dlock reads no more bytes than this.
const MAX_BYTES: u64 = 1024 * 1024;

/// The login whose password is looked up.
#[derive(Clone, Copy, Debug)]
pub struct Login<'a> {
    /// The host's name, or `localhost` for a Unix socket.
    pub host: &'a str,
    pub port: u16,
    pub database: &'a str,
    pub user: &'a str,
}

/// Returns the password for a login; `None` if there is no file, or no matching line.
///
/// # Errors
/// If all users can read the file. libpq silently ignores such a file, and the login fails without
/// a reason.
pub fn find(path: &Path, wanted: Login<'_>) -> Result<Option<String>> {
    let refuse = |why: &str| Error::new(Kind::Config, format!("{}: {why}", path.display()));
    let Ok(file) = File::open(path) else {
        return Ok(None);
    };
    if !file.metadata().is_ok_and(|metadata| metadata.is_file()) {
        return Ok(None);
    }
    if secret_file::others_can_read(&file, path).unwrap_or(true) {
        return Err(refuse(secret_file::OPEN_TO_ALL).hint(format!("chmod 600 {}", path.display())));
    }
    let mut text = String::new();
    file.take(MAX_BYTES)
        .read_to_string(&mut text)
        .map_err(|error| refuse(&crate::lock::plain(&error)))?;
    Ok(text.lines().find_map(|line| password_in(line, wanted)))
}

fn password_in(line: &str, wanted: Login<'_>) -> Option<String> {
    let mut rest = line.strip_suffix('\r').unwrap_or(line);
    if rest.starts_with('#') {
        return None;
    }
    for part in [
        wanted.host,
        &wanted.port.to_string(),
        wanted.database,
        wanted.user,
    ] {
        let (field, after) = field(rest)?;
        if field != part && &rest[..rest.len() - after.len() - 1] != "*" {
            return None;
        }
        rest = after;
    }
    Some(field(rest).map_or_else(|| unescaped(rest), |(password, _)| password))
        .filter(|password| !password.is_empty())
}

/// Splits `text` at the first unescaped colon into the unescaped field and the rest.
fn field(text: &str) -> Option<(String, &str)> {
    let mut escaped = false;
    let end = text.bytes().position(|byte| {
        let ends = byte == b':' && !escaped;
        escaped = byte == b'\\' && !escaped;
        ends
    })?;
    Some((unescaped(&text[..end]), &text[end + 1..]))
}

fn unescaped(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        plain.extend(if c == '\\' { chars.next() } else { Some(c) });
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_matching_line_counts() {
        let wanted = Login {
            host: "db1",
            port: 5432,
            database: "app",
            user: "ana",
        };
        let of = |line| password_in(line, wanted);
        assert_eq!(of("db1:5432:app:ana:s3cret").as_deref(), Some("s3cret"));
        assert_eq!(of("*:*:*:ana:a\\:b\\\\c\r").as_deref(), Some("a:b\\c"));
        assert_eq!(of("*:*:*:*:pw:more").as_deref(), Some("pw"));
        for other in [
            "db2:5432:app:ana:x",
            "db1:5433:app:ana:x",
            "db1:5432:app:bob:x",
            "#*:*:*:*:x",
            "",
            "*:*:*",
            "\\*:*:*:*:x",
            "*:*:*:*:",
        ] {
            assert_eq!(of(other), None, "{other}");
        }
        assert_eq!(
            password_in(
                "\\:\\:1:*:*:*:pw",
                Login {
                    host: "::1",
                    ..wanted
                }
            )
            .as_deref(),
            Some("pw")
        );
    }
}
