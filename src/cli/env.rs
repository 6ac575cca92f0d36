//! The environment as dlock sees it: read once, and an empty variable is as an unset one.

use std::{collections::BTreeMap, ffi::OsString, path::PathBuf};

use crate::lock::{Error, Kind, Result};

/// The variables of this process.
#[derive(Clone, Debug, Default)]
pub struct Env(BTreeMap<OsString, OsString>);

impl Env {
    /// The real ones.
    pub fn read() -> Self {
        std::env::vars_os().collect()
    }

    /// A variable's value, which may be any bytes.
    pub fn get_os(&self, name: &str) -> Option<&OsString> {
        self.0.get(std::ffi::OsStr::new(name)).filter(|value| !value.is_empty())
    }

    /// A variable's value.
    ///
    /// # Errors
    /// [`Kind::Usage`] if it is not UTF-8.
    pub fn get(&self, name: &str) -> Result<Option<&str>> {
        self.get_os(name).map(|value| value.to_str().ok_or_else(|| Error::new(Kind::Usage, format!("{name}: it is not UTF-8")))).transpose()
    }

    /// The names of all that are set.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter(|(_, value)| !value.is_empty()).filter_map(|(name, _)| name.to_str())
    }

    /// A directory of the XDG specification: `variable` if it is absolute, else `below_home` in the home directory.
    pub fn xdg(&self, variable: &str, below_home: &str) -> Option<PathBuf> {
        let named = self.get_os(variable).map(PathBuf::from).filter(|path| path.is_absolute());
        named.or_else(|| {
            let home = self.get_os("HOME").map(PathBuf::from).filter(|path| path.is_absolute());
            home.map(|home| home.join(below_home))
        })
    }
}

impl<K: Into<OsString>, V: Into<OsString>> FromIterator<(K, V)> for Env {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(variables: I) -> Self {
        Self(variables.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_is_unset_and_relative_is_ignored() {
        let env: Env = [("A", ""), ("XDG_STATE_HOME", "relative"), ("HOME", "/home/ana")].into_iter().collect();
        assert_eq!(env.get("A").unwrap(), None);
        assert_eq!(env.xdg("XDG_STATE_HOME", ".local/state"), Some("/home/ana/.local/state".into()));
        assert_eq!(Env::default().xdg("XDG_STATE_HOME", ".local/state"), None);
    }
}
