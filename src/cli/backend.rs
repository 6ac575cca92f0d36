//! Resolves a backend setting (a URL, a name from the configuration file, or nothing) to a checked
//! [`Target`].

mod deployment;
mod my_cnf;
mod mysql;
mod pgpass;
mod postgres;
mod redlock;
mod tair;
mod zookeeper;

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use super::{
    args::Globals,
    file::Table,
    layers::{Layers, from_env, from_flag},
    secret_file,
    setting::{Origin, Setting},
    spec, suggest,
    url::{self, Url},
    words,
};
use crate::{
    commands::{
        BackendConfig, EtcdOptions, RedisOptions, RedisServer, Secret, SqlMode, SqliteOptions,
        Target, Tls,
    },
    lease::Limits,
    lock::{Error, Kind, Namespace, Result},
};

/// The supported URL schemes.
const SCHEMES: &[&str] = &[
    "sqlite",
    "redis",
    "rediss",
    "redis+unix",
    "redis+sentinel",
    "rediss+sentinel",
    "redis+cluster",
    "rediss+cluster",
    "redlock",
    "redlocks",
    "tair",
    "tairs",
    "etcd",
    "etcds",
    "zookeeper",
    "zookeepers",
    "postgres",
    "postgresql",
    "mysql",
    "mariadb",
];

/// Resolves the backend, adds its table and its URL's parameters to `layers`, and checks all of
/// them.
///
/// # Errors
/// The first invalid setting, with its origin and never with a secret.
pub fn resolve(globals: &Globals, layers: &mut Layers<'_>) -> Result<Target> {
    let target = match layers.get("backend", globals.backend.as_deref())? {
        None => Target {
            backend: default(globals, layers, false)?,
            name: None,
        },
        Some(named) => resolve_named(globals, &named, layers)?,
    };
    if let (BackendConfig::Sqlite { .. }, Some(setting)) = (
        &target.backend,
        from_flag("password_file", globals.password_file.as_deref()),
    ) {
        return Err(setting
            .refuse("the SQLite backend has no password")
            .hint("--backend or DLOCK_BACKEND names another store"));
    }
    Ok(target)
}

fn resolve_named(globals: &Globals, named: &Setting, layers: &mut Layers<'_>) -> Result<Target> {
    if named.text == "local" {
        return Ok(Target {
            backend: default(globals, layers, true)?,
            name: None,
        });
    }
    let (url, name) = if named.text.contains([':', '/']) {
        (named.clone(), None)
    } else {
        let Some((name, table)) = layers.file.backends.get_key_value(&named.text) else {
            return Err(unknown_name(named, layers));
        };
        layers.table = Some(table);
        let url = table
            .get("url")
            .ok_or_else(|| named.refuse(format!("[backends.{name}] has no url")))?;
        (url.clone(), Some(name.clone()))
    };
    let backend = if url.text == "local" {
        default(globals, layers, true)?
    } else {
        from_url(globals, &url, layers)?
    };
    check_table(&backend, layers)?;
    Ok(Target { backend, name })
}

fn default(globals: &Globals, layers: &Layers<'_>, asked_for: bool) -> Result<BackendConfig> {
    let options = SqliteOptions::at_default(namespace(globals, layers)?)?;
    Ok(BackendConfig::Sqlite { options, asked_for })
}

