//! Converts errors of the server and of broken connections.

use sqlx::mysql::MySqlDatabaseError;

use crate::{
    backends::{kit::one_line, net},
    lock::{Effect, Error, Kind, Origin},
};

/// An error that the server answered with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ServerError {
    /// The error's number, as in the manuals.
    pub number: u16,
    /// The error's text. The text can quote statements, including their values.
    pub message: String,
}

/// Returns the server's part of an error.
pub(super) fn server_error(error: &sqlx::Error) -> Option<ServerError> {
    let error = error
        .as_database_error()?
        .try_downcast_ref::<MySqlDatabaseError>()?;
    Some(ServerError {
        number: error.number(),
        message: error.message().to_owned(),
    })
}

/// Returns the error of a refused statement. `begun`: whether earlier statements of the same
/// request were executed.
pub(super) fn refused(server_error: &ServerError, begun: bool) -> Error {
    let error = meaning(server_error);
    let unsure = matches!(
        server_error.number,
        3 | 1026 | 1030 | 1053 | 1158..=1161 | 1317 | 1598 | 1927 | 1969 | 3024
    );
    if begun || unsure {
        error.effect(Effect::Unknown)
    } else {
        error
    }
}

fn meaning(server_error: &ServerError) -> Error {
    let unavailable = |text: &str| Error::new(Kind::Unavailable, text);
    let config = |text: &str| Error::new(Kind::Config, text);
    match server_error.number {
        1040 => unavailable("the server has as many connections as it takes")
            .hint("raise max_connections on the server; a run that waits has one for each key, and two with mode=row"),
        1203 | 1226 => unavailable("the user has as many connections as it may")
            .hint("raise the user's limit; a run that waits has one for each key, and two with mode=row"),
        1205 => unavailable("the lock's row is locked by another client's transaction"),
        1213 | 3058 => unavailable("the server ended a deadlock"),
        1020 => unavailable("the lock's row was changed at the same moment"),
        1290 | 1792 | 1836 | 3008 => read_only(),
        3100 | 3101 => unavailable("the server's group takes no writes by way of it").origin(Origin::WrongServer),
        1021 | 1114 | 1030 | 1026 | 3 | 28 => unavailable("the server's disk is full or fails").hint(format!(
            "its error is {}: {}",
            server_error.number,
            quoted(server_error)
        )),
        1037 | 1038 | 1041 | 1135 => unavailable("the server is out of memory"),
        1053 | 1077 | 1079 => unavailable("the server is shutting down").origin(Origin::WrongServer),
        1927 | 1317 | 4031 | 1152 | 1158..=1161 | 1184 => unavailable("the server ended the session"),
        1969 | 3024 => unavailable("the server ended the statement for taking too long"),
        1047 => {
            unavailable("the cluster's node is not ready").origin(Origin::WrongServer).hint("it has no quorum or is being synchronized")
        }
        1044 | 1045 | 1095 | 1130 | 1142 | 1143 | 1227 | 1370 | 1410 | 1419 | 1698 | 1820 | 1862 | 3118 | 4151 => denied(server_error),
        1129 => unavailable("the server blocks this host after many failed connections").hint("mysqladmin flush-hosts"),
        3159 => config("the server takes encrypted connections only").hint("?ssl-mode=REQUIRED encrypts, and VERIFY_IDENTITY verifies too"),
        1046 => config("no database is named").hint("it stands in the URL: mysql://host/DATABASE"),
        1049 => config("there is no database of that name").hint("it stands in the URL: mysql://host/DATABASE"),
        1146 | 1054 => Error::new(
            Kind::Config,
            format!("the lock table, one of the tables next to it, or a column is missing: {}", quoted(server_error)),
        )
        .hint("dlock init adds what is missing; dlock init --print shows the SQL"),
        // An error of MySQL Router.
        4501 => config("a proxy before the server shares its connections among clients")
            .hint("connect to the server itself, or by a route without connection_sharing"),
        1103 | 1059 => config("the table's name can't be one").hint("?table=NAME or ?table=DATABASE.NAME"),
        1406 => config("the key is too long for the table's name column").hint("dlock init makes room"),
        1665 => config("the server's binlog_format STATEMENT keeps locks from being written").hint("it must be MIXED or ROW"),
        // The statements are dlock's: the server's setup is the reason.
        number => config(&format!("the server refused a statement with error {number}: {}", quoted(server_error))),
    }
}

/// Returns the error that the server is read-only.
pub(super) fn read_only() -> Error {
    Error::new(Kind::Config, "the server is read-only, as a replica is")
        .origin(Origin::WrongServer)
        .hint("name the primary in the URL")
}

fn denied(server_error: &ServerError) -> Error {
    let error = Error::new(
        Kind::Denied,
        format!("the server refused: {}", quoted(server_error)),
    );
    match server_error.number {
        1044 | 1142 | 1143 | 1227 | 1370 => {
            error.hint("dlock needs SELECT, INSERT, UPDATE and DELETE on its tables; init also CREATE and ALTER")
        }
        1095 => error.hint("only a user with CONNECTION_ADMIN can take a lock away from it"),
        1820 | 1862 => error.hint("the user's password has expired"),
        _ => error.hint("user and password come from the URL, DLOCK_PASSWORD, --password-file, the configuration or ~/.my.cnf"),
    }
}

