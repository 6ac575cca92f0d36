//! Converts errors of Redis, the network and TLS to the common error type.
//!
//! The server's text is quoted only if it can't contain the request: the reply to an unknown
//! command repeats its arguments, passwords included.

use redis::{ServerError, Value};

use super::options::{Address, Replicas};
use crate::{
    backends::kit::one_line,
    lock::{Effect, Error, Kind, Origin, Result},
};

/// Returns whether a script that takes a lock may have written before it failed with this error.
///
/// Lua rolls nothing back. Errors that the server raises before the script, or before its first
/// write, leave nothing behind.
pub(in crate::backends) fn effect_of_take(error: &ServerError) -> Effect {
    let details = error.details().unwrap_or_default();
    match inner_error(error.code(), details).0 {
        "OOM" | "READONLY" | "MISCONF" | "NOREPLICAS" | "MASTERDOWN" | "FENCE" => {
            Effect::NotApplied
        }
        _ if details.contains("user_script") || details.contains(" script: ") => Effect::Unknown,
        _ => Effect::NotApplied,
    }
}

/// Converts the server's error reply. The server refused the request, so nothing was applied.
pub(in crate::backends) fn refused(error: &ServerError) -> Error {
    let details = error.details().unwrap_or_default();
    let (code, details) = inner_error(error.code(), details);
    let unavailable = |message: &str| Error::new(Kind::Unavailable, message);
    match code {
        "NOAUTH" => no_password(),
        "WRONGPASS" => Error::new(Kind::Denied, "the server refused the user or the password")
            .hint("the user is in the URL (redis://USER@HOST); the password in DLOCK_PASSWORD or --password-file"),
        "NOPERM" => no_rights(details),
        "DENIED" => Error::new(Kind::Denied, "the server runs in protected mode and refuses other hosts")
            .hint("give the server a password, or bind it to this network's address"),
        "LOADING" => unavailable("the server is loading its data").origin(Origin::WrongServer),
        "BUSY" => unavailable("the server is busy with a script").hint("SCRIPT KILL on the server ends it"),
        "MASTERDOWN" => unavailable("the server is a replica that lost its master").origin(Origin::WrongServer),
        "READONLY" => read_only(),
        "OOM" => unavailable("the server is out of memory").hint("raise maxmemory, or remove what fills it; keep noeviction"),
        "MISCONF" => unavailable("the server takes no writes because it can't save them").hint("see the server's log"),
        "NOREPLICAS" => unavailable("the server takes no writes because it has too few replicas (min-replicas-to-write)"),
        "CLUSTERDOWN" => unavailable("the server's cluster is down").hint("`redis-cli --cluster check` says what it lacks"),
        "TRYAGAIN" => slot_migrating(),
        "UNBLOCKED" => unavailable("the server became a replica").origin(Origin::WrongServer),
        "MOVED" | "ASK" | "CROSSSLOT" => Error::new(Kind::Config, "the server is one node of a Redis Cluster")
            .hint("a cluster has a URL of its own: redis+cluster://HOST:PORT,HOST:PORT"),
        "WRONGTYPE" => Error::new(Kind::Data, "a key that dlock needs holds a value of another type")
            .hint("another program uses this name; take another key or --namespace"),
        "FENCE" => {
            Error::new(Kind::Data, "the fence counter is beyond 2^53").hint("another program wrote it; delete redisson_lock_token:{…}")
        }
        _ => general(code, details),
    }
}

fn read_only() -> Error {
    Error::new(Kind::Config, "the server is a read-only replica")
        .origin(Origin::WrongServer)
        .hint("name the master in the URL")
}

fn slot_migrating() -> Error {
    Error::new(
        Kind::Unavailable,
        "the cluster is moving this lock to another server",
    )
    .hint("if it lasts, the move was interrupted: `redis-cli --cluster fix` ends it")
}

fn no_password() -> Error {
    Error::new(Kind::Denied, "the server wants a password").hint(
        "give it in DLOCK_PASSWORD, with --password-file, or as password_file in the configuration",
    )
}

