//! What a store says of itself, and how it is configured: the one place that the command line, the
//! configuration, the manual and `doctor` read it from.

pub(in crate::backends) mod address;

use std::{
    any::Any,
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
};

pub use self::address::{Address, SecretSource};
use crate::{
    lock::{Backend, Capabilities, Check, Grants, Key, Library, Result, Role, Sharing, printable},
    settings::env::Env,
};

/// A store, before any access.
#[derive(Debug)]
pub struct StoreInfo {
    /// Its name in tables and messages.
    pub name: &'static str,
    /// The schemes of its URLs.
    pub schemes: &'static [Scheme],
    /// The parameters of its URLs and of its tables in the configuration file.
    pub parameters: &'static [&'static [Parameter]],
    /// The server that should answer; none if the store is a file.
    pub server: Option<&'static str>,
    /// The file in which the store's own clients keep passwords.
    pub client_file: Option<ClientFile>,
    /// The kinds of locks, by deployment or mode.
    pub capabilities: &'static [(&'static str, &'static Capabilities)],
    /// Returns the version of its data's layout. A newer major version is refused.
    pub layout: fn() -> String,
    /// The lock libraries that share its locks, by mode.
    pub libraries: &'static [(&'static str, &'static [Library])],
    /// When the lock of another program ends that has no lease, as a hint; `{name}` is its name in
    /// the store.
    pub without_lease: &'static str,
    /// The checks of `doctor`, by deployment.
    pub checks: &'static [(&'static str, &'static [&'static [Check]])],
    /// Checks an address. Opens nothing but files with settings.
    pub configure: fn(Address<'_>) -> Result<Arc<dyn Configured>>,
}

/// A scheme of URLs.
#[derive(Debug)]
pub struct Scheme {
    /// In lower case, without the colon.
    pub name: &'static str,
    /// The URL for people, and what it stands for; empty for a scheme that only adds TLS.
    pub example: (&'static str, &'static str),
    /// Whether it stands for TLS; none if parameters decide.
    pub tls: Option<bool>,
    /// Schemes of other programs' URLs that mean this one, for a hint.
    pub aliases: &'static [&'static str],
}

impl Scheme {
    /// Returns a scheme of URLs whose connections are not encrypted.
    pub const fn plain(name: &'static str, example: &'static str, about: &'static str) -> Self {
        Self {
            name,
            example: (example, about),
            tls: Some(false),
            aliases: &[],
        }
    }

    /// Returns a scheme of URLs whose connections use TLS.
    pub const fn tls(name: &'static str) -> Self {
        Self {
            tls: Some(true),
            ..Self::plain(name, "", "")
        }
    }

    /// Returns a scheme whose URLs say elsewhere whether connections use TLS.
    pub const fn free(name: &'static str, example: &'static str, about: &'static str) -> Self {
        Self {
            tls: None,
            ..Self::plain(name, example, about)
        }
    }

    /// Returns this scheme, which is also meant by these.
    #[must_use]
    pub const fn or(self, aliases: &'static [&'static str]) -> Self {
        Self { aliases, ..self }
    }
}

/// A parameter of a store.
#[derive(Debug)]
pub struct Parameter {
    /// Its name in a URL's query and in a table of the configuration file.
    pub name: &'static str,
    /// What it takes, for people.
    pub value: &'static str,
    /// The description for the manual.
    pub help: &'static str,
    /// Where it may be given.
    pub place: Place,
    /// The URLs that have it.
    pub of: Of,
}

/// Where a parameter may be given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the URL or in the table.
    Both,
    /// In the URL only.
    Url,
    /// In the table only: it is, or tells, a secret.
    Table,
}

/// The URLs that have a parameter.
#[derive(Clone, Copy, Debug)]
pub enum Of {
    /// All of the store's.
    All,
    /// Those whose connections may use TLS.
    Tls,
    /// Those with one of these schemes.
    Schemes(&'static [&'static str]),
}

impl Parameter {
    /// Returns a parameter of all URLs of a store.
    pub const fn new(name: &'static str, value: &'static str, help: &'static str) -> Self {
        Self {
            name,
            value,
            help,
            place: Place::Both,
            of: Of::All,
        }
    }

    /// Returns this parameter, which may be given only there.
    #[must_use]
    pub const fn only_in(self, place: Place) -> Self {
        Self { place, ..self }
    }

