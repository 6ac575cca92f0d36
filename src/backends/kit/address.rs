//! A store's address as it was given, and what all stores read from it alike.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Duration,
};

use super::{Scheme, StoreInfo};
use crate::{
    backends::net::{secret::Secret, tls::Tls},
    lock::{Error, Kind, Namespace, Result},
    settings::{
        env::Env,
        secret_file,
        setting::{Origin, Setting},
        url::{self, Url},
        words,
    },
};

/// The URL of a store, and all other settings that concern it. No password was read yet.
#[derive(Clone)]
pub struct Address<'a> {
    /// The text of the URL, with its origin. It may have a password.
    pub given: Setting,
    /// The URL's parts.
    pub url: Url,
    /// The store with this scheme.
    pub info: &'static StoreInfo,
    /// The URL's scheme.
    pub scheme: &'static Scheme,
    /// The parameters of the URL and of the backend's table.
    pub parameters: BTreeMap<String, Setting>,
    /// Where each password is: the nearest source.
    pub secrets: BTreeMap<&'static str, SecretSource>,
    /// The namespace of every key.
    pub namespace: Namespace,
    /// The environment, for the settings of the store's own clients.
    pub env: &'a Env,
    /// Whether the command uses no store, so that no password is needed or read.
    pub offline: bool,
    /// Returns the name of the user of this process.
    pub local_user: fn() -> String,
}

/// Where a password is.
#[derive(Clone)]
pub enum SecretSource {
    /// The password itself.
    Text(String),
    /// A file that holds it.
    File(Setting),
    /// A command that prints it within this time.
    Command(Setting, Duration),
}

impl std::fmt::Debug for SecretSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SecretSource(…)")
    }
}

impl Address<'_> {
    /// Creates an error about the URL, without any secret of it.
    pub fn wrong(&self, why: &str) -> Error {
        let shown = url::redacted(&self.given.text);
        self.given.refuse(format!("{shown}: {why}"))
    }

    /// Returns a parameter.
    pub fn parameter(&self, name: &str) -> Option<Setting> {
        self.parameters.get(name).cloned()
    }

    /// Returns a parameter that has two names: that of the store's clients and dlock's own.
    ///
    /// # Errors
    /// If both are given.
    pub fn one_of(&self, names: [&str; 2]) -> Result<Option<Setting>> {
        match names.map(|name| self.parameter(name)) {
            [Some(_), Some(setting)] => Err(setting.refuse(format!(
                "{} and {} are the same: one of them will do",
                names[0], names[1]
            ))),
            [one, other] => Ok(one.or(other)),
        }
    }

    /// Returns the parsed value of a parameter.
    ///
    /// # Errors
    /// Those of `parse`, which then name the parameter.
    pub fn value<T>(
        &self,
        name: &str,
        parse: impl FnOnce(&Setting) -> Result<T>,
    ) -> Result<Option<T>> {
        let Some(setting) = self.parameter(name) else {
            return Ok(None);
        };
        parse(&setting).map(Some).map_err(|mut error| {
            let origin = setting.origin.to_string();
            if let Some(why) = error.message.strip_prefix(&format!("{origin}: "))
                && !origin.ends_with(name)
            {
                error.message = format!("{origin}: {name}: {why}");
            }
            error
        })
    }

    /// Returns a parameter that is yes or no.
    ///
    /// # Errors
    /// If it is neither.
    pub fn yes(&self, name: &str) -> Result<Option<bool>> {
        self.value(name, Setting::yes)
    }

    /// Returns the hosts with their ports.
    ///
    /// # Errors
    /// If there is none; `example` is the hint.
    pub fn hosts(&self, usual_port: u16, example: &str) -> Result<Vec<(String, u16)>> {
        if self.url.hosts.is_empty() {
            let error = self.wrong("it has no host");
            return Err(if example.is_empty() {
                error
            } else {
                error.hint(example)
            });
        }
        let host =
            |(host, port): &(String, Option<u16>)| (host.clone(), port.unwrap_or(usual_port));
        Ok(self.url.hosts.iter().map(host).collect())
    }

    /// Returns the files for TLS, if the scheme stands for it.
    ///
    /// # Errors
    /// If a path is relative, or one half of an identity is missing.
    pub fn tls(&self) -> Result<Option<Tls>> {
        if self.scheme.tls != Some(true) {
            return Ok(None);
        }
        let names = ["cacert", "cert", "key"];
        tls_files(names, &names.map(|name| self.parameter(name))).map(Some)
    }

    /// Returns the password of the URL's user. A user without a password is an error.
    ///
    /// # Errors
    /// Also if the password can't be read.
    pub fn login(&self) -> Result<Option<Secret>> {
        let password = self.secret("password")?;
        if self.url.user.is_some() && password.is_none() && !self.offline {
            return Err(self.wrong("there is a user but no password").hint(
                "give it in DLOCK_PASSWORD, with --password-file, or as password_file in the configuration",
            ));
        }
        Ok(password)
    }

    /// Returns the password with this name from its nearest source.
    ///
    /// # Errors
    /// If it can't be read.
    pub fn secret(&self, name: &str) -> Result<Option<Secret>> {
        let source = self.secrets.get(name).filter(|_| !self.offline);
        source.map(SecretSource::read).transpose()
    }

    /// Returns a variable of the store's own clients.
    ///
    /// # Errors
    /// If it is not UTF-8.
    pub fn variable(&self, name: &str) -> Result<Option<Setting>> {
        Ok(self.env.get(name)?.map(|text| Setting {
            text: text.to_owned(),
            origin: Origin::Env(name.to_owned()),
        }))
    }

    /// Returns the file in which the store's own clients keep passwords, which may be missing.
    pub fn client_file(&self) -> Option<PathBuf> {
        self.info.client_file.as_ref()?.path(self.env)
    }
}