fn from_url(
    globals: &Globals,
    setting: &Setting,
    layers: &mut Layers<'_>,
) -> Result<BackendConfig> {
    let text = setting.text.as_str();
    if matches!(setting.origin, Origin::Flag(_))
        && !globals.insecure_argv
        && url::has_password(text)
    {
        return Err(setting
            .refuse(format!("{}: a password on the command line can be read by every user of this host", url::redacted(text)))
            .hint("put it into DLOCK_PASSWORD, --password-file or the configuration file; --insecure-argv allows it"));
    }
    let wrong = |why: &str| setting.refuse(format!("{}: {why}", url::redacted(text)));
    if let Some(scheme) = url::scheme(text).filter(|scheme| !SCHEMES.contains(&scheme.as_str())) {
        let alias = match scheme.as_str() {
            "valkey" => Some("redis"),
            "valkeys" => Some("rediss"),
            "zk" => Some("zookeeper"),
            "http" => Some("etcd"),
            "https" => Some("etcds"),
            "pg" | "pgsql" => Some("postgres"),
            "file" | "sqlite3" => Some("sqlite"),
            _ => None,
        };
        let hint = alias.map_or_else(
            || suggest::or_all(&scheme, SCHEMES),
            |scheme| format!("did you mean {scheme}://?"),
        );
        return Err(wrong("there is no backend with this scheme").hint(hint));
    }
    if text.trim() != text {
        return Err(wrong("it begins or ends with a space"));
    }
    let url = Url::parse(text).map_err(|why| {
        wrong(&why).hint("a URL is like redis://user@host:6379/0 or sqlite:///path/to/file")
    })?;
    for (name, value) in &url.query {
        if !spec::URL_PARAMETERS.contains(&name.as_str()) {
            let what = super::setting::short(name);
            return Err(wrong(&format!("there is no parameter {what:?}"))
                .hint(suggest::or_all(name, spec::URL_PARAMETERS)));
        }
        if layers.table.is_some_and(|table| table.get(name).is_some()) {
            return Err(wrong(&format!(
                "{name} is given in the URL and outside of it"
            )));
        }
        let value = Setting {
            text: value.clone(),
            origin: setting.origin.clone(),
        };
        if layers.url.insert(name.clone(), value).is_some() {
            return Err(wrong(&format!("{name} is given twice")));
        }
    }
    match url.scheme.as_str() {
        "sqlite" => sqlite(globals, &url, &wrong, layers),
        "mysql" | "mariadb" => {
            mysql::options(globals, url, &wrong, layers).map(BackendConfig::Mysql)
        }
        "tair" | "tairs" => tair::resolve(globals, url, &wrong, layers).map(BackendConfig::Tair),
        "redlock" | "redlocks" => {
            redlock::resolve(globals, &url, &wrong, layers).map(BackendConfig::Redlock)
        }
        "zookeeper" | "zookeepers" => {
            zookeeper::resolve(globals, url, &wrong, layers).map(BackendConfig::ZooKeeper)
        }
        "etcd" | "etcds" => etcd(globals, url, &wrong, layers).map(BackendConfig::Etcd),
        "postgres" | "postgresql" => {
            postgres::options(globals, url, &wrong, layers).map(BackendConfig::Postgres)
        }
        _ => redis(globals, url, &wrong, layers).map(BackendConfig::Redis),
    }
}

fn sqlite(
    globals: &Globals,
    url: &Url,
    wrong: &dyn Fn(&str) -> Error,
    layers: &Layers<'_>,
) -> Result<BackendConfig> {
    if url.user.is_some() || url.password.is_some() || !url.hosts.is_empty() {
        return Err(wrong("a file has no host, user or password")
            .hint("it takes three slashes: sqlite:///path/to/file"));
    }
    let path = PathBuf::from(&url.path);
    if !path.is_absolute() || url.path.ends_with('/') {
        return Err(wrong("it needs the absolute path of a file")
            .hint("sqlite:///path/to/file; `local` is the default file"));
    }
    Ok(BackendConfig::Sqlite {
        options: SqliteOptions::at(path, namespace(globals, layers)?),
        asked_for: true,
    })
}