fn no_rights(details: &str) -> Error {
    // For an error in a script, the server appends the script's hash.
    let details = details.split(" script: ").next().unwrap_or_default();
    Error::new(
        Kind::Denied,
        format!(
            "the user has not all the rights that dlock needs: {}",
            one_line(details.trim_end_matches('.'))
        ),
    )
    .hint("dlock doctor --print-grants run prints all that it takes")
}

/// Converts an error without a code of its own.
fn general(code: &str, details: &str) -> Error {
    let says = |text: &str| details.to_ascii_lowercase().contains(text);
    if says("the user executing the script") {
        no_rights(details)
    } else if says("unauthenticated") {
        // Before a login, servers since 6.2.7 reply this to any longer command.
        no_password()
    } else if says("non local key") {
        slot_migrating()
    } else if says("not an integer") || says("would overflow") {
        Error::new(Kind::Data, "the fence counter is not a number")
            .hint("another program wrote it; delete redisson_lock_token:{…}")
    } else if says("max number of clients") {
        Error::new(
            Kind::Unavailable,
            "the server has as many clients as it takes",
        )
        .hint("raise maxclients on the server")
    } else if says("unknown command")
        || says("unknown redis command")
        || (says("user_script") && says("syntax error"))
    {
        let which = unknown_command(details)
            .map(|name| format!(": {name}"))
            .unwrap_or_default();
        Error::new(
            Kind::Config,
            format!("the server doesn't know a command that dlock needs{which}"),
        )
        .hint(
            "dlock needs Redis 6.2 or Valkey 7.2 at least, with its commands under their own names",
        )
    } else if code == "ERR" {
        // The requests are dlock's: a service that refuses one has other rules than Redis.
        Error::new(
            Kind::Config,
            format!("the server refused a request: {}", one_line(details)),
        )
        .hint(
            "dlock needs Redis 6.2 or Valkey 7.2 at least, or a service that takes their commands",
        )
    } else {
        Error::new(
            Kind::Unavailable,
            format!("the server refused for now: {}", one_line(code)),
        )
    }
}

/// Returns the name of the command that the server does not know. What follows the name may quote
/// the request.
fn unknown_command(details: &str) -> Option<&str> {
    let (_, rest) = details.split_once(['\'', '`'])?;
    let (name, _) = rest.split_once(['\'', '`'])?;
    let plain = name.len() <= 32
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"._-|".contains(&byte));
    (plain && !name.is_empty()).then_some(name)
}

/// The server is no longer the master, or never was.
pub(super) fn no_master() -> Error {
    Error::new(Kind::Unavailable, "the server is no master just now")
        .origin(Origin::WrongServer)
        .hint("a failover is under way, or not all sentinels know of it yet")
}

/// The cluster's redirections don't end, or lead to a node without an address.
pub(super) fn lost_in_cluster() -> Error {
    Error::new(Kind::Unavailable, "the cluster's nodes don't agree where this lock is")
        .hint("see `redis-cli --cluster check`, and whether each node announces an address (cluster-announce-hostname)")
}

/// Only `have` replicas confirmed the write, fewer than required.
pub(super) fn too_few_replicas(replicas: Replicas, have: i64) -> Error {
    let (count, within) = (replicas.count, humantime::format_duration(replicas.within));
    Error::new(Kind::Unavailable, format!("{have} of {count} replicas had it within {within}"))
        .hint("`INFO replication` on the master shows its replicas; ?replicas= and ?replica_timeout= say how many must have it how soon")
}

/// Adds the name of the server that failed to the message.
pub(super) fn of(what: &str, address: &Address, mut error: Error) -> Error {
    error.message = format!("{what} {address}: {}", error.message);
    error
}

/// Whether the server serves a new connection, by its first reply. What the user may do, the grant
/// tells.
pub(in crate::backends) fn let_in(reply: &Value) -> Result<()> {
    match reply {
        Value::ServerError(error) => match refused(error) {
            error if error.is_transient() => Err(error),
            _ => Ok(()),
        },
        _ => Ok(()),
    }
}

