//! Finding the master that sentinels watch.
//!
//! Worst cases: a sentinel is down together with the master (the next is asked meanwhile); a
//! sentinel doesn't know of the failover yet (its master can't be reached or reports another role,
//! and the next sentinel is asked); the old master is cut off and doesn't know that it is no longer
//! the master (dlock can't detect that; waiting for replicas guards against it).

use redis::{Pipeline, Value};

use super::{
    connection::RedisConnection,
    failure,
    options::{Address, RedisOptions, Replicas, Sentinel},
    race, reply,
};
use crate::lock::{Error, Kind, Result};

pub(super) struct Sentinels {
    options: Sentinel,
    /// The sentinel to ask first.
    first: usize,
}

/// A sentinel's failure to lead to a master.
struct Failure {
    /// Whether the sentinel named a master, which then failed.
    of_master: bool,
    error: Error,
}

impl Sentinels {
    pub(super) fn new(options: Sentinel) -> Self {
        Self { options, first: 0 }
    }

    /// Returns a connection to the server that a sentinel names as master and that confirms its
    /// role.
    pub(super) async fn open_master(&mut self, options: &RedisOptions) -> Result<RedisConnection> {
        let Sentinel { sentinels, .. } = &self.options;
        let (count, first) = (sentinels.len(), self.first);
        // If this call is dropped without an answer, the next call begins with another sentinel.
        self.first += 1;
        let theirs = &self.options;
        let ways = (0..count).map(|nth| {
            let at = (first + nth) % count;
            async move { Ok((at, through(options, theirs, &sentinels[at]).await?)) }
        });
        let failures = match race::first(ways).await {
            Ok((at, connection)) => {
                self.first = at;
                return Ok(connection);
            }
            Err(failures) => failures,
        };
        Err(most_specific(failures))
    }
}

async fn through(
    options: &RedisOptions,
    theirs: &Sentinel,
    sentinel: &Address,
) -> Result<RedisConnection, Failure> {
    let of_sentinel = |error| Failure {
        of_master: false,
        error: failure::of("sentinel", sentinel, error),
    };
    let (master, replicas) = named_by(options, theirs, sentinel)
        .await
        .map_err(of_sentinel)?;
    let of_master = |error| Failure {
        of_master: true,
        error: failure::of("master", &master, error),
    };
    let mut question = redis::pipe();
    question.cmd("ROLE");
    let (mut connection, answers) = RedisConnection::open_and(&options.at(&master), &question)
        .await
        .map_err(of_master)?;
    connection.replicas = replicas;
    let role = answers
        .first()
        .and_then(reply::items)
        .and_then(<[Value]>::first)
        .and_then(reply::text);
    match (role.as_deref(), answers.first()) {
        (Some("master"), _) => Ok(connection),
        (_, Some(Value::ServerError(error))) => Err(of_master(failure::refused(error))),
        _ => Err(of_master(failure::no_master())),
    }
}

/// Returns the replies of the first sentinel that answers.
pub(super) async fn ask_any(
    options: &RedisOptions,
    theirs: &Sentinel,
    questions: &Pipeline,
) -> Result<Vec<Value>> {
    let ways = theirs.sentinels.iter().map(|sentinel| async move {
        let asked = RedisConnection::open_and(&login(options, theirs, sentinel), questions).await;
        asked.map(|(_, replies)| replies).map_err(|error| Failure {
            of_master: false,
            error: failure::of("sentinel", sentinel, credentials(error)),
        })
    });
    race::first(ways).await.map_err(most_specific)
}

fn login(options: &RedisOptions, theirs: &Sentinel, sentinel: &Address) -> RedisOptions {
    RedisOptions {
        db: 0,
        user: theirs.user.clone(),
        password: theirs.password.clone(),
        ..options.at(sentinel)
    }
}

