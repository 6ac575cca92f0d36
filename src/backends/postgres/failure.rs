//! From what PostgreSQL, the network and TLS say to the one error type.

use std::{error::Error as _, io};

use tokio_postgres::error::{DbError, Severity, SqlState};

use crate::lock::{Effect, Error, Kind};

/// An error in answer to a statement, or to none: the connection broke while one was on its way.
pub(super) fn statement(error: tokio_postgres::Error) -> Error {
    match error.as_db_error() {
        Some(database) => refused(database).source(error),
        None if error.is_closed() || error.source().is_some_and(<dyn std::error::Error>::is::<io::Error>) => {
            Error::new(Kind::Unavailable, "the connection to the server broke").effect(Effect::Unknown).source(error)
        }
        None => Error::new(Kind::Data, "the server's answer can't be understood")
            .effect(Effect::Unknown)
            .hint("is it a PostgreSQL server?")
            .source(error),
    }
}

/// An error that the server answered with. An ERROR rolled the statement back; what ended the session may have come after a commit.
fn refused(error: &DbError) -> Error {
    let failure = by_state(error);
    let unknown = ends_session(error) || *error.code() == SqlState::T_R_STATEMENT_COMPLETION_UNKNOWN;
    if unknown { failure.effect(Effect::Unknown) } else { failure }
}

/// Whether the server ended the session with this error.
pub(super) fn ends_session(error: &DbError) -> bool {
    matches!(error.parsed_severity(), Some(Severity::Fatal | Severity::Panic) | None)
}

/// By SQLSTATE (postgresql.org/docs/current/errcodes-appendix.html).
fn by_state(error: &DbError) -> Error {
    let says = error.message();
    let unavailable = |message: &str| Error::new(Kind::Unavailable, message);
    match *error.code() {
        SqlState::UNDEFINED_TABLE | SqlState::UNDEFINED_COLUMN | SqlState::INVALID_SCHEMA_NAME => {
            Error::new(Kind::Config, format!("the server has not the tables that dlock needs: {}", clean(says)))
                .hint("dlock init creates them; dlock init --print shows the SQL")
        }
        SqlState::INVALID_COLUMN_REFERENCE => Error::new(Kind::Config, "the table's names are not unique").hint("dlock init mends it"),
        SqlState::STRING_DATA_RIGHT_TRUNCATION => {
            Error::new(Kind::Config, "the table's columns are too short for this name").hint("dlock init widens them")
        }
        SqlState::READ_ONLY_SQL_TRANSACTION => {
            Error::new(Kind::Config, "the server takes no writes: it is a standby, or set to read only").hint("name the primary in the URL")
        }
        SqlState::INSUFFICIENT_PRIVILEGE => {
            Error::new(Kind::Denied, format!("the user has not all the rights that dlock needs: {}", clean(says)))
                .hint("GRANT SELECT, INSERT, UPDATE, DELETE on dlock's tables to the user")
        }
        SqlState::T_R_SERIALIZATION_FAILURE | SqlState::T_R_DEADLOCK_DETECTED => unavailable("the server undid the step for another one"),
        SqlState::LOCK_NOT_AVAILABLE => unavailable("somebody keeps the lock's row locked in a transaction"),
        SqlState::QUERY_CANCELED => unavailable("the server cancelled the statement").hint("is statement_timeout set for this user?"),
        SqlState::DISK_FULL => unavailable("the server's disk is full"),
        SqlState::OUT_OF_MEMORY => unavailable("the server is out of memory"),
        SqlState::TOO_MANY_CONNECTIONS => too_many(says),
        SqlState::ADMIN_SHUTDOWN => unavailable("an administrator ended the session"),
        SqlState::CRASH_SHUTDOWN => unavailable("the server crashed"),
        SqlState::CANNOT_CONNECT_NOW => unavailable("the server is starting or stopping"),
        SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT | SqlState::IDLE_SESSION_TIMEOUT => {
            unavailable("the server ended the session, which it had not heard of for too long")
        }
        SqlState::INVALID_PASSWORD | SqlState::INVALID_AUTHORIZATION_SPECIFICATION => login(says),
        SqlState::INVALID_CATALOG_NAME => Error::new(Kind::Config, "the server has no such database"),
        ref code => match code.code().get(..2) {
            // Connection, insufficient resources, operator intervention, system error.
            Some("08" | "53" | "57" | "58") => unavailable(&format!("the server can't do it now: {}", clean(says))),
            Some("40") => unavailable("the server undid the step"),
            Some("28") => login(says),
            _ => Error::new(Kind::Internal, format!("the server refused a statement: {} {}", code.code(), clean(says))),
        },
    }
}

