//! The environment, read once. An empty variable counts as unset.

use std::{collections::BTreeMap, ffi::OsString, path::PathBuf};

use crate::lock::{Error, Kind, Result};

/// The environment variables of this process.
#[derive(Clone, Debug, Default)]
pub struct Env(BTreeMap<OsString, OsString>);

impl Env {
    /// Reads the process's environment.
    pub fn read() -> Self {
        std::env::vars_os().collect()
    }

    /// Returns a variable's value, which may be any bytes.
    pub fn get_os(&self, name: &str) -> Option<&OsString> {
        self.0
            .get(std::ffi::OsStr::new(name))
            .filter(|value| !value.is_empty())
    }

    /// Returns a variable's value.
    ///
    /// # Errors
    /// [`Kind::Usage`] if it is not UTF-8.
    pub fn get(&self, name: &str) -> Result<Option<&str>> {
        self.get_os(name)
            .map(|value| {
                value
                    .to_str()
                    .ok_or_else(|| Error::new(Kind::Usage, format!("{name}: it is not UTF-8")))
            })
            .transpose()
    }

    /// Returns the names of all variables that are set and not empty.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0
            .iter()
            .filter(|(_, value)| !value.is_empty())
            .filter_map(|(name, _)| name.to_str())
    }

    /// Returns a directory of the XDG specification: `variable` if it is absolute, else
    /// `below_home` in the home directory.
    pub fn xdg(&self, variable: &str, below_home: &str) -> Option<PathBuf> {
        let named = self
            .get_os(variable)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute());
        named.or_else(|| {
            let home = self
                .get_os("HOME")
                .map(PathBuf::from)
                .filter(|path| path.is_absolute());
            home.map(|home| home.join(below_home))
        })
    }
}

impl<K: Into<OsString>, V: Into<OsString>> FromIterator<(K, V)> for Env {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(variables: I) -> Self {
        Self(
            variables
                .into_iter()
                .map(|(name, value)| (name.into(), value.into()))
                .collect(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_is_unset_and_relative_is_ignored() {
        let env: Env = [
            ("A", ""),
            ("XDG_STATE_HOME", "relative"),
            ("HOME", "/home/ana"),
        ]
        .into_iter()
        .collect();
        assert_eq!(env.get("A").unwrap(), None);
        assert_eq!(
            env.xdg("XDG_STATE_HOME", ".local/state"),
            Some("/home/ana/.local/state".into())
        );
        assert_eq!(Env::default().xdg("XDG_STATE_HOME", ".local/state"), None);
    }
}