/// Converts an error reply to `AUTH` or `SELECT`. Its text is not quoted.
pub(super) fn refused_greeting(error: &ServerError) -> Error {
    let details = error.details().unwrap_or_default().to_ascii_lowercase();
    if details.contains("no password is set") || details.contains("without any password configured")
    {
        Error::new(
            Kind::Denied,
            "the server has no password, but one was given",
        )
        .hint("leave the password out")
    } else if details.contains("db index") || details.contains("select is not allowed") {
        Error::new(Kind::Config, "the server has no database of that number")
    } else if error.code() == "ERR"
        && !details.contains("max number of clients")
        && !details.contains("unknown command")
    {
        Error::new(Kind::Denied, "the server refused the login")
    } else {
        refused(error)
    }
}

/// Returns the code and text of the error that ended a script. Servers before 7 wrap it in an error
/// of their own.
fn inner_error<'a>(code: &'a str, details: &'a str) -> (&'a str, &'a str) {
    const CODES: [&str; 9] = [
        "OOM",
        "WRONGTYPE",
        "NOPERM",
        "READONLY",
        "MISCONF",
        "NOREPLICAS",
        "MASTERDOWN",
        "CLUSTERDOWN",
        "FENCE",
    ];
    if code != "ERR" || !details.contains("user_script") {
        return (code, details);
    }
    let mut words = details.split([' ', ':', '-']);
    words
        .find_map(|word| CODES.into_iter().find(|code| *code == word))
        .map_or((code, details), |code| (code, details))
}

/// A reply in a form that no server version sends.
pub(in crate::backends) fn unreadable() -> Error {
    Error::new(Kind::Data, "the server's answer can't be understood")
        .effect(Effect::Unknown)
        .hint("is it a Redis server?")
}

/// A reply that is longer than any that dlock asks for.
pub(super) fn too_long() -> Error {
    Error::new(
        Kind::Data,
        "the server's answer is longer than any that dlock asks for",
    )
    .effect(Effect::Unknown)
    .hint("is it a Redis server?")
}

/// Data written by a newer dlock.
pub(in crate::backends) fn newer_layout(version: &str) -> Error {
    Error::new(
        Kind::Layout,
        format!(
            "the lock was taken by a newer dlock, whose layout {} this one can't read",
            one_line(version)
        ),
    )
    .hint("update dlock on this machine")
}

/// The key holds a value that is no lock.
pub(in crate::backends) fn no_lock(what: &str) -> Error {
    Error::new(
        Kind::Data,
        format!(
            "{} that is no lock is stored under this name",
            one_line(what)
        ),
    )
    .hint("another program uses this name; take another key or --namespace")
}

#[cfg(test)]
mod tests {
    use redis::Value;

    use super::*;