/// Returns the server's text in one line. Only syntax errors quote statements, which contain
/// tokens.
fn quoted(server_error: &ServerError) -> String {
    if server_error.number == 1064 || server_error.number == 1149 {
        return "a syntax error".into();
    }
    one_line(&server_error.message)
}

/// Returns the error of a login: no statement was sent.
pub(super) fn connecting(error: sqlx::Error) -> Error {
    if let Some(server_error) = server_error(&error) {
        return meaning(&server_error);
    }
    match error {
        sqlx::Error::Io(error) => net::unreachable(error),
        sqlx::Error::Configuration(error) => {
            Error::new(Kind::Config, "the connection can't be made so").source(error)
        }
        error => {
            let text = error.to_string();
            // The driver has no kind of error for this.
            match text.split_once("unknown authentication plugin: ") {
                Some((_, plugin)) => login_method(plugin),
                None => Error::new(Kind::Unavailable, "the login was broken off")
                    .hint("does a MySQL server listen on this port?")
                    .source(error),
            }
        }
    }
}

/// Returns the error that the driver doesn't know the user's login method.
fn login_method(plugin: &str) -> Error {
    // The driver appends a place in its source code to the name.
    let plugin = plugin.split_whitespace().next().unwrap_or_default();
    let hint = match plugin {
        "client_ed25519" | "parsec" => {
            "ALTER USER … IDENTIFIED VIA mysql_native_password USING PASSWORD('…'), for a user with locks alone"
        }
        _ => {
            "caching_sha2_password, sha256_password, mysql_native_password and MariaDB's unix_socket are"
        }
    };
    Error::new(
        Kind::Config,
        format!(
            "the user's login method {} is not supported",
            one_line(plugin)
        ),
    )
    .hint(hint)
}

/// Returns the error for an answer that does not fit the request.
pub(super) fn unreadable() -> Error {
    Error::new(Kind::Data, "the server's answer can't be understood")
        .effect(Effect::Unknown)
        .hint("is the table one that dlock init made?")
}

/// The number of the error that a session does not exist.
pub(super) const NO_SESSION: u16 = 1094;
/// The number of the error that a statement was ended, and its session was not.
pub(super) const INTERRUPTED: u16 = 1317;
/// The number of the error that a statement took longer than an administrator allows, on MariaDB.
pub(super) const TOO_LONG: u16 = 1969;
/// As [`TOO_LONG`], on MySQL.
pub(super) const TOO_LONG_FOR_MYSQL: u16 = 3024;
/// The number of the error that a row with this key exists already.
pub(super) const DUPLICATE: u16 = 1062;
/// The number of the error that the server undid a transaction because of a deadlock.
pub(super) const DEADLOCK: u16 = 1213;

/// As [`DEADLOCK`], of sessions that wait for each other's `GET_LOCK`, on MySQL.
pub(super) const GATE_DEADLOCK: u16 = 3058;

#[cfg(test)]
mod tests {
    use super::*;

    fn of(number: u16, begun: bool) -> Error {
        refused(
            &ServerError {
                number,
                message: "words\nof the server".into(),
            },
            begun,
        )
    }

    #[test]
    fn temporary_errors_are_unavailable_and_permanent_ones_are_not() {
        for number in [1020, 1021, 1040, 1041, 1047, 1114, 1203, 1205, 1213, 3058] {
            let error = of(number, false);
            assert_eq!(
                (error.kind, error.effect),
                (Kind::Unavailable, Effect::NotApplied),
                "{number}"
            );
            assert_eq!(of(number, true).effect, Effect::Unknown, "{number}");
        }
        for (number, kind) in [
            (1045, Kind::Denied),
            (1142, Kind::Denied),
            (1146, Kind::Config),
            (1054, Kind::Config),
            (1665, Kind::Config),
            (4501, Kind::Config),
        ] {
            assert_eq!(of(number, false).kind, kind, "{number}");
        }
        // The server's own files failed, or the server ended the statement: the statement may have
        // been applied.
        for number in [1026, 1030, 1053, 1317, 1927] {
            assert_eq!(
                (of(number, false).kind, of(number, false).effect),
                (Kind::Unavailable, Effect::Unknown),
                "{number}"
            );
        }
    }

    #[test]
    fn a_read_only_server_is_the_wrong_one_and_is_asked_again() {
        for number in [1047, 1053, 1290, 1792, 1836, 3100] {
            let error = of(number, false);
            assert!(
                error.is_transient() && error.ends_connection(),
                "{number}: {error:?}"
            );
        }
        assert_eq!(of(1290, false).kind, Kind::Config);
    }

    #[test]
    fn a_server_that_wants_tls_says_how() {
        let error = of(3159, false);
        assert!(
            error.kind == Kind::Config
                && error
                    .hint
                    .is_some_and(|hint| hint.contains("?ssl-mode=REQUIRED"))
        );
    }

    #[test]
    fn unknown_login_methods_are_named() {
        let error = login_method("client_ed25519 (driver::auth:36)");
        assert_eq!(
            (error.kind, error.message.contains("driver")),
            (Kind::Config, false),
            "{error:?}"
        );
        assert!(error.hint.is_some_and(|hint| hint.contains("ALTER USER")));
    }

    #[test]
    fn statements_with_tokens_are_not_quoted() {
        let error = refused(
            &ServerError {
                number: 1064,
                message: "near 'dlock:secret'".into(),
            },
            false,
        );
        assert!(!format!("{error:?}").contains("secret"), "{error:?}");
        assert!(!of(9999, false).message.contains('\n'));
    }
}
