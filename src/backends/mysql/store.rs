//! What dlock knows of MySQL and MariaDB, and their URLs. The settings of their clients are the
//! defaults (`~/.my.cnf`, `MYSQL_PWD`).

use std::{path::Path, sync::Arc};

use super::{
    CAPABILITIES, Mysql, MysqlOptions, PORT, backend, examine, grants,
    my_cnf::{self, ClientOptions, MODES},
    schema, sharing,
};
use crate::{
    backends::{
        kit::{
            Address, ClientFile, Configured, PASSWORD, Parameter, Scheme, StoreInfo, TLS,
            address::{path, secret_of, tls_files},
        },
        net::secret::Secret,
        sql::{
            self, SHEDLOCK, SqlDatabase as _, SqlMode, SqlOptions, SqlServer, TlsMode, sql_mode,
        },
    },
    lock::{Backend, Grants, Key, Result, Role, Sharing},
    settings::setting::Setting,
};

/// MySQL and MariaDB.
pub const STORE: StoreInfo = StoreInfo {
    name: "MySQL, MariaDB",
    schemes: &[
        Scheme::free("mysql", "mysql://user@host[:3306]/db", "MySQL or MariaDB"),
        Scheme::free("mariadb", "mariadb://user@host[:3306]/db", "the same"),
    ],
    parameters: &[
        PASSWORD,
        TLS,
        sql::PARAMETERS,
        &[
            Parameter::new(
                "lock_name",
                "raw, qualified",
                "the name of an advisory lock",
            ),
            Parameter::new(
                "single_writer",
                "yes, no",
                "all clients write to this node of a cluster",
            ),
            Parameter::new("socket", "PATH", "the server's socket"),
            Parameter::new("ssl-ca", "PATH", "as cacert"),
            Parameter::new("ssl-cert", "PATH", "as cert"),
            Parameter::new("ssl-key", "PATH", "as key"),
            Parameter::new(
                "ssl-mode",
                "DISABLED to VERIFY_IDENTITY",
                "whether TLS is used",
            ),
        ],
    ],
    server: Some("MySQL"),
    client_file: Some(ClientFile {
        variable: "",
        in_home: ".my.cnf",
    }),
    capabilities: &[
        ("MySQL, MariaDB", CAPABILITIES[0]),
        ("MySQL, mode=row", CAPABILITIES[1]),
        ("MySQL, mode=advisory", CAPABILITIES[2]),
    ],
    layout: sql::layout,
    libraries: &[
        ("MySQL, MariaDB", &SHEDLOCK),
        ("MySQL, MariaDB, mode=advisory", &sharing::ADVISORY),
    ],
    without_lease: "it lasts as long as that program's session, which KILL ends",
    checks: &[("MySQL, MariaDB", &[examine::CHECKS])],
    configure: |address| Ok(Arc::new(options(&address)?)),
};

/// The usual paths of the server's Unix socket.
const SOCKETS: [&str; 3] = [
    "/run/mysqld/mysqld.sock",
    "/var/lib/mysql/mysql.sock",
    "/tmp/mysql.sock",
];

/// Creates the options of a `mysql://` or `mariadb://` URL.
fn options(address: &Address<'_>) -> Result<MysqlOptions> {
    let url = address.url.clone();
    if url.hosts.len() > 1 {
        return Err(address
            .wrong("it names more than one server")
            .hint("name the primary, or an address that follows it"));
    }
    let file = address.client_file();
    let client = match &file {
        Some(file) => my_cnf::read(file)?,
        None => ClientOptions::default(),
    };
    let server = match (url.hosts.into_iter().next(), address.parameter("socket")) {
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
    sql.namespace = address.namespace.clone();
    let is_clients_user = url.user.is_none() || url.user == client.user;
    sql.user = Some(url.user.or(client.user).unwrap_or_else(address.local_user));
    sql.database =
        Some(url.path.trim_start_matches('/').to_owned()).filter(|name| !name.is_empty());
    tls(&mut sql, address, client.tls)?;
    if sql.files.ca_file.is_none() {
        sql.files.ca_file = client.files.ca_file;
    }
    if sql.files.cert_file.is_none() && sql.files.key_file.is_none() {
        (sql.files.cert_file, sql.files.key_file) = (client.files.cert_file, client.files.key_file);
    }
    sql.no_shedlock = address.yes("shedlock")? == Some(false);
    if let Some(setting) = address.parameter("table") {
        sql.table = table(&setting)?;
    }
    if sql.database.is_none() && !sql.table.contains('.') {
        return Err(address
            .wrong("it names no database")
            .hint("mysql://HOST/DATABASE, or ?table=DATABASE.TABLE"));
    }
    sql.mode = sql_mode(address)?;
    let raw_names = match address.parameter("lock_name") {
        Some(setting) if sql.mode != SqlMode::Advisory => {
            return Err(setting.refuse("only mode=advisory has names of its own"));
        }
        Some(setting) => setting.choice(&[("raw", true), ("qualified", false)])?,
        None => false,
    };
    let single_writer = address.yes("single_writer")? == Some(true);
    sql.password = match address.secret("password")? {
        Some(password) => Some(password),
        None => match client.password.filter(|_| is_clients_user).zip(file) {
            Some((password, file)) => Some(secret_of(password, &file, |file| {
                my_cnf::read(file).ok()?.password
            })),
            None => address
                .variable("MYSQL_PWD")?
                .map(|setting| Secret::new(setting.text)),
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

fn tls(sql: &mut SqlOptions, address: &Address<'_>, default_mode: Option<TlsMode>) -> Result<()> {
    if let Some(mode) = default_mode {
        sql.tls = mode;
    }
    if let Some(mut setting) = address.parameter("ssl-mode") {
        setting.text.make_ascii_uppercase();
        sql.tls = setting.choice(&MODES)?;
    }
    let file = |names| address.one_of(names);
    let settings = [
        file(["ssl-ca", "cacert"])?,
        file(["ssl-cert", "cert"])?,
        file(["ssl-key", "key"])?,
    ];
    sql.files = tls_files(["ssl-ca", "ssl-cert", "ssl-key"], &settings)?;
    Ok(())
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

impl Configured for MysqlOptions {
    fn info(&self) -> &'static StoreInfo {
        &STORE
    }

    fn backend(&self) -> Box<dyn Backend> {
        backend(self.clone())
    }

    fn sharing(&self, key: &Key) -> Result<Sharing> {
        Ok(sharing::sharing(self, key))
    }

    fn schema(&self) -> Option<String> {
        Some(schema::text(&Mysql::tables(&self.sql)))
    }

    fn grants(&self, role: Role) -> Grants {
        grants::grants(self, role, self.user_of(role))
    }

    fn user(&self) -> Option<&str> {
        self.sql.user.as_deref()
    }
}
