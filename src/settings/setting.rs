//! One setting: its text, its origin, and its parsers.
//!
//! Every setting stays text until here, whatever its origin. So each setting has one parser, and
//! every error can name the origin.

use std::{
    fmt,
    path::{Path, PathBuf},
    time::Duration,
};

use super::{duration, suggest};
use crate::lock::{Error, Kind, Result, Ttl};

/// The range of TTLs, for hints.
const TTLS: &str = "a TTL is between 1s and 365d";
/// The longest note or reason, in bytes.
pub const DESCRIPTION: usize = 500;

/// The origin of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A flag of the command line.
    Flag(&'static str),
    /// An environment variable.
    Env(String),
    /// A line of the configuration file.
    File {
        /// The path of the file.
        path: PathBuf,
        /// The line, counted from 1.
        line: usize,
        /// The key of the line.
        name: String,
    },
}

impl Origin {
    /// Returns the kind of error for a wrong value: a mistake of the caller or of the
    /// configuration.
    pub const fn kind(&self) -> Kind {
        match self {
            Self::Flag(_) | Self::Env(_) => Kind::Usage,
            Self::File { .. } => Kind::Config,
        }
    }

    /// Creates an error about the value with this origin.
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

/// The value of a setting.
#[derive(Clone, Debug)]
pub struct Setting {
    /// The value as it was given. It may be a secret: only the parsers below repeat it.
    pub text: String,
    /// Where the value was given.
    pub origin: Origin,
}

impl Setting {
    /// Creates an error about this value, with its origin.
    pub fn refuse(&self, why: impl fmt::Display) -> Error {
        self.origin.refuse(why)
    }

    /// Turns `error` into an error about this value: adds the origin in front, and sets the
    /// origin's kind.
    pub fn blame(&self, mut error: Error) -> Error {
        error.kind = self.origin.kind();
        error.message = format!("{}: {}", self.origin, error.message);
        error
    }

    /// Parses a duration; `range` describes the allowed values for the hint.
    ///
    /// # Errors
    /// If the text is not a duration.
    pub fn duration(&self, range: &str) -> Result<Duration> {
        duration::parse(&self.text).map_err(|why| {
            self.refuse(format!("{:?}: {why}", short(&self.text)))
                .hint(format!("{range}, {}", duration::EXAMPLES))
        })
    }

    /// Parses one of a fixed set of words.
    ///
    /// # Errors
    /// If the text is none of the words; the hint names the nearest one.
    pub fn choice<T: Copy>(&self, choices: &[(&str, T)]) -> Result<T> {
        if let Some((_, value)) = choices.iter().find(|(name, _)| *name == self.text) {
            return Ok(*value);
        }
        let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
        let hint = suggest::or_all(&self.text, &names);
        Err(self
            .refuse(format!("it can't be {:?}", short(&self.text)))
            .hint(hint))
    }

    /// Parses yes or no.
    ///
    /// # Errors
    /// If the text is neither.
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

    /// Parses an exit status.
    ///
    /// # Errors
    /// If the text is not a number from 0 to 255.
    pub fn status(&self) -> Result<u8> {
        self.text.parse().map_err(|_| {
            self.refuse(format!("{:?} is no exit status", short(&self.text)))
                .hint("an exit status is a number from 0 to 255")
        })
    }

    /// Parses a duration between two others; `range` describes them for the hint.
    ///
    /// # Errors
    /// If the text is not a duration, or is out of range.
    pub fn within(&self, (least, most, range): (Duration, Duration, &str)) -> Result<Duration> {
        let length = self.duration(range)?;
        if (least..=most).contains(&length) {
            Ok(length)
        } else {
            Err(self
                .refuse(format!("{:?} is out of range", self.text))
                .hint(range))
        }
    }

    /// Parses a TTL.
    ///
    /// # Errors
    /// If the text is not a duration, or is out of range.
    pub fn ttl(&self) -> Result<Ttl> {
        Ttl::new(self.duration(TTLS)?).map_err(|_| {
            self.refuse(format!("{:?} is out of range", self.text))
                .hint(TTLS)
        })
    }

    /// Returns the text as one line of at most `most` bytes.
    ///
    /// # Errors
    /// If the text is too long or has control characters.
    pub fn line(&self, most: usize) -> Result<String> {
        let length = self.text.len();
        if length > most {
            return Err(self.refuse(format!("it has {length} bytes, more than {most}")));
        }
        if self.text.chars().any(char::is_control) {
            return Err(self.refuse("it has control characters"));
        }
        Ok(self.text.clone())
    }

    /// Returns the text as a path.
    pub fn path(&self) -> &Path {
        Path::new(&self.text)
    }
}

/// Checks the text of `--reason`.
///
/// # Errors
/// If the text is too long or has control characters.
pub fn reason(text: String) -> Result<String> {
    Setting {
        text,
        origin: Origin::Flag("--reason"),
    }
    .line(DESCRIPTION)
}

/// Returns at most 60 characters of a value, so that a message stays one line.
pub fn short(text: &str) -> String {
    if text.chars().count() <= 60 {
        text.to_owned()
    } else {
        text.chars().take(57).chain("...".chars()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setting(text: &str) -> Setting {
        Setting {
            text: text.into(),
            origin: Origin::Env("DLOCK_X".into()),
        }
    }

    #[test]
    fn errors_name_the_origin_and_a_fix() {
        let error = setting("1e30")
            .duration("a TTL is between 1s and 365d")
            .unwrap_err();
        assert_eq!(error.to_string(), r#"DLOCK_X: "1e30": invalid duration"#);
        assert_eq!(
            error.hint.as_deref(),
            Some("a TTL is between 1s and 365d, like 90, .5, 30s, 5m or 1h 30m")
        );
        let error = setting("kil")
            .choice(&[("kill", 1), ("wait", 2)])
            .unwrap_err();
        assert_eq!(error.hint.as_deref(), Some("did you mean kill?"));
        assert_eq!(setting("256").status().unwrap_err().kind, Kind::Usage);
    }

    #[test]
    fn a_mistake_in_a_file_is_a_configuration_error() {
        let origin = Origin::File {
            path: "/etc/dlock/config.toml".into(),
            line: 12,
            name: "ttl".into(),
        };
        let error = origin.refuse("nonsense");
        assert_eq!(
            (error.kind, error.to_string().as_str()),
            (Kind::Config, "/etc/dlock/config.toml:12: ttl: nonsense")
        );
    }
}
