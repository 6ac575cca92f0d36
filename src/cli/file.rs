//! The configuration file: TOML with a fixed set of keys. Values stay text, with their line
//! numbers.
//!
//! Only the structure of the whole file is checked here. A value is checked when it is used.

use std::{
    collections::BTreeMap,
    fs,
    io::{self, Read as _},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use toml::de::{DeTable, DeValue};

use super::{
    env::Env,
    secret_file,
    setting::{Origin, Setting, short},
    spec, suggest,
};
use crate::lock::{Error, Key, Kind, Result};

/// The system's file.
const SYSTEM_WIDE: &str = "/etc/dlock/config.toml";
/// A larger file is refused.
const MAX_BYTES: u64 = 1 << 20;

/// The configuration that was read.
#[derive(Debug, Default)]
pub struct File {
    /// Its top level.
    pub top: Table,
    /// `[backends.NAME]`.
    pub backends: BTreeMap<String, Table>,
    /// `[keys."KEY"]`.
    pub keys: BTreeMap<String, Table>,
    /// The files that were read, in order of precedence.
    pub paths: Vec<PathBuf>,
}

/// The settings of one table.
#[derive(Debug, Default)]
pub struct Table(BTreeMap<String, Setting>);

impl Table {
    /// Returns a setting of this table.
    pub fn get(&self, name: &str) -> Option<&Setting> {
        self.0.get(name)
    }

    /// Adds the settings from `other` that this table does not have.
    fn extend(&mut self, other: Self) {
        for (name, setting) in other.0 {
            self.0.entry(name).or_insert(setting);
        }
    }
}

impl File {
    /// Reads the file in `named`; without it the user's file, completed by the system's.
    ///
    /// # Errors
    /// [`Kind::Config`] if a file can't be read or parsed, or if all users can read a password in
    /// it.
    pub fn load(named: Option<&Setting>, env: &Env) -> Result<Self> {
        if let Some(setting) = named {
            let path = Path::new(&setting.text);
            return match open(path) {
                Ok(file) => Self::read(file, path),
                Err(error) => Err(Error::new(
                    Kind::Config,
                    format!(
                        "{}: {}: {}",
                        setting.origin,
                        path.display(),
                        crate::lock::plain(&error)
                    ),
                )),
            };
        }
        let users = env
            .xdg("XDG_CONFIG_HOME", ".config")
            .map(|folder| folder.join("dlock/config.toml"));
        Self::load_each(users.into_iter().chain([SYSTEM_WIDE.into()]))
    }

    /// Reads the files that exist. Earlier files take precedence.
    fn load_each(paths: impl Iterator<Item = PathBuf>) -> Result<Self> {
        let mut merged = Self::default();
        for path in paths {
            match open(&path) {
                Ok(file) => merged.complete(Self::read(file, &path)?),
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
                    ) => {}
                // Without this file, dlock could use another store than the other nodes, and each
                // node would run the job.
                Err(error) => {
                    let hint = "is HOME this user's? --config or DLOCK_CONFIG names one file to read instead";
                    return Err(wrong(&path, None, crate::lock::plain(&error)).hint(hint));
                }
            }
        }
        Ok(merged)
    }

    /// Adds the settings of a file with lower precedence that this one does not have.
    ///
    /// A backend with a `url` in this file takes nothing from the other: a password must not reach
    /// another server.
    fn complete(&mut self, lower: Self) {
        self.top.extend(lower.top);
        for (name, table) in lower.backends {
            let ours = self.backends.entry(name).or_default();
            if ours.get("url").is_none() {
                ours.extend(table);
            }
        }
        for (name, table) in lower.keys {
            self.keys.entry(name).or_default().extend(table);
        }
        self.paths.extend(lower.paths);
    }

    fn read(file: fs::File, path: &Path) -> Result<Self> {
        let owner = file
            .metadata()
            .map_err(|error| wrong(path, None, crate::lock::plain(&error)))?
            .uid();
        if rustix::process::geteuid().is_root() && owner != 0 {
            // The file's owner could choose the store that root uses, and the files that root
            // writes.
            return Err(wrong(
                path,
                None,
                format!("user {owner} owns it, so root does not read it"),
            )
            .hint("set HOME to root's own, name another file with --config, or chown it to root"));
        }
        let open_to_all = secret_file::others_can_read(&file, path)
            .map_err(|error| wrong(path, None, crate::lock::plain(&error)))?;
        let mut text = String::new();
        file.take(MAX_BYTES + 1)
            .read_to_string(&mut text)
            .map_err(|error| wrong(path, None, crate::lock::plain(&error)))?;
        if text.len() as u64 > MAX_BYTES {
            return Err(wrong(
                path,
                None,
                format!("it has more than {MAX_BYTES} bytes"),
            ));
        }
        let file = Self::parse(&text, path)?;
        if open_to_all && file.holds_password() {
            return Err(wrong(path, None, secret_file::OPEN_TO_ALL).hint(format!(
                "chmod o-rwx {}, or keep the password in a password_file",
                path.display()
            )));
        }
        Ok(file)
    }

    fn holds_password(&self) -> bool {
        let in_table = |table: &Table| {
            let in_url = |name| {
                table
                    .get(name)
                    .is_some_and(|s: &Setting| crate::settings::url::has_password(&s.text))
            };
            table
                .get("password")
                .or_else(|| table.get("sentinel_password"))
                .is_some()
                || in_url("url")
                || in_url("backend")
        };
        [&self.top]
            .into_iter()
            .chain(self.backends.values())
            .chain(self.keys.values())
            .any(in_table)
    }

    /// Parses the text of a file.
    ///
    /// # Errors
    /// [`Kind::Config`] with the line.
    pub fn parse(text: &str, path: &Path) -> Result<Self> {
        let reader = Reader { text, path };
        let document = DeTable::parse(text).map_err(|error| {
            let line = error.span().map(|span| reader.line(span.start));
            wrong(
                path,
                line,
                error.message().lines().next().unwrap_or_default(),
            )
        })?;
        let mut file = Self {
            paths: vec![path.to_owned()],
            ..Self::default()
        };
        let mut plain = Vec::new();
        for (name, value) in document.get_ref() {
            let line = reader.line(name.span().start);
            match (name.get_ref().as_ref(), value.get_ref()) {
                ("backends", DeValue::Table(backends)) => {
                    for (name, value) in backends {
                        let line = reader.line(name.span().start);
                        let title = format!("backends.{}", name.get_ref());
                        if name.get_ref() == "local"
                            || name.get_ref().contains(':')
                            || name.get_ref().is_empty()
                        {
                            return Err(wrong(
                                path,
                                Some(line),
                                format!("{title}: a backend can't have this name"),
                            ));
                        }
                        let known: Vec<&str> =
                            spec::names('b').chain(spec::backend_keys()).collect();
                        file.backends.insert(
                            name.get_ref().to_string(),
                            reader.table(&title, line, value.get_ref(), &known)?,
                        );
                    }
                }
                ("keys", DeValue::Table(keys)) => {
                    let known: Vec<&str> = spec::names('k').collect();
                    for (name, value) in keys {
                        let line = reader.line(name.span().start);
                        let title = format!("keys.{:?}", short(name.get_ref()));
                        if let Err(error) = Key::new(name.get_ref().as_ref()) {
                            return Err(wrong(path, Some(line), format!("{title}: {error}"))
                                .hint(error.hint.unwrap_or_default()));
                        }
                        file.keys.insert(
                            name.get_ref().to_string(),
                            reader.table(&title, line, value.get_ref(), &known)?,
                        );
                    }
                }
                ("backends" | "keys", _) => {
                    return Err(wrong(
                        path,
                        Some(line),
                        format!("{}: it is not a table", name.get_ref()),
                    ));
                }
                _ => plain.push((name, value)),
            }
        }
        let known: Vec<&str> = spec::names('t').chain(["backends", "keys"]).collect();
        for (name, value) in plain {
            reader.add(
                &mut file.top,
                "",
                name.get_ref(),
                reader.line(name.span().start),
                value.get_ref(),
                &known,
            )?;
        }
        Ok(file)
    }
}