/// Returns the master's address according to this sentinel, and the number of its replicas (0
/// unless all must confirm).
async fn named_by(
    options: &RedisOptions,
    theirs: &Sentinel,
    sentinel: &Address,
) -> Result<(Address, u32)> {
    let login = login(options, theirs, sentinel);
    let mut question = redis::pipe();
    question
        .cmd("SENTINEL")
        .arg("GET-MASTER-ADDR-BY-NAME")
        .arg(&theirs.master);
    let all = options
        .replicas
        .is_some_and(|replicas| replicas.count == Replicas::ALL);
    if all {
        question.cmd("SENTINEL").arg("MASTER").arg(&theirs.master);
    }
    let (mut connection, answers) = RedisConnection::open_and(&login, &question)
        .await
        .map_err(credentials)?;
    match answers.first() {
        Some(Value::ServerError(error)) => Err(credentials(failure::refused(error))),
        Some(Value::Nil) => {
            let names = redis::cmd("SENTINEL").arg("MASTERS").get_packed_command();
            let names = connection
                .ask(&names)
                .await
                .map(|reply| names_in(&reply))
                .unwrap_or_default();
            Err(unknown_name(&theirs.master, &names))
        }
        Some(Value::Array(parts)) => {
            let master = address(parts).ok_or_else(failure::unreadable)?;
            Ok((
                master,
                if all {
                    known_replicas(answers.get(1))?
                } else {
                    0
                },
            ))
        }
        _ => Err(failure::unreadable()),
    }
}

/// Reads the number of replicas from the reply to `SENTINEL MASTER`. Sentinels also count cut-off
/// replicas.
fn known_replicas(answer: Option<&Value>) -> Result<u32> {
    if let Some(Value::ServerError(error)) = answer {
        return Err(credentials(failure::refused(error)));
    }
    let fields = answer.and_then(reply::pairs).unwrap_or_default();
    let count = fields
        .iter()
        .find(|(field, _)| field == "num-slaves")
        .and_then(|(_, count)| count.parse().ok());
    count.ok_or_else(failure::unreadable)
}

fn address(parts: &[Value]) -> Option<Address> {
    let [host, port] = parts else { return None };
    Some(Address {
        host: reply::text(host)?,
        port: reply::text(port)?.parse().ok()?,
    })
}

/// Returns the names in the reply to `SENTINEL MASTERS`.
fn names_in(reply: &Value) -> Vec<String> {
    let masters = reply::items(reply)
        .unwrap_or_default()
        .iter()
        .filter_map(reply::pairs);
    masters
        .filter_map(|fields| fields.into_iter().find(|(field, _)| field == "name"))
        .map(|(_, name)| name)
        .collect()
}

fn unknown_name(name: &str, known: &[String]) -> Error {
    let error = Error::new(
        Kind::Config,
        format!("there is no master of the name {name}"),
    );
    match known {
        [] => error.hint("it watches over none; the name stands behind the hosts: redis+sentinel://HOST,HOST/NAME"),
        known => error.hint(format!("it watches over {}", known.join(", "))),
    }
}

/// Adds a hint about sentinel credentials, or about a server that is no sentinel.
fn credentials(error: Error) -> Error {
    match error.kind {
        // No sentinel answered: the connection failed.
        _ if error.source.is_some() => error,
        Kind::Denied => {
            error.hint("sentinels have credentials of their own: sentinel_user, sentinel_password_file, DLOCK_SENTINEL_PASSWORD")
        }
        Kind::Config => error.hint("is it a sentinel? They listen on port 26379 usually; a single server's URL is redis://HOST"),
        _ => error,
    }
}

/// Returns the most useful failure: one of a named master first, then a permanent one, else the
/// last.
fn most_specific(failures: Vec<Failure>) -> Error {
    let count = failures.len();
    let rank = |failure: &Failure| (failure.of_master, !failure.error.is_transient());
    match failures.into_iter().max_by_key(rank) {
        Some(Failure {
            of_master: false,
            mut error,
        }) if error.is_transient() && count > 1 => {
            error.message = format!("none of {count} sentinels answers; {}", error.message);
            error
        }
        Some(failure) => failure.error,
        None => Error::new(Kind::Config, "no sentinel is named"),
    }
}
