//! One setting: its text, where it came from, and how it is read.
//!
//! Every setting is text until here, wherever it stood, so that each has one parser and every error can name
//! the place.

use std::{fmt, path::PathBuf, time::Duration};

use super::{duration, suggest};
use crate::lock::{Error, Kind, Result};

/// Where a value stood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A flag of the command line.
    Flag(&'static str),
    /// An environment variable.
    Env(String),
    /// A line of the configuration file.
    File {
        /// Which file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// The key of the line.
        name: String,
    },
}

impl Origin {
    /// What a wrong value from here is: the caller's mistake, or the configuration's.
    pub const fn kind(&self) -> Kind {
        match self {
            Self::Flag(_) | Self::Env(_) => Kind::Usage,
            Self::File { .. } => Kind::Config,
        }
    }

    /// An error about the value that stood here.
    pub fn refuse(&self, why: impl fmt::Display) -> Error {
        Error::new(self.kind(), format!("{self}: {why}"))
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(flag) => f.write_str(flag),
            Self::Env(name) => f.write_str(name),
            Self::File { path, line, name } => write!(f, "{}:{line}: {name}", path.display()),
        }
    }
}

/// A value that was given for a setting.
#[derive(Clone, Debug)]
pub struct Setting {
    /// The value as it stood there. May be a secret: only the parsers below repeat it.
    pub text: String,
    /// Where.
    pub origin: Origin,
}

impl Setting {
    /// An error about this value, from the same place.
    pub fn refuse(&self, why: impl fmt::Display) -> Error {
        self.origin.refuse(why)
    }

    /// As `error`, said of this value: the place in front, and the status that belongs to the place.
    pub fn blame(&self, mut error: Error) -> Error {
        error.kind = self.origin.kind();
        error.message = format!("{}: {}", self.origin, error.message);
        error
    }

    /// A length of time; `range` says what is allowed, for the hint.
    ///
    /// # Errors
    /// If it is none.
    pub fn duration(&self, range: &str) -> Result<Duration> {
        duration::parse(&self.text)
            .map_err(|why| self.refuse(format!("{:?}: {why}", short(&self.text))).hint(format!("{range}, {}", duration::EXAMPLES)))
    }

    /// One of a closed set of words.
    ///
    /// # Errors
    /// If it is none of them, with the nearest.
    pub fn choice<T: Copy>(&self, choices: &[(&str, T)]) -> Result<T> {
        if let Some((_, value)) = choices.iter().find(|(name, _)| *name == self.text) {
            return Ok(*value);
        }
        let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
        let hint = suggest::or_all(&self.text, &names);
        Err(self.refuse(format!("it can't be {:?}", short(&self.text))).hint(hint))
    }

    /// Yes or no.
    ///
    /// # Errors
    /// If it is neither.
    pub fn yes(&self) -> Result<bool> {
        self.choice(&[
            ("true", true),
            ("false", false),
            ("yes", true),
            ("no", false),
            ("1", true),
            ("0", false),
            ("on", true),
            ("off", false),
        ])
    }

    /// An exit status.
    ///
    /// # Errors
    /// If it is no number from 0 to 255.
    pub fn status(&self) -> Result<u8> {
        self.text
            .parse()
            .map_err(|_| self.refuse(format!("{:?} is no exit status", short(&self.text))).hint("an exit status is a number from 0 to 255"))
    }
}

/// The start of a value, so that a message stays a line.
pub fn short(text: &str) -> String {
    if text.chars().count() <= 60 { text.to_owned() } else { text.chars().take(57).chain("...".chars()).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setting(text: &str) -> Setting {
        Setting { text: text.into(), origin: Origin::Env("DLOCK_X".into()) }
    }

    #[test]
    fn errors_name_the_place_and_a_way_out() {
        let error = setting("1e30").duration("a TTL is between 1s and 365d").unwrap_err();
        assert_eq!(error.to_string(), r#"DLOCK_X: "1e30": invalid duration"#);
        assert_eq!(error.hint.as_deref(), Some("a TTL is between 1s and 365d, like 90, .5, 30s, 5m or 1h 30m"));
        let error = setting("kil").choice(&[("kill", 1), ("wait", 2)]).unwrap_err();
        assert_eq!(error.hint.as_deref(), Some("did you mean kill?"));
        assert_eq!(setting("256").status().unwrap_err().kind, Kind::Usage);
    }

    #[test]
    fn a_files_mistakes_are_the_configurations() {
        let origin = Origin::File { path: "/etc/dlock/config.toml".into(), line: 12, name: "ttl".into() };
        let error = origin.refuse("nonsense");
        assert_eq!((error.kind, error.to_string().as_str()), (Kind::Config, "/etc/dlock/config.toml:12: ttl: nonsense"));
    }
}
