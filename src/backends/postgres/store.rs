//! What dlock knows of PostgreSQL, and its URLs. The settings of psql are the defaults (`PGHOST`,
//! `~/.pgpass`, …).

use std::{path::Path, sync::Arc};

use super::{
    AdvisoryKey, CAPABILITIES, PORT, Postgres, PostgresOptions, backend, examine,
    pgpass::{self, Login},
    schema, sharing,
};
use crate::{
    backends::{
        kit::{
            Address, ClientFile, Configured, PASSWORD, Parameter, Place, Scheme, StoreInfo, TLS,
            address::{secret_of, tls_files},
        },
        net::secret::Secret,
        sql::{
            self, SHEDLOCK, SqlDatabase as _, SqlMode, SqlOptions, SqlServer, TlsMode, sql_mode,
        },
    },
    lock::{Backend, Grants, Key, Result, Role, Sharing},
    settings::setting::Setting,
};

/// PostgreSQL.
pub const STORE: StoreInfo = StoreInfo {
    name: "PostgreSQL",
    schemes: &[
        Scheme::free("postgres", "postgres://user@host[:5432]/db", "PostgreSQL")
            .or(&["pg", "pgsql"]),
        Scheme::free("postgresql", "postgresql://user@host[:5432]/db", "the same"),
    ],
    parameters: &[
        PASSWORD,
        TLS,
        sql::PARAMETERS,
        &[
            // In a table it would be the setting of that name: this machine's.
            Parameter::new("host", "NAME", "the server, or the folder of its socket")
                .only_in(Place::Url),
            Parameter::new("pg_key", "NUMBER", "the key of the one advisory lock"),
            Parameter::new("sslcert", "PATH", "as cert"),
            Parameter::new("sslkey", "PATH", "as key"),
            Parameter::new("sslmode", "disable to verify-full", "whether TLS is used"),
            Parameter::new("sslrootcert", "PATH", "as cacert"),
        ],
    ],
    server: Some("PostgreSQL"),
    client_file: Some(ClientFile {
        variable: "PGPASSFILE",
        in_home: ".pgpass",
    }),
    capabilities: &[
        ("PostgreSQL", CAPABILITIES[0]),
        ("PostgreSQL, mode=row", CAPABILITIES[1]),
        ("PostgreSQL, mode=advisory", CAPABILITIES[2]),
    ],
    layout: sql::layout,
    libraries: &[
        ("PostgreSQL", &SHEDLOCK),
        ("PostgreSQL, mode=advisory", &sharing::ADVISORY),
    ],
    without_lease: "it lasts as long as that program's session, which pg_terminate_backend ends",
    checks: &[("PostgreSQL", &[examine::CHECKS])],
    configure: |address| Ok(Arc::new(options(&address)?)),
};

/// The usual directories of the server's Unix socket.
const SOCKETS: [&str; 2] = ["/run/postgresql", "/tmp"];

/// Creates the options of a `postgres://` URL.
fn options(address: &Address<'_>) -> Result<PostgresOptions> {
    let url = address.url.clone();
    let host = address.parameter("host");
    if url.hosts.len() > 1 {
        return Err(address
            .wrong("it names more than one server")
            .hint("name the primary, or an address that follows it"));
    }
    let port = match url.hosts.first().and_then(|(_, port)| *port) {
        Some(port) => port,
        None => match address.variable("PGPORT")? {
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
        (None, None) => match address.variable("PGHOST")? {
            Some(setting) => server(setting.text, port),
            None => default_server(port),
        },
    };
    let mut sql = SqlOptions::new(server);
    sql.namespace = address.namespace.clone();
    sql.user = match url.user {
        Some(user) => Some(user),
        None => Some(
            address
                .variable("PGUSER")?
                .map_or_else(address.local_user, |setting| setting.text),
        ),
    };
    let database = url.path.trim_start_matches('/');
    sql.database = match database {
        "" => address
            .variable("PGDATABASE")?
            .map(|setting| setting.text)
            .or_else(|| sql.user.clone()),
        name => Some(name.to_owned()),
    };
    tls(&mut sql, address)?;
    sql.no_shedlock = address.yes("shedlock")? == Some(false);
    if let Some(setting) = address.parameter("table") {
        sql.table = table(&setting)?;
    }
    sql.mode = sql_mode(address)?;
    let advisory_key = match address.parameter("pg_key") {
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
    sql.password = match address.secret("password")? {
        Some(password) => Some(password),
        None => psql_password(&sql, address)?,
    };
    Ok(PostgresOptions { sql, advisory_key })
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

fn tls(sql: &mut SqlOptions, address: &Address<'_>) -> Result<()> {
    let modes = [
        ("disable", TlsMode::Disable),
        // `allow` may use TLS, so `prefer` satisfies it.
        ("allow", TlsMode::Prefer),
        ("prefer", TlsMode::Prefer),
        ("require", TlsMode::Require),
        ("verify-ca", TlsMode::VerifyCa),
        ("verify-full", TlsMode::VerifyFull),
    ];
    let mode = match address.parameter("sslmode") {
        Some(setting) => Some(setting),
        None => address.variable("PGSSLMODE")?,
    };
    if let Some(setting) = &mode {
        sql.tls = setting.choice(&modes)?;
    }
    let file = |names, psql_variable| match address.one_of(names)? {
        Some(setting) => Ok(Some(setting)),
        None => address.variable(psql_variable),
    };
    let authorities = file(["sslrootcert", "cacert"], "PGSSLROOTCERT")?;
    let settings = [
        // The system's authorities are the default.
        authorities.filter(|setting| setting.text != "system"),
        file(["sslcert", "cert"], "PGSSLCERT")?,
        file(["sslkey", "key"], "PGSSLKEY")?,
    ];
    sql.files = tls_files(["sslrootcert", "sslcert", "sslkey"], &settings)?;
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
fn psql_password(sql: &SqlOptions, address: &Address<'_>) -> Result<Option<Secret>> {
    if let Some(setting) = address.variable("PGPASSWORD")? {
        return Ok(Some(Secret::new(setting.text)));
    }
    let file = address.client_file();
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

impl Configured for PostgresOptions {
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
        Some(schema::text(&Postgres::tables(&self.sql)))
    }

    fn grants(&self, role: Role) -> Grants {
        examine::grants(self, role, self.user_of(role))
    }

    fn user(&self) -> Option<&str> {
        self.sql.user.as_deref()
    }

    fn one_lock_for_all(&self) -> Option<&'static str> {
        self.advisory_key
            .map(|_| "pg_key makes every key the one lock of the jobs")
    }
}
