//! Wakes waiters in the order of the lock's row, and only the waiters that can proceed.
//!
//! A waiter sleeps in the server, blocked on its predecessor's chain lock, a `GET_LOCK`. A waiter
//! keeps its own chain lock until its wait is over or the waiter is gone. The first waiter blocks
//! on the holder's chain lock or advisory lock. So the end of a wait wakes only the next waiter,
//! regardless of the queue's length.
//!
//! Where the rules let other waiters proceed as well, as readers and permits do, the client that
//! changes the row increments the row's wake-up counter (column `bell`) in the same statement. Then
//! the client ends the sleep of the waiters that the rules name, at most a few. A sleeping waiter
//! is identified by its sleep lock, a `GET_LOCK` for the time of its sleep. Once a waiter has its
//! sleep lock, it compares the wake-up counter with the value read from the row: no wake-up is
//! missed.
//!
//! The row decides; this module only wakes. Worst cases:
//! - *A notified waiter is frozen or dead.* Another one is woken with it; the rules remove its
//!   entry.
//! - *The waking client dies first, or may not end another user's sleep.* The first waiters compare
//!   the counter every second or more often, and all others ask again every few seconds.
//! - *The predecessor has no chain lock yet, or its session is over.* The waiter polls ten times a
//!   second until it has another predecessor.
//! - *Two waiters wait for each other after reading different orders.* The server reports the
//!   deadlock to one of them.
//! - *A sleep is ended that is over already.* The server forgets the kill with the next statement,
//!   or ends that one, which is repeated.
//! - *The server, or a proxy before it, has no `GET_LOCK` for all clients.* Every waiter polls.
//!
//! If the server ends one of several statements in a request, the session drops the others, and the
//! client waits for their answers: so a client with a sleep lock sends one statement at a time.
//!
//! dlock does not use `SLEEP`: ending two of them at once stops a MariaDB's `KILL` for two seconds.

use std::time::Duration;

use super::{
    connection::{Answer, Connection},
    failure,
    names::Tables,
    statement::Value,
};
use crate::{
    backends::sql::{Fields, NEAR, pause},
    lock::{Result, Wake, document::Document, random},
};

/// The interval at which a waiter without a chain lock to wait for polls, plus jitter; a tenth of
/// that at first.
const BRIEFLY: Duration = Duration::from_millis(50);
/// The interval at which the first waiters poll.
const LOOK: Duration = Duration::from_millis(250);
/// The number of first waiters that poll: as many as are woken at a time.
const LOOKING: u32 = 2;
/// The interval at which the waiters behind the first ones poll.
const LOOK_NOW_AND_THEN: Duration = Duration::from_secs(1);

/// The answer to a waiter's request for a lock in the document.
#[derive(Debug)]
pub(super) struct LastAnswer {
    /// The wake-up counter at that time.
    pub wake_ups: i64,
    /// The waiter's position.
    pub position: Option<u32>,
    /// The holder is another program's and counts no wake-ups.
    pub foreign: bool,
    /// The `GET_LOCK` names of the predecessors, as SQL; the first one that is taken counts.
    pub predecessors: Vec<String>,
}

/// Returns the `GET_LOCK` names of the predecessors of this hold in a row.
pub(super) fn predecessors(
    tables: &Tables,
    name: &str,
    hold: &str,
    document: Option<&str>,
) -> Vec<String> {
    // The document was read before, so that it can be read.
    let document = Document::read(document).unwrap_or_default();
    let chain_locks = document
        .blocking_holds(hold)
        .into_iter()
        .map(|other| tables.chain_lock(name, other));
    // An exclusive holder has the advisory lock, and a chain lock if it waited.
    let advisory = document
        .queue()
        .first()
        .is_none_or(|first| first.hold == hold)
        && document.exclusive_owner().is_some();
    chain_locks
        .chain(advisory.then(|| tables.advisory_lock(name)))
        .collect()
}

/// Returns the SQL that ends the sleep of the waiter for this hold, if something was written. The
/// SQL fails if the waiter does not sleep or may not be woken: nothing may come after it. It is one
/// request, so that it hardly ever hits a waiter that is awake already.
pub(super) fn wake(tables: &Tables, name: &str, hold: &str) -> String {
    format!(
        "SET @dlock_asleep = IF(@dlock_written > 0, IS_USED_LOCK({}), NULL);\nKILL QUERY @dlock_asleep;\n",
        tables.sleep_lock(name, hold)
    )
}

