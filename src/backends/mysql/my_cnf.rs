//! Reads `~/.my.cnf` as the clients of MySQL and MariaDB do: the section `[client]`, which both
//! use.
//!
//! Included files are not read.

use std::{fs::File, io::Read as _, path::Path, path::PathBuf};

use crate::{
    backends::{net::tls::Tls, sql::TlsMode},
    lock::{Error, Kind, Result},
    settings::secret_file,
};

/// dlock reads no more bytes than this.
const MAX_BYTES: u64 = 1024 * 1024;

/// The TLS modes, with the names of MySQL's client.
pub const MODES: [(&str, TlsMode); 5] = [
    ("DISABLED", TlsMode::Disable),
    ("PREFERRED", TlsMode::Prefer),
    ("REQUIRED", TlsMode::Require),
    ("VERIFY_CA", TlsMode::VerifyCa),
    ("VERIFY_IDENTITY", TlsMode::VerifyFull),
];

/// The options of the section `[client]`.
#[derive(Default)]
pub struct ClientOptions {
    pub user: Option<String>,
    pub password: Option<String>,
    pub host: Option<String>,
    pub port: Option<u16>,
    pub socket: Option<PathBuf>,
    pub tls: Option<TlsMode>,
    pub files: Tls,
}

/// Reads the file; returns no options if it does not exist.
///
/// # Errors
/// If it can't be read, or if all users can read a password in it.
pub fn read(path: &Path) -> Result<ClientOptions> {
    let refuse = |why: &str| Error::new(Kind::Config, format!("{}: {why}", path.display()));
    let Ok(mut file) = File::open(path) else {
        return Ok(ClientOptions::default());
    };
    if !file.metadata().is_ok_and(|metadata| metadata.is_file()) {
        return Ok(ClientOptions::default());
    }
    let mut text = String::new();
    (&mut file)
        .take(MAX_BYTES)
        .read_to_string(&mut text)
        .map_err(|error| refuse(&crate::lock::plain(&error)))?;
    let client = parse(&text);
    if client.password.is_some() && secret_file::others_can_read(&file, path).unwrap_or(true) {
        return Err(refuse(secret_file::OPEN_TO_ALL).hint(format!("chmod 600 {}", path.display())));
    }
    Ok(client)
}

fn parse(text: &str) -> ClientOptions {
    let mut client = ClientOptions::default();
    let mut in_client = false;
    for line in text.lines().map(str::trim) {
        if let Some(section) = line.strip_prefix('[') {
            in_client = section.trim_end_matches(']').trim() == "client";
        } else if in_client && !line.starts_with(['#', ';', '!']) {
            let (name, value) = line.split_once('=').map_or((line, None), |(name, value)| {
                (name, Some(unquoted(value.trim())))
            });
            client.set(&name.trim().replace('_', "-"), value);
        }
    }
    client
}

impl ClientOptions {
    fn set(&mut self, name: &str, value: Option<String>) {
        match (name, value) {
            ("user", value) => self.user = value,
            ("password", value) => self.password = value,
            ("host", value) => self.host = value,
            ("port", Some(value)) => self.port = value.parse().ok(),
            ("socket", Some(value)) => self.socket = absolute(value),
            ("ssl-ca", Some(value)) => self.files.ca_file = absolute(value),
            ("ssl-cert", Some(value)) => self.files.cert_file = absolute(value),
            ("ssl-key", Some(value)) => self.files.key_file = absolute(value),
            ("ssl-mode", Some(value)) => {
                let mode = MODES
                    .iter()
                    .find(|(mode, _)| mode.eq_ignore_ascii_case(&value));
                self.tls = mode.map(|(_, mode)| *mode).or(self.tls);
            }
            // MariaDB's options.
            ("ssl-verify-server-cert", value) if is_on(value.as_deref()) => {
                self.tls = Some(TlsMode::VerifyFull);
            }
            ("skip-ssl", _) => self.tls = Some(TlsMode::Disable),
            _ => {}
        }
    }
}

fn is_on(value: Option<&str>) -> bool {
    value.is_none_or(|value| matches!(value.to_ascii_lowercase().as_str(), "1" | "on" | "true"))
}

fn absolute(value: String) -> Option<PathBuf> {
    Some(PathBuf::from(value)).filter(|path| path.is_absolute())
}

/// Returns a value without quotes and trailing comment, with the clients' escape sequences decoded.
fn unquoted(value: &str) -> String {
    let quote = value.chars().next().filter(|c| matches!(c, '"' | '\''));
    let inner = match quote {
        Some(quote) => value[1..]
            .rsplit_once(quote)
            .map_or(&value[1..], |(inner, _)| inner),
        None => value
            .split_once('#')
            .map_or(value, |(before, _)| before)
            .trim_end(),
    };
    let mut plain = String::with_capacity(inner.len());
    let mut chars = inner.chars();
    while let Some(c) = chars.next() {
        if c != '\\' {
            plain.push(c);
            continue;
        }
        match chars.next() {
            Some('n') => plain.push('\n'),
            Some('t') => plain.push('\t'),
            Some('r') => plain.push('\r'),
            Some('b') => plain.push('\u{8}'),
            Some('s') => plain.push(' '),
            Some(other @ ('\\' | '"' | '\'')) => plain.push(other),
            Some(other) => plain.extend(['\\', other]),
            None => plain.push('\\'),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_client_section_is_read() {
        let client = parse(
            "user = nobody\n[client]\nuser=ana # the app\npassword = \"p@ss#w\\\\rd\"\n  port = 3307\nsocket=/run/m.sock\nssl_mode=verify_ca\n\
             ssl-ca = '/ca.pem'\nhost\n[mysql]\nuser=eve\n",
        );
        assert_eq!(
            (client.user.as_deref(), client.password.as_deref()),
            (Some("ana"), Some("p@ss#w\\rd"))
        );
        assert_eq!((client.port, client.host), (Some(3307), None));
        assert_eq!(
            (client.socket, client.files.ca_file),
            (Some("/run/m.sock".into()), Some("/ca.pem".into()))
        );
        assert_eq!(client.tls, Some(TlsMode::VerifyCa));
        assert_eq!(
            parse("[client]\nssl-verify-server-cert\n").tls,
            Some(TlsMode::VerifyFull)
        );
        assert!(parse("[client-server]\nuser=x").user.is_none());
    }
}