fn too_many(says: &str) -> Error {
    let error = Error::new(Kind::Unavailable, "the server has as many connections as it takes");
    if says.contains("remaining connection slots") || says.contains("too many clients") {
        error.hint("each dlock that waits has one: raise max_connections on the server")
    } else {
        error.hint("the user's or the database's CONNECTION LIMIT is reached")
    }
}

fn login(says: &str) -> Error {
    let error = Error::new(Kind::Denied, "the server refused the user or the password");
    if says.contains("pg_hba.conf") {
        let how = if says.contains("no encryption") || says.contains("SSL off") { ", without TLS" } else { "" };
        return Error::new(Kind::Denied, format!("the server lets nobody in from here as this user{how}"))
            .hint("see pg_hba.conf on the server; ?sslmode=verify-full asks for TLS");
    }
    error.hint("the user is in the URL (postgres://USER@HOST/DB) or PGUSER; the password in DLOCK_PASSWORD, --password-file or ~/.pgpass")
}

/// An error while connecting: no statement was sent.
pub(super) fn connecting(error: tokio_postgres::Error) -> Error {
    if let Some(database) = error.as_db_error() {
        let failure = by_state(database);
        return failure.source(error);
    }
    let io = error.source().and_then(|cause| cause.downcast_ref::<io::Error>());
    let inner = io.and_then(io::Error::get_ref).and_then(|inner| inner.downcast_ref::<rustls::Error>());
    let says = error.to_string();
    let failure = match inner {
        Some(rustls::Error::InvalidCertificate(why)) => Error::new(Kind::Denied, format!("the server's certificate is not valid: {why}"))
            .hint("an authority of your own is named with ?sslrootcert=FILE; the host in the URL must be one that the certificate names"),
        Some(rustls::Error::AlertReceived(alert)) => Error::new(Kind::Denied, format!("the server ended the TLS handshake: {alert:?}"))
            .hint("if it asks for a client certificate, ?sslcert=FILE&sslkey=FILE give it"),
        _ if error.source().is_some_and(|cause| cause.to_string().contains("does not support TLS")) => {
            Error::new(Kind::Config, "the server speaks no TLS").hint("?sslmode=disable connects in clear")
        }
        _ if says.starts_with("invalid configuration") || says.starts_with("authentication error") => no_login(&error),
        _ if io.is_some() || error.is_closed() => Error::new(Kind::Unavailable, "the server closed the connection before it was open"),
        _ => Error::new(Kind::Config, "the server's answer can't be understood").hint("is it a PostgreSQL server?"),
    };
    failure.source(error)
}

fn no_login(error: &tokio_postgres::Error) -> Error {
    let why = error.source().map(ToString::to_string).unwrap_or_default();
    if why.contains("password missing") {
        Error::new(Kind::Denied, "the server wants a password")
            .hint("give it in DLOCK_PASSWORD, PGPASSWORD, with --password-file, or in ~/.pgpass")
    } else {
        Error::new(Kind::Denied, format!("the server can't be logged in to: {}", clean(&why)))
    }
}

/// No connection: nothing was sent.
pub(super) fn unreachable(error: io::Error) -> Error {
    let plain = |message: &str| Error::new(Kind::Unavailable, message);
    let failure = match error.kind() {
        io::ErrorKind::ConnectionRefused => plain("nothing listens there").hint("is the server running, and is the port right?"),
        io::ErrorKind::NotFound => {
            plain("there is no such socket").hint("is the server running, and are the directory and the port right?")
        }
        io::ErrorKind::PermissionDenied => Error::new(Kind::Denied, "this user may not open the server's socket"),
        io::ErrorKind::TimedOut => plain("the server did not answer"),
        io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => plain("the server's network can't be reached"),
        _ => plain("can't connect to the server"),
    };
    failure.source(error)
}

/// The host name means nothing.
pub(super) fn unresolved(error: Option<io::Error>) -> Error {
    let failure = Error::new(Kind::Unavailable, "the server's name can't be resolved");
    match error {
        Some(error) => failure.source(error),
        None => failure,
    }
}

/// A row that no version of dlock writes.
pub(super) fn malformed(error: tokio_postgres::Error) -> Error {
    Error::new(Kind::Data, "a row of the table is not what dlock writes")
        .hint("another program's table has this name? ?table=NAME names another one")
        .source(error)
}

/// The server's text in one line, without what a terminal would act on.
fn clean(text: &str) -> String {
    let line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(200).collect();
    crate::lock::printable(&line).into_owned()
}