/// Returns the absolute path that a setting names.
///
/// # Errors
/// If it is relative.
pub fn path(setting: &Setting, name: &str) -> Result<PathBuf> {
    let path = PathBuf::from(&setting.text);
    if path.is_absolute() {
        Ok(path)
    } else {
        Err(setting.refuse(format!("{name} needs an absolute path")))
    }
}

/// Returns the files for TLS that these settings name: the authorities, dlock's certificate and its
/// key.
///
/// # Errors
/// If a path is relative, or one half of an identity is missing.
pub fn tls_files(names: [&str; 3], settings: &[Option<Setting>; 3]) -> Result<Tls> {
    if let [_, Some(setting), None] | [_, None, Some(setting)] = settings {
        let [_, cert, key] = names;
        return Err(setting.refuse(format!(
            "{cert} and {key} are the two halves of one identity: both are needed"
        )));
    }
    let file = |at: usize| {
        let setting = settings[at].as_ref();
        setting.map(|setting| path(setting, names[at])).transpose()
    };
    Ok(Tls {
        ca_file: file(0)?,
        cert_file: file(1)?,
        key_file: file(2)?,
    })
}

impl SecretSource {
    fn read(&self) -> Result<Secret> {
        match self {
            Self::Text(text) => Ok(Secret::new(&**text)),
            Self::File(setting) => read_file(setting),
            Self::Command(setting, limit) => {
                let words = words::split(&setting.text).map_err(|why| setting.refuse(why))?;
                Ok(Secret::command(words, *limit))
            }
        }
    }
}

/// Reads the password from the file that the setting names. Each later login reads it again.
fn read_file(setting: &Setting) -> Result<Secret> {
    let path = PathBuf::from(&setting.text);
    let text = secret_file::read(&path).map_err(|why| {
        let error = Error::new(
            Kind::Config,
            format!("{}: {}: {why}", setting.origin, path.display()),
        );
        if why == secret_file::OPEN_TO_ALL {
            error.hint(format!("chmod o-rwx {}", path.display()))
        } else if matches!(path.try_exists(), Ok(false)) {
            error.hint(format!(
                "sudo install -D -m 640 -g GROUP /dev/stdin {} writes what is typed; GROUP is the one of the jobs' user",
                path.display()
            ))
        } else {
            error
        }
    })?;
    Ok(secret_of(text, &path, |path| secret_file::read(path).ok()))
}

/// Returns a secret that was read from this file, and is read again. A pipe can be read only once.
pub fn secret_of(
    text: String,
    path: &Path,
    read: impl Fn(&Path) -> Option<String> + Send + Sync + 'static,
) -> Secret {
    match std::path::absolute(path) {
        Ok(path) if path.is_file() => Secret::read_again(text, move || read(&path)),
        _ => Secret::new(text),
    }
}
