//! The names of locks, and their namespace.

use std::{borrow::Cow, ffi::OsStr, fmt, str::FromStr};

use super::{Error, Kind, Result};

/// A lock's name as the user typed it: 1 to 255 bytes of UTF-8 without control characters.
///
/// Keys are compared by bytes: `job`, `JOB` and `job ` are three locks, and so are the composed and
/// decomposed forms of one accented letter.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(String);

impl Key {
    /// The most bytes that a key may have.
    pub const MAX_BYTES: usize = 255;

    /// Checks `name` and returns it as a key.
    ///
    /// # Errors
    /// [`Kind::Usage`] if it is empty, too long or has a control character.
    pub fn new(name: impl Into<String>) -> Result<Self> {
        let name = name.into();
        let refuse = |why: String| {
            Err(Error::new(Kind::Usage, why)
                .hint("a key is 1 to 255 bytes of UTF-8 without control characters"))
        };
        if name.is_empty() {
            return refuse("the key is empty".into());
        }
        if name.len() > Self::MAX_BYTES {
            return refuse(format!(
                "the key has {} bytes, more than {}",
                name.len(),
                Self::MAX_BYTES
            ));
        }
        if let Some(control) = name.chars().find(|c| c.is_control()) {
            return refuse(format!(
                "the key has the control character {}",
                control.escape_unicode()
            ));
        }
        Ok(Self(name))
    }

    /// Like [`Key::new`], from an argument that may not be UTF-8.
    ///
    /// # Errors
    /// As [`Key::new`], and if the name isn't UTF-8.
    pub fn from_os(name: &OsStr) -> Result<Self> {
        name.to_str().map_or_else(
            || {
                Err(Error::new(Kind::Usage, "the key is not UTF-8")
                    .hint("a key is 1 to 255 bytes of UTF-8 without control characters"))
            },
            Self::new,
        )
    }

    /// Returns the key of the lock that `doctor` tests a store with. It has a control character, so
    /// no user can type it; no list shows it.
    pub fn probe() -> Self {
        Self("\u{1f}doctor".into())
    }

    /// Returns [`Key::probe`] for this kind of backend. The modes of a SQL table refuse each
    /// other's locks, so each has a key of its own.
    pub fn probe_of(backend: &str) -> Self {
        backend
            .split_once(" mode=")
            .map_or_else(Self::probe, |(_, mode)| {
                Self(format!("{} {mode}", Self::probe().0))
            })
    }

    /// Whether `doctor` tests a store with the lock of this key.
    pub fn is_probe(&self) -> bool {
        self.0.starts_with(&Self::probe().0)
    }

    /// Returns the key as typed.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the key for a terminal, with bidirectional overrides and other invisible characters
    /// escaped.
    pub fn escaped(&self) -> Cow<'_, str> {
        crate::lock::encoding::printable(&self.0)
    }
}

impl AsRef<str> for Key {
    fn as_ref(&self) -> &str {
        self.as_str()
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Key {
    type Err = Error;

    fn from_str(s: &str) -> Result<Self> {
        Self::new(s)
    }
}

/// The prefix of every key in the store. It may be empty, to share a lock with another library.
///
/// Up to 64 of `A-Z a-z 0-9 . _ -`, so that no two pairs of namespace and key are stored under the
/// same name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace(String);

impl Namespace {
    /// Checks `name` and returns it as a namespace.
    ///
    /// # Errors
    /// [`Kind::Usage`] for other characters or more than 64 of them.
    pub fn new(name: impl Into<String>) -> Result<Self> {
        let name = name.into();
        let fits = name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b));
        if fits && name.len() <= 64 && name != "." && name != ".." {
            Ok(Self(name))
        } else {
            Err(Error::new(
                Kind::Usage,
                "the namespace has characters that it can't have, or too many",
            )
            .hint("a namespace is up to 64 of A-Z a-z 0-9 . _ -, or nothing"))
        }
    }

    /// Returns the namespace; empty if keys have no prefix.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for Namespace {
    fn default() -> Self {
        Self("dlock".into())
    }
}
