//! Wakes waiters in the order of the lock's row, and only the waiters that can proceed.
//!
//! A waiter sleeps in the server, blocked on its predecessor's rope. A rope is a `GET_LOCK`. A waiter keeps its rope until its turn is
//! over or the waiter is gone. The first waiter blocks on the holder's rope or gate. So the end of a turn wakes only the next waiter,
//! regardless of the queue's length.
//!
//! Where the rules let other waiters proceed as well, as readers and permits do, the client that changes the row counts up its bell in the
//! same statement. Then the client ends the sleep of the waiters that the rules name, at most a few. A sleeper is known by its bed, a
//! `GET_LOCK` for the time of its sleep. Once a sleeper has its bed, it compares the bell with the value read from the row: no wake-up
//! is missed.
//!
//! The row decides; all this only wakes. Worst cases: a waiter is frozen or dead (another one is woken with it; its place is another matter,
//! for the rules); the waking client dies before it did, or may not end another user's sleep (the first ones look at the bell every second or
//! more often, and all others ask again every few seconds); whom it waits for has no rope yet, or no session any more (it looks ten times a second
//! until that is another one); two wait for each other, having been told different orders (the server tells one of them); a sleep is ended
//! that is over already (the server forgets that with the next question, or ends that one, which is asked again); a server has no
//! `GET_LOCK` for all clients, or a proxy before it (everybody looks after pauses).
//!
//! If the server ends one of several statements in a request, the session drops the others, and the client waits for their answers: so
//! a client with a bed sends one statement at a time.
//!
//! dlock does not use `SLEEP`: ending two of them at once stops a MariaDB's `KILL` for two seconds.

use std::time::Duration;

use super::{connection::Answer, failure, lease::LeaseStore, names::Tables, statement::Value};
use crate::{
    backends::sql::{Fields, NEAR, pause},
    lock::{Result, Wake, document::Document, random},
};

/// The interval at which a waiter without a rope to wait for polls, plus up to as much jitter; a tenth of that at first.
const BRIEFLY: Duration = Duration::from_millis(50);
/// The interval at which the first waiters poll.
const LOOK: Duration = Duration::from_millis(250);
/// The number of first waiters that poll: as many as are woken at a time.
const LOOKING: u32 = 2;
/// The interval at which the waiters behind the first ones poll.
const LOOK_NOW_AND_THEN: Duration = Duration::from_secs(1);

/// The answer to a waiter's request for a lock in the document.
#[derive(Clone, Debug)]
pub(super) struct Told {
    /// The value of the bell at that time.
    pub bell: i64,
    /// The waiter's position.
    pub place: Option<u32>,
    /// The holder rings no bell.
    pub foreign: bool,
    /// The `GET_LOCK` names of the predecessors, as SQL; the first one that is taken counts.
    pub behind: Vec<String>,
}

/// Returns the `GET_LOCK` names of the predecessors of this hold in a row.
pub(super) fn behind(tables: &Tables, name: &str, hold: &str, document: Option<&str>) -> Vec<String> {
    // What can't be read was read before.
    let document = Document::read(document).unwrap_or_default();
    let ropes = document.behind_whom(hold).into_iter().map(|other| tables.rope(name, other));
    // A holder that has the lock alone has its gate, and a rope if it waited.
    let gate = document.queue().first().is_none_or(|first| first.hold == hold) && document.exclusive_owner().is_some();
    ropes.chain(gate.then(|| tables.gate(name))).collect()
}

/// Ends the sleep of the waiter for this hold, if something was written, as SQL. It fails where no one sleeps, or may not be woken: nothing
/// may come after it. All of it is one question, so that a waiter that is awake already is hardly ever hit.
pub(super) fn ring(tables: &Tables, name: &str, hold: &str) -> String {
    format!("SET @dlock_asleep = IF(@dlock_written > 0, IS_USED_LOCK({}), NULL);\nKILL QUERY @dlock_asleep;\n", tables.bed(name, hold))
}