/// Sleeps in the server until the wake-up counter changes. Returns `None` if the server, or a proxy
/// before it, has no `GET_LOCK`.
pub(super) async fn await_wake_up(
    session: &mut Connection,
    tables: &Tables,
    (name, hold): (&str, &str),
    last: &LastAnswer,
    at_most: Duration,
) -> Result<Option<Wake>> {
    if session.advisory_locks.iter().any(|held| held == name) {
        // A waiter for this hold would wait for nothing.
        session
            .ask(&format!("DO RELEASE_LOCK({})", tables.advisory_lock(name)))
            .await?;
        session.advisory_locks.retain(|held| held != name);
    }
    let slice = match last.position {
        Some(..=LOOKING) => LOOK,
        Some(..=NEAR) => LOOK_NOW_AND_THEN,
        _ => at_most,
    };
    let (chain_lock, sleep_lock) = (tables.chain_lock(name, hold), tables.sleep_lock(name, hold));
    let lock = format!("SELECT GET_LOCK({sleep_lock}, 0)");
    let mut first = lock.clone();
    if !session.chain_locks.contains(&chain_lock) {
        first = format!("SELECT GET_LOCK({chain_lock}, 0), GET_LOCK({sleep_lock}, 0)");
        session.chain_locks.push(chain_lock);
    }
    let (mut rest, mut briefly) = (at_most, BRIEFLY / 10);
    while !rest.is_zero() {
        let mut length = rest.min(slice);
        if !session.server.mariadb {
            // MySQL waits for whole seconds.
            length = Duration::from_secs(rest.min(slice.max(LOOK_NOW_AND_THEN)).as_secs());
        }
        // One statement in a request: the server silently drops the rest of a request when it ends
        // a statement of it.
        let mut answers = session
            .try_ask(&std::mem::replace(&mut first, lock.clone()))
            .await?;
        if answers.server_error.is_none() {
            answers = session.try_ask(&sleep(tables, name, last, length)).await?;
        }
        let wake_up = unlock(&sleep_lock, last);
        if session.try_ask(&wake_up).await?.server_error.is_some() {
            session.ask(&wake_up).await?;
        }
        let slept = match answers.server_error.map(|denial| denial.number) {
            None => slept(&answers.answers)?,
            Some(failure::INTERRUPTED | failure::TOO_LONG | failure::TOO_LONG_FOR_MYSQL) => {
                Slept::Woken
            }
            Some(failure::DEADLOCK | failure::GATE_DEADLOCK) => Slept::Not,
            Some(_) => return Ok(None),
        };
        match slept {
            Slept::Whole if !length.is_zero() => rest = rest.saturating_sub(length),
            Slept::Whole | Slept::Not => {
                let length = (briefly + Duration::from_micros(random() % 5000)).min(rest);
                briefly = (briefly * 2).min(BRIEFLY);
                rest = rest.saturating_sub(length);
                pause(length).await;
            }
            Slept::Woken => return Ok(Some(Wake::Changed)),
        }
    }
    Ok(Some(Wake::TimedOut))
}

/// Returns the SQL that blocks on the first lock that another session has, while the wake-up
/// counter is the same.
fn sleep(tables: &Tables, name: &str, last: &LastAnswer, length: Duration) -> String {
    let block = last.predecessors.iter().rev().fold("2".to_owned(), |or, lock| {
        format!(
            "IF(COALESCE(IS_USED_LOCK({lock}), CONNECTION_ID()) <> CONNECTION_ID(), GET_LOCK({lock}, {:.3}), {or})",
            length.as_secs_f64()
        )
    });
    let held = if last.foreign {
        "AND lock_until > UTC_TIMESTAMP(6)"
    } else {
        ""
    };
    let values = [
        ("name", Value::Bytes(name)),
        ("bell", Value::Int(last.wake_ups)),
        ("block", Value::Sql(&block)),
        ("held", Value::Sql(held)),
    ];
    tables.fill(
        "SELECT :block FROM :table WHERE name = :name AND bell = :bell :held",
        &values,
    )
}

/// Returns the SQL that unlocks everything after a sleep.
fn unlock(sleep_lock: &str, last: &LastAnswer) -> String {
    let locks = last
        .predecessors
        .iter()
        .map(String::as_str)
        .chain([sleep_lock])
        .map(|lock| format!("RELEASE_LOCK({lock})"));
    format!("SELECT {}", locks.collect::<Vec<_>>().join(", "))
}

/// The reason why a sleep ended.
enum Slept {
    /// The time was over.
    Whole,
    /// There was no predecessor to wait for.
    Not,
    /// Another client ended the sleep or is gone, or the wake-up counter changed before.
    Woken,
}

fn slept(answers: &[Answer]) -> Result<Slept> {
    let Some(row) = answers.iter().find_map(|answer| answer.rows.first()) else {
        return Ok(Slept::Woken);
    };
    Ok(match Fields::of(row).int_or_null()? {
        Some(0) => Slept::Whole,
        Some(2) => Slept::Not,
        _ => Slept::Woken,
    })
}
