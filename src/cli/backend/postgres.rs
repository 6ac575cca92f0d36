//! PostgreSQL: the URL, its parameters, and as defaults the settings of psql (`PGHOST`,
//! `~/.pgpass`, …).

use std::path::{Path, PathBuf};

use super::{
    super::{
        args::Globals,
        layers::Layers,
        setting::{Origin, Setting},
        url::Url,
    },
    namespace, parameter, password,
    pgpass::{self, Login},
    secret_of, sql_mode,
};
use crate::{
    commands::{AdvisoryKey, PostgresOptions, Secret, SqlMode, SqlOptions, SqlServer, TlsMode},
    lock::{Error, Result},
};

/// The default port.
const PORT: u16 = 5432;
/// The usual directories of the server's Unix socket.
const SOCKETS: [&str; 2] = ["/run/postgresql", "/tmp"];

/// Creates the options of a `postgres://` URL.
///
/// # Errors
/// The first invalid setting, with its origin.
pub fn options(
    globals: &Globals,
    url: Url,
    wrong: &dyn Fn(&str) -> Error,
    layers: &mut Layers<'_>,
) -> Result<PostgresOptions> {
    // The parameter `host` must not be mistaken for the setting `host`, this machine's name.
    let host = layers.url.remove("host");
    if url.hosts.len() > 1 {
        return Err(wrong("it names more than one server")
            .hint("name the primary, or an address that follows it"));
    }
    let port = match url.hosts.first().and_then(|(_, port)| *port) {
        Some(port) => port,
        None => match variable(layers, "PGPORT")? {
            Some(setting) => setting
                .text
                .parse()
                .map_err(|_| setting.refuse("it is no port"))?,
            None => PORT,
        },
    };
    let server = match (url.hosts.into_iter().next(), host) {
        (Some(_), Some(host)) => return Err(host.refuse("the host is given twice")),
        (Some((host, _)), None) => SqlServer::Tcp { host, port },
        (None, Some(host)) => server(host.text, port),
        (None, None) => match variable(layers, "PGHOST")? {
            Some(setting) => server(setting.text, port),
            None => default_server(port),
        },
    };
    let mut sql = SqlOptions::new(server);
    sql.namespace = namespace(globals, layers)?;
    sql.user = match url.user {
        Some(user) => Some(user),
        None => Some(
            variable(layers, "PGUSER")?
                .map_or_else(crate::commands::user_name, |setting| setting.text),
        ),
    };
    let database = url.path.trim_start_matches('/');
    sql.database = match database {
        "" => variable(layers, "PGDATABASE")?
            .map(|setting| setting.text)
            .or_else(|| sql.user.clone()),
        name => Some(name.to_owned()),
    };
    tls(&mut sql, layers)?;
    sql.no_shedlock = !parameter(layers, "shedlock").map_or(Ok(true), |setting| setting.yes())?;
    if let Some(setting) = parameter(layers, "table") {
        sql.table = table(&setting)?;
    }
    sql.mode = sql_mode(layers)?;
    let advisory_key = match parameter(layers, "pg_key") {
        Some(setting) if sql.mode != SqlMode::Advisory => {
            return Err(setting.refuse("only mode=advisory has a key"));
        }
        Some(setting) => Some(setting.text.parse::<AdvisoryKey>().map_err(|_| {
            setting
                .refuse("it is no key of an advisory lock")
                .hint("one whole number of 64 bits, or two of 32 bits with a comma")
        })?),
        None => None,
    };
    sql.password = match password(globals, layers, url.password)? {
        Some(password) => Some(password),
        None => psql_password(&sql, layers)?,
    };
    Ok(PostgresOptions { sql, advisory_key })
}

/// Returns a variable of psql's environment.
fn variable(layers: &Layers<'_>, name: &str) -> Result<Option<Setting>> {
    Ok(layers.env.get(name)?.map(|text| Setting {
        text: text.to_owned(),
        origin: Origin::Env(name.to_owned()),
    }))
}

/// Returns the server. A host that is a path is the directory of a Unix socket.
fn server(host: String, port: u16) -> SqlServer {
    if host.starts_with('/') {
        SqlServer::Unix {
            path: host.into(),
            port,
        }
    } else {
        SqlServer::Tcp { host, port }
    }
}

fn default_server(port: u16) -> SqlServer {
    let there = |folder: &str| Path::new(folder).join(format!(".s.PGSQL.{port}")).exists();
    match SOCKETS.iter().find(|folder| there(folder)) {
        Some(folder) => SqlServer::Unix {
            path: folder.into(),
            port,
        },
        None => SqlServer::Tcp {
            host: "localhost".into(),
            port,
        },
    }
}