impl LeaseStore {
    /// Sleeps until the bell is rung, in the server.
    pub(super) async fn await_bell(&mut self, name: &str, hold: &str, told: Told, at_most: Duration) -> Result<Wake> {
        let mut session = self.client.take().await?;
        if session.gates.iter().any(|gate| gate == name) {
            // A waiter for this hold would wait for nothing.
            session.ask(&format!("DO RELEASE_LOCK({})", self.client.tables.gate(name))).await?;
            session.gates.retain(|gate| gate != name);
        }
        let slice = match told.place {
            Some(..=LOOKING) => LOOK,
            Some(..=NEAR) => LOOK_NOW_AND_THEN,
            _ => at_most,
        };
        let (rope, bed) = (self.client.tables.rope(name, hold), self.client.tables.bed(name, hold));
        let lie_down = format!("SELECT GET_LOCK({bed}, 0)");
        let mut first = lie_down.clone();
        if !session.ropes.contains(&rope) {
            first = format!("SELECT GET_LOCK({rope}, 0), GET_LOCK({bed}, 0)");
            session.ropes.push(rope);
        }
        let (mut rest, mut briefly) = (at_most, BRIEFLY / 10);
        while !rest.is_zero() {
            let mut length = rest.min(slice);
            if !session.server.mariadb {
                // MySQL waits for whole seconds.
                length = Duration::from_secs(rest.min(slice.max(LOOK_NOW_AND_THEN)).as_secs());
            }
            // One statement to a question: where several are one, the server drops what is left of them when it is told to end one, without
            // a word.
            let mut answers = session.try_ask(&std::mem::replace(&mut first, lie_down.clone())).await?;
            if answers.server_error.is_none() {
                answers = session.try_ask(&self.sleep(name, &told, length)).await?;
            }
            let rise = rise(&bed, &told);
            if session.try_ask(&rise).await?.server_error.is_some() {
                session.ask(&rise).await?;
            }
            let slept = match answers.server_error.map(|denial| denial.number) {
                None => slept(&answers.answers)?,
                Some(failure::INTERRUPTED | failure::TOO_LONG | failure::TOO_LONG_FOR_MYSQL) => Slept::Woken,
                Some(failure::DEADLOCK | failure::GATE_DEADLOCK) => Slept::Not,
                Some(_) => {
                    self.gates_fail = true;
                    Slept::Woken
                }
            };
            match slept {
                Slept::Whole if !length.is_zero() => rest = rest.saturating_sub(length),
                Slept::Whole | Slept::Not => {
                    let length = (briefly + Duration::from_micros(random() % 5000)).min(rest);
                    briefly = (briefly * 2).min(BRIEFLY);
                    rest = rest.saturating_sub(length);
                    pause(length).await;
                }
                Slept::Woken => {
                    self.client.session = Some(session);
                    return Ok(Wake::Changed);
                }
            }
        }
        self.client.session = Some(session);
        Ok(Wake::TimedOut)
    }

    /// Blocks for so long on the first that another session has, while the bell says the same, as SQL.
    fn sleep(&self, name: &str, told: &Told, length: Duration) -> String {
        let block = told.behind.iter().rev().fold("2".to_owned(), |or, lock| {
            format!(
                "IF(COALESCE(IS_USED_LOCK({lock}), CONNECTION_ID()) <> CONNECTION_ID(), GET_LOCK({lock}, {:.3}), {or})",
                length.as_secs_f64()
            )
        });
        let held = if told.foreign { "AND lock_until > UTC_TIMESTAMP(6)" } else { "" };
        let values =
            [("name", Value::Bytes(name)), ("bell", Value::Int(told.bell)), ("block", Value::Sql(&block)), ("held", Value::Sql(held))];
        self.client.tables.fill("SELECT :block FROM :table WHERE name = :name AND bell = :bell :held", &values)
    }
}

/// What comes after sleep, as SQL.
fn rise(bed: &str, told: &Told) -> String {
    let locks = told.behind.iter().map(String::as_str).chain([bed]).map(|lock| format!("RELEASE_LOCK({lock})"));
    format!("SELECT {}", locks.collect::<Vec<_>>().join(", "))
}

/// The reason why a sleep ended.
enum Slept {
    /// The time was over.
    Whole,
    /// There was no predecessor to wait for.
    Not,
    /// Another client ended the sleep or is gone, or the bell was rung before.
    Woken,
}

fn slept(answers: &[Answer]) -> Result<Slept> {
    let Some(row) = answers.iter().find_map(|answer| answer.rows.first()) else { return Ok(Slept::Woken) };
    Ok(match Fields::of(row).int_or_null()? {
        Some(0) => Slept::Whole,
        Some(2) => Slept::Not,
        _ => Slept::Woken,
    })
}