fn open(path: &Path) -> io::Result<fs::File> {
    let file = fs::File::open(path)?;
    if file.metadata()?.is_dir() {
        Err(io::ErrorKind::IsADirectory.into())
    } else {
        Ok(file)
    }
}

fn wrong(path: &Path, line: Option<usize>, why: impl std::fmt::Display) -> Error {
    let line = line.map(|line| format!(":{line}")).unwrap_or_default();
    Error::new(Kind::Config, format!("{}{line}: {why}", path.display()))
}

struct Reader<'a> {
    text: &'a str,
    path: &'a Path,
}

impl Reader<'_> {
    fn line(&self, at: usize) -> usize {
        1 + self
            .text
            .as_bytes()
            .iter()
            .take(at)
            .filter(|byte| **byte == b'\n')
            .count()
    }

    fn table(
        &self,
        title: &str,
        line: usize,
        value: &DeValue<'_>,
        known: &[&str],
    ) -> Result<Table> {
        let DeValue::Table(entries) = value else {
            return Err(wrong(
                self.path,
                Some(line),
                format!("{title}: it is not a table"),
            ));
        };
        let mut table = Table::default();
        for (name, value) in entries {
            self.add(
                &mut table,
                title,
                name.get_ref(),
                self.line(name.span().start),
                value.get_ref(),
                known,
            )?;
        }
        Ok(table)
    }

    fn add(
        &self,
        table: &mut Table,
        title: &str,
        name: &str,
        line: usize,
        value: &DeValue<'_>,
        known: &[&str],
    ) -> Result<()> {
        let place = if title.is_empty() {
            String::new()
        } else {
            format!("[{title}] ")
        };
        if !known.contains(&name) {
            let elsewhere =
                spec::find(name).is_some_and(|spec| title.is_empty() && spec.tables == "k");
            let hint = if elsewhere {
                format!("{name} is one job's: it stands in [keys.\"KEY\"]")
            } else {
                suggest::or_all(name, known)
            };
            return Err(wrong(
                self.path,
                Some(line),
                format!("{place}there is no setting {:?} here", short(name)),
            )
            .hint(hint));
        }
        let text = match value {
            DeValue::String(text) => text.to_string(),
            DeValue::Integer(number) if number.radix() == 10 => number.as_str().to_owned(),
            DeValue::Float(number) => number.as_str().to_owned(),
            DeValue::Boolean(yes) => yes.to_string(),
            other => {
                return Err(wrong(
                    self.path,
                    Some(line),
                    format!("{place}{name}: it can't be of type {}", other.type_str()),
                ));
            }
        };
        let origin = Origin::File {
            path: self.path.to_owned(),
            line,
            name: name.to_owned(),
        };
        table.0.insert(name.to_owned(), Setting { text, origin });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::damage;

    fn parse(text: &str) -> Result<File> {
        File::parse(text, Path::new("c.toml"))
    }

    #[test]
    fn values_keep_their_lines() {
        let file = parse(
            "backend = \"prod\"\nttl = 90\n\n[backends.prod]\nurl = \"redis://r1\"\n[keys.\"sms job\"]\nwait = .5\n"
                .replace(".5", "0.5")
                .as_str(),
        )
        .unwrap();
        assert_eq!(file.top.get("ttl").unwrap().text, "90");
        assert_eq!(
            file.backends["prod"].get("url").unwrap().origin.to_string(),
            "c.toml:5: url"
        );
        assert_eq!(file.keys["sms job"].get("wait").unwrap().text, "0.5");
    }

    #[test]
    fn the_users_file_is_completed_by_the_systems() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs::write(&path, text).unwrap();
            path
        };
        let user = write(
            "user",
            "ttl = 90\n[backends.own]\nurl = 'redis://own'\n[backends.prod]\nttl = 5\n[keys.job]\nwait = 1\n",
        );
        let system = write(
            "system",
            "backend = 'prod'\nttl = 60\n[backends.prod]\nurl = 'redis://r1'\nttl = 7\n[backends.own]\nurl = 'redis://x'\n\
             password_file = '/p'\n[keys.job]\nwait = 2\nonce_per = '1d'\n",
        );
        let file =
            File::load_each([user.clone(), folder.path().join("none"), system.clone()].into_iter())
                .unwrap();
        let at = |setting: Option<&Setting>| {
            setting.map(|setting| (setting.text.clone(), setting.origin.to_string()))
        };
        let from = |path: &Path, line: usize, name: &str, text: &str| {
            Some((
                text.to_owned(),
                format!("{}:{line}: {name}", path.display()),
            ))
        };
        assert_eq!(
            at(file.top.get("backend")),
            from(&system, 1, "backend", "prod")
        );
        assert_eq!(at(file.top.get("ttl")), from(&user, 1, "ttl", "90"));
        assert_eq!(
            at(file.backends["prod"].get("url")),
            from(&system, 4, "url", "redis://r1")
        );
        assert_eq!(
            at(file.backends["prod"].get("ttl")),
            from(&user, 5, "ttl", "5")
        );
        assert_eq!(
            at(file.backends["own"].get("url")),
            from(&user, 3, "url", "redis://own")
        );
        assert_eq!(
            at(file.backends["own"].get("password_file")),
            None,
            "a password for another server is not taken"
        );
        assert_eq!(
            at(file.keys["job"].get("wait")),
            from(&user, 7, "wait", "1")
        );
        assert_eq!(
            at(file.keys["job"].get("once_per")),
            from(&system, 11, "once_per", "1d")
        );
        assert_eq!(file.paths, [user, system.clone()]);
        fs::write(&system, "tll = 1\n").unwrap();
        assert!(
            File::load_each([system].into_iter()).is_err(),
            "a mistake in any file is reported"
        );
    }

    #[test]
    fn unknown_keys_are_refused_with_the_nearest() {
        for (text, message, hint) in [
            (
                "tll = 5",
                r#"c.toml:1: there is no setting "tll" here"#,
                "did you mean ttl?",
            ),
            (
                "\n[backends.x]\nurl = 'redis://a'\npasword = 'x'",
                r#"c.toml:4: [backends.x] there is no setting "pasword" here"#,
                "did you mean password?",
            ),
            (
                "[keys.a]\ngrece = 1",
                r#"c.toml:2: [keys."a"] there is no setting "grece" here"#,
                "did you mean grace?",
            ),
            (
                "[kyes.a]\nttl = 1",
                r#"c.toml:1: there is no setting "kyes" here"#,
                "did you mean keys?",
            ),
        ] {
            let error = parse(text).unwrap_err();
            assert_eq!(
                (error.kind, error.message.as_str(), error.hint.as_deref()),
                (Kind::Config, message, Some(hint)),
                "{text}"
            );
        }
    }

    #[test]
    fn malformed_files_are_refused_with_the_line() {
        for (text, start) in [
            ("\nttl = \n", "c.toml:2: "),
            ("\nttl = [1]", "c.toml:2: ttl: it can't be"),
            ("keys = 5", "c.toml:1: keys: it is not a table"),
            ("[backends.local]\nurl = 'x'", "c.toml:1: backends.local: "),
            ("[keys.\"a\\u0000b\"]\n", "c.toml:1: keys."),
            ("[keys.\"\"]\n", "c.toml:1: keys.\"\": the key is empty"),
            ("ttl = 1\nttl = 2", "c.toml:2: "),
        ] {
            let error = parse(text).unwrap_err();
            assert!(
                error.kind == Kind::Config && error.message.starts_with(start),
                "{text}: {}",
                error.message
            );
        }
    }

    #[test]
    fn an_enormous_key_is_refused_in_one_short_line() {
        let error = parse(&format!("[keys.\"{}\"]\nttl = 1", "x".repeat(1 << 19))).unwrap_err();
        assert!(
            error.message.len() < 200 && error.message.contains("524288 bytes, more than 255"),
            "{}",
            error.message
        );
    }

    #[test]
    fn damaged_files_never_panic() {
        let whole = "backend = \"prod\"\nttl = 90\nkeys_ = { a = 1 }\n\n[backends.prod]\nurl = \"redis://r1\"\npassword_file = '/etc/p'\n\
                     [keys.\"sms job\"]\nwait = \"1h 5m\"\nonce_per = \"1d\"\n";
        damage::each(|dice| {
            let _ = parse(&damage::text(whole, dice));
        });
    }
}
