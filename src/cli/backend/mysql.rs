//! MySQL and MariaDB: the URL, its parameters, and as defaults the settings of their clients
//! (`~/.my.cnf`, `MYSQL_PWD`).

use std::path::{Path, PathBuf};

use super::{
    super::{
        args::Globals,
        layers::Layers,
        setting::{Origin, Setting},
        url::Url,
    },
    my_cnf::{self, ClientOptions, MODES},
    namespace, parameter, password, secret_of, sql_mode,
};
use crate::{
    commands::{MysqlOptions, Secret, SqlMode, SqlOptions, SqlServer, TlsMode},
    lock::{Error, Result},
};

/// The default port.
const PORT: u16 = 3306;
/// The usual paths of the server's Unix socket.
const SOCKETS: [&str; 3] = [
    "/run/mysqld/mysqld.sock",
    "/var/lib/mysql/mysql.sock",
    "/tmp/mysql.sock",
];

/// Creates the options of a `mysql://` or `mariadb://` URL.
///
/// # Errors
/// The first invalid setting, with its origin.
pub fn options(
    globals: &Globals,
    url: Url,
    wrong: &dyn Fn(&str) -> Error,
    layers: &Layers<'_>,
) -> Result<MysqlOptions> {
    if url.hosts.len() > 1 {
        return Err(wrong("it names more than one server")
            .hint("name the primary, or an address that follows it"));
    }
    let home = layers
        .env
        .get_os("HOME")
        .map(PathBuf::from)
        .filter(|home| home.is_absolute());
    let file = home.map(|home| home.join(".my.cnf"));
    let client = match &file {
        Some(file) => my_cnf::read(file)?,
        None => ClientOptions::default(),
    };
    let server = match (url.hosts.into_iter().next(), parameter(layers, "socket")) {
        (Some(_), Some(socket)) => return Err(socket.refuse("a host and a socket are two places")),
        (Some((host, port)), None) => SqlServer::Tcp {
            host,
            port: port.unwrap_or(PORT),
        },
        (None, Some(socket)) => SqlServer::Unix {
            path: path(&socket, "socket")?,
            port: PORT,
        },
        (None, None) => default_server(&client),
    };
    let mut sql = SqlOptions::new(server);
    sql.namespace = namespace(globals, layers)?;
    let is_clients_user = url.user.is_none() || url.user == client.user;
    sql.user = Some(
        url.user
            .or(client.user)
            .unwrap_or_else(crate::commands::user_name),
    );
    sql.database =
        Some(url.path.trim_start_matches('/').to_owned()).filter(|name| !name.is_empty());
    tls(&mut sql, layers, client.tls)?;
    if sql.files.ca_file.is_none() {
        sql.files.ca_file = client.files.ca_file;
    }
    if sql.files.cert_file.is_none() && sql.files.key_file.is_none() {
        (sql.files.cert_file, sql.files.key_file) = (client.files.cert_file, client.files.key_file);
    }
    sql.no_shedlock = !parameter(layers, "shedlock").map_or(Ok(true), |setting| setting.yes())?;
    if let Some(setting) = parameter(layers, "table") {
        sql.table = table(&setting)?;
    }
    if sql.database.is_none() && !sql.table.contains('.') {
        return Err(
            wrong("it names no database").hint("mysql://HOST/DATABASE, or ?table=DATABASE.TABLE")
        );
    }
    sql.mode = sql_mode(layers)?;
    let raw_names = match parameter(layers, "lock_name") {
        Some(setting) if sql.mode != SqlMode::Advisory => {
            return Err(setting.refuse("only mode=advisory has names of its own"));
        }
        Some(setting) => setting.choice(&[("raw", true), ("qualified", false)])?,
        None => false,
    };
    let single_writer =
        parameter(layers, "single_writer").map_or(Ok(false), |setting| setting.yes())?;
    sql.password = match password(globals, layers, url.password)? {
        Some(password) => Some(password),
        None => match client.password.filter(|_| is_clients_user).zip(file) {
            Some((password, file)) => Some(secret_of(password, &file, |file| {
                my_cnf::read(file).ok()?.password
            })),
            None => layers.env.get("MYSQL_PWD")?.map(Secret::new),
        },
    };
    Ok(MysqlOptions {
        sql,
        raw_names,
        single_writer,
    })
}

/// Returns the server to which the clients would connect.
fn default_server(client: &ClientOptions) -> SqlServer {
    let port = client.port.unwrap_or(PORT);
    match (&client.socket, &client.host) {
        (Some(path), _) => SqlServer::Unix {
            path: path.clone(),
            port,
        },
        (None, Some(host)) if host != "localhost" => SqlServer::Tcp {
            host: host.clone(),
            port,
        },
        _ => match SOCKETS.iter().map(Path::new).find(|path| path.exists()) {
            Some(path) if client.port.is_none() => SqlServer::Unix {
                path: path.into(),
                port,
            },
            _ => SqlServer::Tcp {
                host: "localhost".into(),
                port,
            },
        },
    }
}

/// Returns a parameter that has two names: the client's and dlock's own.
fn one_of(layers: &Layers<'_>, names: [&str; 2]) -> Result<Option<Setting>> {
    match names.map(|name| parameter(layers, name)) {
        [Some(_), Some(setting)] => Err(setting.refuse(format!(
            "{} and {} are the same: one of them will do",
            names[0], names[1]
        ))),
        [one, other] => Ok(one.or(other)),
    }
}

fn tls(sql: &mut SqlOptions, layers: &Layers<'_>, default_mode: Option<TlsMode>) -> Result<()> {
    if let Some(mode) = default_mode {
        sql.tls = mode;
    }
    if let Some(mut setting) = parameter(layers, "ssl-mode") {
        setting.text.make_ascii_uppercase();
        sql.tls = setting.choice(&MODES)?;
    }
    let file = |names: [&str; 2]| {
        one_of(layers, names)?
            .map(|setting| path(&setting, names[0]))
            .transpose()
    };
    sql.files.ca_file = file(["ssl-ca", "cacert"])?;
    sql.files.cert_file = file(["ssl-cert", "cert"])?;
    sql.files.key_file = file(["ssl-key", "key"])?;
    if sql.files.cert_file.is_some() != sql.files.key_file.is_some() {
        let setting = [["ssl-cert", "cert"], ["ssl-key", "key"]]
            .into_iter()
            .find_map(|names| one_of(layers, names).ok().flatten());
        let origin = setting.map_or_else(|| Origin::Env("HOME".into()), |setting| setting.origin);
        return Err(origin
            .refuse("ssl-cert and ssl-key are the two halves of one identity: both are needed"));
    }
    Ok(())
}

fn path(setting: &Setting, name: &str) -> Result<PathBuf> {
    let path = PathBuf::from(&setting.text);
    if path.is_absolute() {
        Ok(path)
    } else {
        Err(setting.refuse(format!("{name} needs an absolute path")))
    }
}

/// Returns a table's name, with or without its database.
fn table(setting: &Setting) -> Result<String> {
    let plain = |part: &str| {
        part.bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"_$-".contains(&b))
            && (1..=48).contains(&part.len())
    };
    let parts: Vec<&str> = setting.text.split('.').collect();
    if parts.len() <= 2 && parts.iter().all(|part| plain(part)) {
        return Ok(setting.text.clone());
    }
    Err(setting
        .refuse("it is no table's name")
        .hint("up to 48 of A-Z a-z 0-9 _ $ -, and a database with a dot before it if need be"))
}