    /// Returns this parameter, which only these URLs have.
    #[must_use]
    pub const fn only_of(self, of: Of) -> Self {
        Self { of, ..self }
    }

    /// Whether URLs with this scheme have it.
    pub fn is_of(&self, scheme: &Scheme) -> bool {
        match self.of {
            Of::All => true,
            Of::Tls => scheme.tls != Some(false),
            Of::Schemes(names) => names.contains(&scheme.name),
        }
    }
}

/// The parameters of every store with a login.
pub const PASSWORD: &[Parameter] = &[
    Parameter::new("password", "TEXT", "the store's password").only_in(Place::Table),
    Parameter::new(
        "password_file",
        "PATH",
        "a file that holds the store's password",
    ),
    Parameter::new(
        "password_command",
        "COMMAND",
        "a command that prints the store's password",
    )
    .only_in(Place::Table),
];

/// The parameters of every store whose URL's scheme says whether TLS is used.
pub const TLS: &[Parameter] = &[
    Parameter::new(
        "cacert",
        "PATH",
        "the authorities that may sign the server's certificate",
    )
    .only_of(Of::Tls),
    Parameter::new("cert", "PATH", "dlock's own certificate").only_of(Of::Tls),
    Parameter::new("key", "PATH", "the key of dlock's own certificate").only_of(Of::Tls),
];

/// A file in which clients keep passwords.
#[derive(Debug)]
pub struct ClientFile {
    /// The variable that names it; empty if there is none.
    pub variable: &'static str,
    /// Its name in the home directory.
    pub in_home: &'static str,
}

impl ClientFile {
    /// Returns its absolute path.
    pub fn path(&self, env: &Env) -> Option<PathBuf> {
        let named = env.get_os(self.variable).map(PathBuf::from);
        named
            .or_else(|| {
                env.get_os("HOME")
                    .map(|home| Path::new(home).join(self.in_home))
            })
            .filter(|path| path.is_absolute())
    }
}

impl StoreInfo {
    /// Returns the scheme with this name.
    pub fn scheme(&self, name: &str) -> Option<&'static Scheme> {
        self.schemes.iter().find(|scheme| scheme.name == name)
    }

    /// Returns all its parameters.
    pub fn parameters(&self) -> impl Iterator<Item = &'static Parameter> {
        self.parameters.iter().copied().flatten()
    }

    /// Whether users log in with a password.
    pub fn has_password(&self) -> bool {
        self.parameters()
            .any(|parameter| parameter.name == PASSWORD[0].name)
    }
}

/// The users that servers have from the start.
const ADMINISTRATORS: [&str; 4] = ["default", "postgres", "root", "super"];

/// A store whose settings were checked; nothing is connected.
pub trait Configured: Any + fmt::Debug + Send + Sync {
    /// Returns what is known of the store.
    fn info(&self) -> &'static StoreInfo;

    /// Returns its backend, not connected yet.
    fn backend(&self) -> Box<dyn Backend>;

    /// Returns the name that each lock library needs for a lock. Without I/O.
    ///
    /// # Errors
    /// If the store has no name for the key.
    fn sharing(&self, key: &Key) -> Result<Sharing>;

    /// Returns the statements of [`Admin::init`](crate::lock::Admin::init), in the store's own
    /// language; `None` if it does nothing.
    fn schema(&self) -> Option<String> {
        None
    }

    /// Returns the user that rights of `role` are printed for: who takes locks is the URL's user,
    /// unless that is the server's administrator.
    fn user_of(&self, role: Role) -> &str {
        self.user()
            .filter(|user| role == Role::Run && !ADMINISTRATORS.contains(user))
            .unwrap_or(role.user())
    }

    /// Returns the least rights for `role`, in the store's own language.
    fn grants(&self, role: Role) -> Grants;

    /// Returns the user name, if known. Unlike the password, it is no secret.
    fn user(&self) -> Option<&str> {
        None
    }

    /// Returns why a trial lock would block other users' locks, if all keys are one lock.
    fn one_lock_for_all(&self) -> Option<&'static str> {
        None
    }
}

/// Returns a server's text in one line, shortened and without control characters.
pub fn one_line(text: &str) -> String {
    let line: String = text
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .take(200)
        .collect();
    printable(&line).into_owned()
}