fn redis(
    globals: &Globals,
    url: Url,
    wrong: &dyn Fn(&str) -> Error,
    layers: &Layers<'_>,
) -> Result<RedisOptions> {
    let mut in_path = None;
    let tls = if url.scheme.starts_with("rediss") {
        Some(self::tls(layers)?)
    } else {
        None
    };
    let server = match url.scheme.as_str() {
        "redis+sentinel" | "rediss+sentinel" => deployment::sentinel(globals, &url, wrong, layers)?,
        "redis+cluster" | "rediss+cluster" => deployment::cluster(&url, wrong, layers)?,
        "redis+unix" => {
            if !url.hosts.is_empty() {
                return Err(wrong("a socket has no host")
                    .hint("it takes three slashes: redis+unix:///run/redis.sock?db=0"));
            }
            if !url.path.starts_with('/') || url.path.ends_with('/') {
                return Err(wrong("it needs the absolute path of a socket"));
            }
            RedisServer::Unix(url.path.into())
        }
        _ => {
            let mut hosts = url.hosts.into_iter();
            let (host, port) = hosts.next().ok_or_else(|| wrong("it has no host"))?;
            if hosts.next().is_some() {
                return Err(wrong("it names more than one server").hint(
                    "one server is what redis:// stands for; several are redis+sentinel://HOST,HOST/MASTER or redis+cluster://HOST,HOST",
                ));
            }
            let path = url.path.trim_start_matches('/');
            if !path.is_empty() {
                in_path = Some(
                    path.parse()
                        .map_err(|_| wrong("the database is not a number"))?,
                );
            }
            RedisServer::Tcp {
                host,
                port: port.unwrap_or(6379),
            }
        }
    };
    let db = match (in_path, parameter(layers, "db")) {
        (Some(_), Some(_)) => return Err(wrong("the database is given twice")),
        (Some(number), None) => number,
        (None, Some(setting)) => setting
            .text
            .parse()
            .map_err(|_| setting.refuse("the database is not a number"))?,
        (None, None) => 0,
    };
    let password = password_of(globals, layers, url.user.as_deref(), url.password, wrong)?;
    Ok(RedisOptions {
        server,
        tls,
        db,
        user: url.user,
        password,
        namespace: namespace(globals, layers)?,
        replicas: deployment::replicas(layers)?,
    })
}

fn etcd(
    globals: &Globals,
    url: Url,
    wrong: &dyn Fn(&str) -> Error,
    layers: &Layers<'_>,
) -> Result<EtcdOptions> {
    if url.hosts.is_empty() {
        return Err(
            wrong("it has no host").hint("any members of the cluster: etcd://host1,host2,host3")
        );
    }
    if !url.path.trim_start_matches('/').is_empty() {
        return Err(wrong("etcd URLs have no path").hint("--namespace says where the locks are"));
    }
    let tls = if url.scheme == "etcds" {
        Some(tls(layers)?)
    } else {
        None
    };
    let password = password_of(globals, layers, url.user.as_deref(), url.password, wrong)?;
    if url.user.is_none() && password.is_some() {
        return Err(wrong("there is a password but no user")
            .hint("the user stands before the hosts: etcd://USER@host1,host2"));
    }
    let endpoints = url
        .hosts
        .into_iter()
        .map(|(host, port)| (host, port.unwrap_or(EtcdOptions::PORT)))
        .collect();
    Ok(EtcdOptions {
        endpoints,
        tls,
        user: url.user,
        password,
        namespace: namespace(globals, layers)?,
    })
}

/// Returns the password. A user without a password is an error.
fn password_of(
    globals: &Globals,
    layers: &Layers<'_>,
    user: Option<&str>,
    in_url: Option<String>,
    wrong: &dyn Fn(&str) -> Error,
) -> Result<Option<Secret>> {
    let password = password(globals, layers, in_url)?;
    if user.is_some() && password.is_none() && !layers.offline {
        return Err(wrong("there is a user but no password")
            .hint("give it in DLOCK_PASSWORD, with --password-file, or as password_file in the configuration"));
    }
    Ok(password)
}

fn tls(layers: &Layers<'_>) -> Result<Tls> {
    let file = |name| match parameter(layers, name) {
        Some(setting) if PathBuf::from(&setting.text).is_absolute() => {
            Ok(Some(PathBuf::from(setting.text)))
        }
        Some(setting) => Err(setting.refuse(format!("{name} needs an absolute path"))),
        None => Ok(None),
    };
    let tls = Tls {
        ca_file: file("cacert")?,
        cert_file: file("cert")?,
        key_file: file("key")?,
    };
    match (parameter(layers, "cert"), parameter(layers, "key")) {
        (Some(setting), None) | (None, Some(setting)) => {
            Err(setting.refuse("cert and key are the two halves of one identity: both are needed"))
        }
        _ => Ok(tls),
    }
}

