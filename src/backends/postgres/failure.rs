//! Converts errors of PostgreSQL and of broken connections.

use sqlx::{
    error::DatabaseError,
    postgres::{PgDatabaseError, PgSeverity},
};

use crate::backends::{kit::one_line, net};
use crate::lock::{Effect, Error, Kind, Origin};

/// Whether the server cancelled a statement because its time, or the time of its wait for a lock,
/// was over.
pub(super) fn is_cancelled(error: &Error) -> bool {
    has_code(error, &["57014", "55P03"])
}

/// Whether a statement divided by zero.
pub(super) fn is_division_by_zero(error: &Error) -> bool {
    has_code(error, &["22012"])
}

fn has_code(error: &Error, codes: &[&str]) -> bool {
    let source = error
        .source
        .as_deref()
        .and_then(|source| source.downcast_ref::<sqlx::Error>());
    let code = source
        .and_then(sqlx::Error::as_database_error)
        .and_then(sqlx::error::DatabaseError::code);
    code.is_some_and(|code| codes.contains(&&*code))
}

/// Whether the server is a standby, which has no unlogged tables.
pub(super) fn is_in_recovery(error: &Error) -> bool {
    let source = error
        .source
        .as_deref()
        .and_then(|source| source.downcast_ref::<sqlx::Error>());
    source
        .and_then(sqlx::Error::as_database_error)
        .is_some_and(in_recovery)
}

fn in_recovery(error: &dyn DatabaseError) -> bool {
    error.code().is_some_and(|code| code == "0A000") && error.message().contains("recovery")
}

/// Returns the error of a statement: the server's answer, or a connection that broke while the
/// statement was under way.
pub(super) fn statement(error: sqlx::Error) -> Error {
    let unknown = |kind, text: &str| Error::new(kind, text).effect(Effect::Unknown);
    match &error {
        sqlx::Error::Database(database) => refused(&**database).source(error),
        sqlx::Error::Io(_) => {
            unknown(Kind::Unavailable, "the connection to the server broke").source(error)
        }
        _ => unknown(Kind::Data, "the server's answer can't be understood")
            .hint("is it a PostgreSQL server?")
            .source(error),
    }
}

/// Converts an error that the server answered with. An ERROR rolled the statement back; an error
/// that ended the session may be later.
fn refused(error: &dyn DatabaseError) -> Error {
    let failure = by_state(error);
    // 40003: whether the statement completed is unknown.
    let unknown = ends_session(error) || error.code().is_some_and(|code| code == "40003");
    if unknown {
        failure.effect(Effect::Unknown)
    } else {
        failure
    }
}

/// Whether the server ended the session with this error.
pub(super) fn ends_session(error: &dyn DatabaseError) -> bool {
    error
        .try_downcast_ref::<PgDatabaseError>()
        .is_none_or(|error| matches!(error.severity(), PgSeverity::Fatal | PgSeverity::Panic))
}

/// Converts an error by its SQLSTATE (postgresql.org/docs/current/errcodes-appendix.html).
fn by_state(error: &dyn DatabaseError) -> Error {
    let says = error.message();
    let code = error.code().unwrap_or_default();
    let unavailable = |message: &str| Error::new(Kind::Unavailable, message);
    match &*code {
        "3F000" if says.contains("no schema has been selected") => Error::new(
            Kind::Config,
            "the user's search_path names no schema that exists",
        )
        .hint("name the schema in the URL: ?table=SCHEMA.TABLE; or ALTER ROLE CURRENT_USER SET search_path"),
        "42P01" | "42703" | "3F000" => Error::new(
            Kind::Config,
            format!(
                "the server has not the tables that dlock needs: {}",
                one_line(says)
            ),
        )
        .hint("dlock init creates them; dlock init --print shows the SQL"),
        "42P10" => {
            Error::new(Kind::Config, "the table's names are not unique").hint("dlock init mends it")
        }
        "22001" => Error::new(
            Kind::Config,
            "the table's columns are too short for this name",
        )
        .hint("dlock init widens them"),
        _ if in_recovery(error) => read_only(),
        "25006" => read_only(),
        "22P05" | "22021" => Error::new(
            Kind::Config,
            format!(
                "the database's encoding lacks a character of this text: {}",
                one_line(says)
            ),
        )
        .hint("a database with ENCODING 'UTF8' has all of them; or take a key in ASCII"),
        "42501" if says.contains("for schema") => Error::new(
            Kind::Denied,
            format!("the user may not create tables: {}", one_line(says)),
        )
        .hint("GRANT CREATE ON SCHEMA to the user of dlock init, or let the schema's owner run it"),
        "42501" => Error::new(
            Kind::Denied,
            format!(
                "the user has not all the rights that dlock needs: {}",
                one_line(says)
            ),
        )
        .hint("GRANT SELECT, INSERT, UPDATE, DELETE on dlock's tables to the user"),
        "40001" | "40P01" => unavailable("the server undid the step for another one"),
        "55P03" => unavailable("another session keeps the lock's row locked in a transaction"),
        "57014" => unavailable("the server cancelled the statement")
            .hint("is statement_timeout set for this user?"),
        "53100" => unavailable("the server's disk is full"),
        "53200" => unavailable("the server is out of memory"),
        "53300" => too_many(says),
        "57P01" => unavailable("an administrator ended the session").origin(Origin::WrongServer),
        "57P02" => unavailable("the server crashed").origin(Origin::WrongServer),
        "57P03" => unavailable("the server is starting or stopping").origin(Origin::WrongServer),
        "55000" if says.contains("not currently accepting connections") => {
            unavailable("the database accepts no connections now")
                .origin(Origin::WrongServer)
                .hint("ALTER DATABASE … ALLOW_CONNECTIONS true")
        }
        "25P03" | "57P05" => {
            unavailable("the server ended the session, which it had not heard of for too long")
        }
        "28P01" | "28000" => login(says),
        "3D000" => Error::new(Kind::Config, "the server has no such database"),
        _ => match code.get(..2) {
            // Connection, insufficient resources, operator intervention, system error.
            Some("08" | "53" | "57" | "58") => {
                unavailable(&format!("the server can't do it now: {}", one_line(says)))
            }
            Some("40") => unavailable("the server undid the step"),
            Some("28") => login(says),
            // The statements are dlock's: the server's setup is the reason.
            _ => Error::new(
                Kind::Config,
                format!("the server refused a statement: {code} {}", one_line(says)),
            ),
        },
    }
}