    fn of(reply: &str) -> Error {
        match redis::parse_redis_value(format!("-{reply}\r\n").as_bytes()).unwrap() {
            Value::ServerError(error) => refused(&error),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn temporary_errors_are_unavailable_and_permanent_ones_are_not() {
        for code in [
            "LOADING",
            "BUSY",
            "MASTERDOWN",
            "OOM",
            "CLUSTERDOWN",
            "MISCONF",
            "NOREPLICAS",
        ] {
            let error = of(&format!("{code} some words"));
            assert_eq!(
                (error.kind, error.effect),
                (Kind::Unavailable, Effect::NotApplied),
                "{code}"
            );
        }
        for (reply, kind) in [
            ("NOAUTH Authentication required.", Kind::Denied),
            (
                "WRONGPASS invalid username-password pair or user is disabled.",
                Kind::Denied,
            ),
            (
                "NOPERM this user has no permissions to run the 'evalsha' command",
                Kind::Denied,
            ),
            ("MOVED 3999 127.0.0.1:6381", Kind::Config),
            (
                "WRONGTYPE Operation against a key holding the wrong kind of value",
                Kind::Data,
            ),
            ("ERR value is not an integer or out of range", Kind::Data),
            (
                "ERR increment or decrement would overflow script: 5a, on @user_script:640.",
                Kind::Data,
            ),
            (
                "ERR Script attempted to access a non local key in a cluster node script: 5a, on @user_script:80.",
                Kind::Unavailable,
            ),
            ("ERR max number of clients reached", Kind::Unavailable),
        ] {
            assert_eq!(of(reply).kind, kind, "{reply}");
        }
    }

    #[test]
    fn a_replica_is_the_wrong_server_and_is_asked_again() {
        for code in ["READONLY", "MASTERDOWN", "LOADING", "UNBLOCKED"] {
            let error = of(&format!("{code} some words"));
            assert!(
                error.is_transient()
                    && error.ends_connection()
                    && error.effect == Effect::NotApplied,
                "{error:?}"
            );
        }
        assert_eq!(
            of("READONLY You can't write against a read only replica.").kind,
            Kind::Config
        );
    }

    #[test]
    fn an_unknown_error_is_the_servers() {
        for reply in [
            "ERR command 'evalsha' is not allowed",
            "ERR",
            "-",
            "NEWCODE",
            "ERR \u{1}",
        ] {
            assert!(
                matches!(of(reply).kind, Kind::Config | Kind::Unavailable),
                "{reply}"
            );
        }
    }

    #[test]
    fn older_servers_wrap_a_scripts_error() {
        let wrapped = "ERR Error running script (call to f_5a): @user_script:9: -OOM command not allowed when used memory > 'maxmemory'.";
        assert_eq!(of(wrapped).kind, Kind::Unavailable);
        let wrapped = "ERR Error running script (call to f_5a): @user_script:9: @user_script: 9: -NOPERM no access to a key";
        assert_eq!(of(wrapped).kind, Kind::Denied);
    }

    #[test]
    fn errors_of_old_servers_name_the_missing_feature() {
        for says in [
            "Unknown Redis command called from Lua script",
            "ERR syntax error",
        ] {
            let error = of(&format!(
                "ERR Error running script (call to f_5a): @user_script:590: @user_script: 590: {says}"
            ));
            assert!(
                error.kind == Kind::Config && error.hint.unwrap().contains("Redis 6.2"),
                "{says}"
            );
        }
    }

    #[test]
    fn a_script_that_failed_after_a_write_has_an_unknown_effect() {
        let effect =
            |reply: &str| match redis::parse_redis_value(format!("-{reply}\r\n").as_bytes())
                .unwrap()
            {
                Value::ServerError(error) => effect_of_take(&error),
                other => panic!("{other:?}"),
            };
        for reply in [
            "NOPERM this user has no permissions to run the 'evalsha' command",
            "OOM command not allowed when used memory > 'maxmemory'. script: 5a, on @user_script:613.",
            "ERR Error running script (call to f_5a): @user_script:9: -OOM command not allowed when used memory > 'maxmemory'.",
            "TRYAGAIN Multiple keys request during rehashing of slot",
            "FENCE the counter is beyond 2^53",
        ] {
            assert_eq!(effect(reply), Effect::NotApplied, "{reply}");
        }
        for reply in [
            "ERR The user executing the script can't run this command or subcommand script: 5a, on @user_script:650.",
            "NOPERM No permissions to access a key script: 5a, on @user_script:650.",
            "ERR user_script:700: attempt to index a nil value script: 5a, on @user_script:700.",
        ] {
            assert_eq!(effect(reply), Effect::Unknown, "{reply}");
        }
    }

    #[test]
    fn arguments_echoed_by_the_server_are_not_printed() {
        let error = of("ERR unknown command 'AUTH', with args beginning with: 'ana' 'hunter2'");
        assert!(
            !format!("{error:?}").contains("hunter2") && error.message.ends_with(": AUTH"),
            "{error:?}"
        );
        let error = of("ERR unknown command `hunter2 x`, with args");
        assert!(!format!("{error:?}").contains("hunter2"));
        assert!(
            !of("ERR Unknown Redis command called from script script: 5a")
                .message
                .contains(':')
        );
    }
}