/// Returns a parameter of the store, from the backend's table or the URL.
fn parameter(layers: &Layers<'_>, name: &str) -> Option<Setting> {
    layers
        .table
        .and_then(|table| table.get(name))
        .or_else(|| layers.url.get(name))
        .cloned()
}

/// Returns the password from the first source that has one: flag, environment, URL, configuration
/// file.
fn password(
    globals: &Globals,
    layers: &Layers<'_>,
    in_url: Option<String>,
) -> Result<Option<Secret>> {
    let read = |setting: Setting| read_secret(&setting).map(Some);
    if layers.offline {
        return Ok(None);
    }
    if let Some(setting) = from_flag("password_file", globals.password_file.as_deref()) {
        return read(setting);
    }
    if let Some(setting) = from_env(layers.env, "password")? {
        return Ok(Some(Secret::new(setting.text)));
    }
    if let Some(setting) = from_env(layers.env, "password_file")? {
        return read(setting);
    }
    if let Some(password) = in_url {
        return Ok(Some(Secret::new(password)));
    }
    if let Some(setting) = layers.table.and_then(|table| table.get("password")) {
        one_source(
            "password",
            layers.table.and_then(|table| table.get("password_command")),
        )?;
        return Ok(Some(Secret::new(&*setting.text)));
    }
    let of = |table: &Table| {
        (
            table.get("password_file").cloned(),
            table.get("password_command").cloned(),
        )
    };
    let of_url = (layers.url.get("password_file").cloned(), None);
    let nearest = layers
        .table
        .map(of)
        .into_iter()
        .chain([of_url, of(&layers.file.top)]);
    match nearest
        .into_iter()
        .find(|(file, command)| file.is_some() || command.is_some())
        .unwrap_or_default()
    {
        (Some(file), command) => {
            one_source("password_file", command.as_ref()).and_then(|()| read(file))
        }
        (None, Some(command)) => password_command(globals, layers, &command).map(Some),
        (None, None) => Ok(None),
    }
}

/// Refuses a command beside another source of the same password.
fn one_source(other: &str, command: Option<&Setting>) -> Result<()> {
    command.map_or(Ok(()), |command| {
        Err(command.refuse(format!(
            "{other} and the command are two sources: one of them will do"
        )))
    })
}

/// Returns how long the store may take to answer.
///
/// # Errors
/// If it is out of range.
pub fn backend_timeout(globals: &Globals, layers: &Layers<'_>) -> Result<Duration> {
    match layers.get("backend_timeout", globals.backend_timeout.as_deref())? {
        Some(setting) => setting.within((
            Duration::from_millis(100),
            Duration::from_secs(3600),
            "a backend timeout is between 100ms and 1h",
        )),
        None => Ok(Limits::DEFAULT.answer),
    }
}

/// Returns the password that the command of this setting prints at each login.
fn password_command(globals: &Globals, layers: &Layers<'_>, setting: &Setting) -> Result<Secret> {
    let words = words::split(&setting.text).map_err(|why| setting.refuse(why))?;
    Ok(Secret::command(words, backend_timeout(globals, layers)?))
}

/// Reads the password from the file that the setting names. Each later login reads it again.
fn read_secret(setting: &Setting) -> Result<Secret> {
    let path = PathBuf::from(&setting.text);
    let text = secret_file::read(&path).map_err(|why| {
        let error = Error::new(
            Kind::Config,
            format!("{}: {}: {why}", setting.origin, path.display()),
        );
        if why == secret_file::OPEN_TO_ALL {
            error.hint(format!("chmod o-rwx {}", path.display()))
        } else {
            error
        }
    })?;
    Ok(secret_of(text, &path, |path| secret_file::read(path).ok()))
}

/// Returns a secret that was read from this file, and is read again. A pipe can be read only once.
fn secret_of(
    text: String,
    path: &Path,
    read: impl Fn(&Path) -> Option<String> + Send + Sync + 'static,
) -> Secret {
    match std::path::absolute(path) {
        Ok(path) if path.is_file() => Secret::read_again(text, move || read(&path)),
        _ => Secret::new(text),
    }
}