/// Returns a parameter that has two names: libpq's and dlock's own.
fn one_of(layers: &Layers<'_>, names: [&str; 2]) -> Result<Option<Setting>> {
    match names.map(|name| parameter(layers, name)) {
        [Some(_), Some(setting)] => Err(setting.refuse(format!(
            "{} and {} are the same: one of them will do",
            names[0], names[1]
        ))),
        [one, other] => Ok(one.or(other)),
    }
}

fn tls(sql: &mut SqlOptions, layers: &Layers<'_>) -> Result<()> {
    let modes = [
        ("disable", TlsMode::Disable),
        // `allow` may use TLS, so `prefer` satisfies it.
        ("allow", TlsMode::Prefer),
        ("prefer", TlsMode::Prefer),
        ("require", TlsMode::Require),
        ("verify-ca", TlsMode::VerifyCa),
        ("verify-full", TlsMode::VerifyFull),
    ];
    let mode = match parameter(layers, "sslmode") {
        Some(setting) => Some(setting),
        None => variable(layers, "PGSSLMODE")?,
    };
    if let Some(setting) = &mode {
        sql.tls = setting.choice(&modes)?;
    }
    let file = |names: [&str; 2], psql_variable: &str| {
        let setting = match one_of(layers, names)? {
            Some(setting) => Some(setting),
            None => variable(layers, psql_variable)?,
        };
        match setting {
            Some(setting) if Path::new(&setting.text).is_absolute() => {
                Ok(Some(PathBuf::from(setting.text)))
            }
            // The system's authorities are the default.
            Some(setting) if names[0] == "sslrootcert" && setting.text == "system" => Ok(None),
            Some(setting) => Err(setting.refuse(format!("{} needs an absolute path", names[0]))),
            None => Ok(None),
        }
    };
    sql.files.ca_file = file(["sslrootcert", "cacert"], "PGSSLROOTCERT")?;
    sql.files.cert_file = file(["sslcert", "cert"], "PGSSLCERT")?;
    sql.files.key_file = file(["sslkey", "key"], "PGSSLKEY")?;
    if sql.files.cert_file.is_some() != sql.files.key_file.is_some() {
        let setting = [["sslcert", "cert"], ["sslkey", "key"]]
            .into_iter()
            .find_map(|names| one_of(layers, names).ok().flatten());
        let origin =
            setting.map_or_else(|| Origin::Env("PGSSLCERT".into()), |setting| setting.origin);
        return Err(
            origin.refuse("sslcert and sslkey are the two halves of one identity: both are needed")
        );
    }
    Ok(())
}

/// Returns a table's name, with or without its schema. Only names that need no quotes in PostgreSQL
/// are allowed.
fn table(setting: &Setting) -> Result<String> {
    let plain = |part: &str| {
        part.bytes()
            .enumerate()
            .all(|(at, b)| b.is_ascii_lowercase() || b == b'_' || (at > 0 && b.is_ascii_digit()))
            && (1..=48).contains(&part.len())
    };
    let parts: Vec<&str> = setting.text.split('.').collect();
    if parts.len() <= 2 && parts.iter().all(|part| plain(part)) {
        return Ok(setting.text.clone());
    }
    Err(setting
        .refuse("it is no table's name")
        .hint("up to 48 of a-z 0-9 _, and a schema with a dot before it if need be"))
}

/// Returns the password that psql would use.
fn psql_password(sql: &SqlOptions, layers: &Layers<'_>) -> Result<Option<Secret>> {
    if let Some(setting) = variable(layers, "PGPASSWORD")? {
        return Ok(Some(Secret::new(setting.text)));
    }
    let named = layers.env.get_os("PGPASSFILE").map(PathBuf::from);
    let file = named.or_else(|| {
        layers
            .env
            .get_os("HOME")
            .map(|home| Path::new(home).join(".pgpass"))
    });
    let Some(file) = file.filter(|file| file.is_absolute()) else {
        return Ok(None);
    };
    let (host, port) = match &sql.server {
        SqlServer::Tcp { host, port } => (host.as_str(), *port),
        SqlServer::Unix { port, .. } => ("localhost", *port),
    };
    let host = host.to_owned();
    let database = sql.database.clone().unwrap_or_default();
    let user = sql.user.clone().unwrap_or_default();
    let find = move |file: &Path| {
        pgpass::find(
            file,
            Login {
                host: &host,
                port,
                database: &database,
                user: &user,
            },
        )
    };
    let found = find(&file)?;
    Ok(found.map(|text| secret_of(text, &file, move |file| find(file).ok().flatten())))
}
