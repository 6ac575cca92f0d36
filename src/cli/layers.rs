//! The precedence of a setting's values: flag, environment, the key's policy, the backend's table,
//! the URL, the file's top level.

use std::collections::BTreeMap;

use super::{
    env::Env,
    file::{File, Table},
    setting::{Origin, Setting},
    spec,
};
use crate::lock::{Key, Result};

/// All given values, in layers.
#[derive(Debug)]
pub struct Layers<'a> {
    /// The environment.
    pub env: &'a Env,
    /// The configuration file.
    pub file: &'a File,
    /// The key's table in the configuration file.
    pub policy: Option<&'a Table>,
    /// The backend's table in the configuration file.
    pub table: Option<&'a Table>,
    /// The parameters of the backend's URL.
    pub url: BTreeMap<String, Setting>,
    /// Whether the command uses no store, so that no password is needed or read.
    pub offline: bool,
}

impl<'a> Layers<'a> {
    /// Creates the layers before the backend is known.
    pub fn new(env: &'a Env, file: &'a File, key: Option<&Key>) -> Self {
        let policy = key.and_then(|key| file.keys.get(key.as_str()));
        Self {
            env,
            file,
            policy,
            table: None,
            url: BTreeMap::new(),
            offline: false,
        }
    }

    /// Returns the value of a setting, if one was given.
    ///
    /// # Errors
    /// If its variable is not UTF-8.
    pub fn get(&self, name: &'static str, flag: Option<&str>) -> Result<Option<Setting>> {
        if let Some(setting) = from_flag(name, flag) {
            return Ok(Some(setting));
        }
        if let Some(setting) = from_env(self.env, name)? {
            return Ok(Some(setting));
        }
        Ok(self.in_file(name))
    }

    /// Returns the value of a setting from the configuration file or the URL only.
    pub fn in_file(&self, name: &str) -> Option<Setting> {
        let tables = [self.policy, self.table]
            .into_iter()
            .flatten()
            .find_map(|table| table.get(name));
        tables
            .or_else(|| self.url.get(name))
            .or_else(|| self.file.top.get(name))
            .cloned()
    }

    /// Returns a setting that is yes or no; the default is no.
    ///
    /// # Errors
    /// If the value is neither.
    pub fn yes(&self, name: &'static str, flag: bool) -> Result<bool> {
        if flag {
            return Ok(true);
        }
        self.get(name, None)?
            .map_or(Ok(false), |setting| setting.yes())
    }
}

/// Returns the value of a flag.
pub fn from_flag(name: &str, flag: Option<&str>) -> Option<Setting> {
    let spec = spec::find(name)?;
    flag.map(|text| Setting {
        text: text.to_owned(),
        origin: Origin::Flag(spec.flag),
    })
}

/// Returns the value of a variable.
///
/// # Errors
/// If it is not UTF-8.
pub fn from_env(env: &Env, name: &str) -> Result<Option<Setting>> {
    let Some(spec) = spec::find(name).filter(|spec| spec.from_env) else {
        return Ok(None);
    };
    let variable = spec.variable();
    Ok(env.get(&variable)?.map(|text| Setting {
        text: text.to_owned(),
        origin: Origin::Env(variable.clone()),
    }))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn the_nearer_layer_wins() {
        let text = "ttl = 1\nwait = 1\nnamespace = 'top'\n[backends.prod]\nurl = 'redis://r'\nttl = 2\n[keys.job]\nttl = 3\n";
        let file = File::parse(text, Path::new("c.toml")).unwrap();
        let env: Env = [("DLOCK_TTL", "4"), ("DLOCK_WAIT", "")]
            .into_iter()
            .collect();
        let none = Env::default();
        let (job, other) = (Key::new("job").unwrap(), Key::new("other").unwrap());
        let url = |text: &str| Setting {
            text: text.into(),
            origin: Origin::Flag("--backend"),
        };
        let value = |layers: &Layers<'_>, name, flag| {
            layers
                .get(name, flag)
                .unwrap()
                .map(|s| s.text)
                .unwrap_or_default()
        };

        let mut layers = Layers::new(&env, &file, Some(&job));
        layers.table = Some(&file.backends["prod"]);
        assert_eq!(value(&layers, "ttl", Some("5")), "5");
        assert_eq!(value(&layers, "ttl", None), "4");
        assert_eq!(value(&layers, "wait", None), "1");
        layers.env = &none;
        assert_eq!(value(&layers, "ttl", None), "3");
        let mut layers = Layers::new(&none, &file, Some(&other));
        layers.table = Some(&file.backends["prod"]);
        assert_eq!(value(&layers, "ttl", None), "2");
        layers.table = None;
        layers.url.insert("ttl".into(), url("2.5"));
        assert_eq!(value(&layers, "ttl", None), "2.5");
        layers.url.clear();
        assert_eq!(value(&layers, "ttl", None), "1");
        assert_eq!(value(&layers, "grace", None), "");
    }
}