/// Refuses parameters that this kind of backend does not use.
fn check_table(backend: &BackendConfig, layers: &Layers<'_>) -> Result<()> {
    const TLS: &[&str] = &["cacert", "cert", "key"];
    const PASSWORD: &[&str] = &["password", "password_file", "password_command"];
    const SENTINEL: &[&str] = &[
        "sentinel_user",
        "sentinel_password",
        "sentinel_password_file",
        "sentinel_password_command",
    ];
    let when = |yes: bool, names: &'static [&'static str]| if yes { names } else { &[] };
    let uses: Vec<&[&str]> = match backend {
        BackendConfig::Sqlite { .. } => vec![],
        BackendConfig::Redis(options) => vec![
            PASSWORD,
            &["db", "replicas", "replica_timeout"],
            when(options.tls.is_some(), TLS),
            when(matches!(options.server, RedisServer::Sentinel(_)), SENTINEL),
        ],
        BackendConfig::Redlock(options) => {
            vec![
                PASSWORD,
                &["db"],
                redlock::PARAMETERS,
                when(options.nodes.iter().any(|node| node.tls.is_some()), TLS),
            ]
        }
        BackendConfig::Tair(options) => vec![
            PASSWORD,
            &["db"],
            tair::PARAMETERS,
            when(options.server.tls.is_some(), TLS),
        ],
        BackendConfig::ZooKeeper(options) => vec![
            PASSWORD,
            zookeeper::PARAMETERS,
            when(options.tls.is_some(), TLS),
        ],
        BackendConfig::Etcd(options) => vec![PASSWORD, when(options.tls.is_some(), TLS)],
        BackendConfig::Postgres(_) => vec![PASSWORD, TLS, spec::SQL_KEYS, spec::POSTGRES_KEYS],
        BackendConfig::Mysql(_) => vec![PASSWORD, TLS, spec::SQL_KEYS, spec::MYSQL_KEYS],
    };
    let known = spec::BACKEND_KEYS
        .iter()
        .chain(PASSWORD)
        .chain(SENTINEL)
        .chain(&["host"])
        .filter(|name| **name != "url");
    let mut unused = known.filter(|name| !uses.iter().any(|used| used.contains(name)));
    match unused.find_map(|name| parameter(layers, name).map(|setting| (name, setting))) {
        Some((name, setting)) => Err(setting.refuse(format!("this backend has no {name}"))),
        None => Ok(()),
    }
}

fn namespace(globals: &Globals, layers: &Layers<'_>) -> Result<Namespace> {
    match layers.get("namespace", globals.namespace.as_deref())? {
        Some(setting) => Namespace::new(&setting.text).map_err(|error| setting.blame(error)),
        None => Ok(Namespace::default()),
    }
}

/// Returns the mode of a SQL server's locks.
fn sql_mode(layers: &Layers<'_>) -> Result<SqlMode> {
    let choices = [SqlMode::Lease, SqlMode::Row, SqlMode::Advisory].map(|mode| (mode.name(), mode));
    parameter(layers, "mode").map_or(Ok(SqlMode::Lease), |setting| setting.choice(&choices))
}

fn unknown_name(setting: &Setting, layers: &Layers<'_>) -> Error {
    let names: Vec<&str> = layers.file.backends.keys().map(String::as_str).collect();
    let typed = super::setting::short(&setting.text);
    let files: Vec<String> = layers
        .file
        .paths
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    let reason = match &*files {
        [] => "there is no configuration file".into(),
        [file] => format!("{file} has no [backends.{typed}]"),
        files => format!("neither {} has [backends.{typed}]", files.join(" nor ")),
    };
    let error = setting.refuse(format!("no backend is named {typed:?}: {reason}"));
    if SCHEMES.contains(&typed.as_str()) {
        return error.hint(format!("a URL is meant? {typed}://…"));
    }
    match (suggest::nearest(&typed, &names), names.is_empty()) {
        (Some(name), _) => error.hint(format!("did you mean {name}?")),
        (None, false) => error.hint(format!("it has {}", names.join(", "))),
        (None, true) => error.hint("a backend is a URL such as redis://host:6379/0, or a name that the configuration file defines"),
    }
}

#[cfg(test)]
mod tests;