/// Returns the error that the server is read-only.
pub(super) fn read_only() -> Error {
    Error::new(
        Kind::Config,
        "the server takes no writes: it is a standby, or set to read only",
    )
    .origin(Origin::WrongServer)
    .hint("name the primary in the URL")
}

fn too_many(says: &str) -> Error {
    let error = Error::new(
        Kind::Unavailable,
        "the server has as many connections as it takes",
    );
    if says.contains("remaining connection slots") || says.contains("too many clients") {
        error.hint("raise max_connections on the server; a run that waits has one for each key, and two with mode=row")
    } else {
        error.hint("raise the user's or the database's CONNECTION LIMIT; a run that waits has one for each key, and two with mode=row")
    }
}

fn login(says: &str) -> Error {
    let error = Error::new(Kind::Denied, "the server refused the user or the password");
    if says.contains("pg_hba.conf") {
        let how = if says.contains("no encryption") || says.contains("SSL off") {
            ", without TLS"
        } else {
            ""
        };
        return Error::new(
            Kind::Denied,
            format!("the server accepts no login from here as this user{how}"),
        )
        .hint("see pg_hba.conf on the server; ?sslmode=verify-full asks for TLS");
    }
    error.hint("the user is in the URL (postgres://USER@HOST/DB) or PGUSER; the password in DLOCK_PASSWORD, --password-file or ~/.pgpass")
}

/// Returns the error of a login: no statement was sent.
pub(super) fn connecting(error: sqlx::Error, with_password: bool) -> Error {
    let error = match error {
        sqlx::Error::Io(error) => return net::unreachable(error),
        error => error,
    };
    let failure = match &error {
        sqlx::Error::Database(database)
            if !with_password && database.code().is_some_and(|code| code == "28P01") =>
        {
            Error::new(Kind::Denied, "the server wants a password").hint(
                "give it in DLOCK_PASSWORD, PGPASSWORD, with --password-file, or in ~/.pgpass",
            )
        }
        sqlx::Error::Database(database) if database.code().is_some_and(|code| code == "08P01") => {
            by_pooler(&**database)
        }
        sqlx::Error::Database(database) => by_state(&**database),
        error
            if error.to_string().contains("authentication")
                || error.to_string().contains("SASL") =>
        {
            Error::new(
                Kind::Denied,
                format!(
                    "the server can't be logged in to: {}",
                    one_line(&error.to_string())
                ),
            )
        }
        _ => no_postgres(),
    };
    failure.source(error)
}

/// Converts PgBouncer's error at a login: it has one SQLSTATE, that of a broken connection, for all
/// of them.
fn by_pooler(error: &dyn DatabaseError) -> Error {
    let says = error.message();
    if says.contains("no such database") {
        Error::new(Kind::Config, "the pooler has no such database")
    } else if says.contains("authentication failed")
        || says.contains("no such user")
        || says.contains("password")
    {
        login(says)
    } else {
        by_state(error)
    }
}

/// Returns the error that the server speaks another protocol.
pub(super) fn no_postgres() -> Error {
    Error::new(Kind::Config, "the server's answer can't be understood")
        .hint("is it a PostgreSQL server?")
}

/// Returns the error for a row that no version of dlock writes.
pub(super) fn malformed() -> Error {
    Error::new(Kind::Data, "a row of the table is not what dlock writes")
        .hint("another program's table has this name? ?table=NAME names another one")
}
