//! Waiting in a lock's crowd, where the rules say who goes next and others are not to be woken.
//!
//! Who waits sleeps in the server, and has a `GET_LOCK` of its hold meanwhile, the rope, that says which session it is. Whoever changes the
//! row so that others may go counts up the bell in it, in the same statement, and then ends the sleep of those whom the rules name: at
//! most a few, however many wait. The sleep begins by looking at the bell, which must be as it was when the row was asked, once the rope
//! is there: nothing is missed.
//!
//! The row decides; the bell only wakes. Worst cases: a waiter is frozen or dead (another one is woken with it; its place is another matter,
//! for the rules); whoever woke dies before it did, or may not end another user's sleep (the first two look at the bell four times a second, those who
//! come next each second, and all others ask again every few seconds); a sleep is ended that is over already (the server forgets that with the next question, or ends
//! that one, which is asked again); a server has no `GET_LOCK` for all clients, or a proxy before it (everybody looks after pauses).

use std::time::Duration;

use super::{connection::Answer, failure, lease::Lease, names::Tables, reading::Fields, statement::Value};
use crate::{
    backends::sql::NEAR,
    lock::{Result, Wake},
};

/// How often the first ones look by themselves.
const LOOK: Duration = Duration::from_millis(250);
/// How many of them do: as many as are woken at a time.
const LOOKING: u32 = 2;
/// How often those look who come next.
const LOOK_NOW_AND_THEN: Duration = Duration::from_secs(1);

/// What a waiter of a crowd was told when it asked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Told {
    /// What the bell said then.
    pub bell: i64,
    /// Its place.
    pub place: Option<u32>,
    /// Who has the lock rings no bell.
    pub foreign: bool,
}

/// Ends the sleep of whoever waits for this hold, if something was written, as SQL. It fails where nobody sleeps, or may not be woken: nothing
/// may come after it. All of it is one question, so that who is awake already is hardly ever hit.
pub(super) fn ring(tables: &Tables, name: &str, hold: &str) -> String {
    format!("SET @dlock_asleep = IF(@dlock_written > 0, IS_USED_LOCK({}), NULL);\nKILL QUERY @dlock_asleep;\n", tables.rope(name, hold))
}

impl Lease {
    /// Sleeps until the bell is rung, in the server.
    pub(super) async fn await_bell(&mut self, name: &str, hold: &str, told: Told, at_most: Duration) -> Result<Wake> {
        let mut session = self.take_session().await?;
        if session.gates.iter().any(|gate| gate == name) {
            // Who waits for it would wait for nothing.
            session.ask(&format!("DO RELEASE_LOCK({})", self.tables.gate(name))).await?;
            session.gates.retain(|gate| gate != name);
        }
        let slice = match told.place {
            Some(..=LOOKING) => LOOK,
            Some(..=NEAR) => LOOK_NOW_AND_THEN,
            _ => at_most,
        };
        let (mut rest, rope) = (at_most, self.tables.rope(name, hold));
        while !rest.is_zero() {
            let length = rest.min(slice).max(Duration::from_millis(1));
            let values = [("name", Value::Bytes(name)), ("bell", Value::Int(told.bell))];
            let held = if told.foreign { "AND lock_until > UTC_TIMESTAMP(6)" } else { "" };
            let sleep = format!("SELECT SLEEP({:.3}) FROM :table WHERE name = :name AND bell = :bell {held};", length.as_secs_f64());
            let sleep = format!("DO GET_LOCK({rope}, 0);\n{}DO RELEASE_LOCK({rope});\n", self.tables.fill(&sleep, &values));
            let answers = session.try_ask(&sleep).await?;
            let slept = match answers.refusal.map(|refusal| refusal.number) {
                None => answers.answers.get(1).map(is_whole).transpose()? == Some(true),
                Some(failure::INTERRUPTED | failure::TOO_LONG | failure::TOO_LONG_FOR_MYSQL) => {
                    session.ask(&format!("DO RELEASE_LOCK({rope})")).await?;
                    false
                }
                Some(_) => {
                    self.gates_fail = true;
                    false
                }
            };
            if !slept {
                self.session = Some(session);
                return Ok(Wake::Changed);
            }
            rest = rest.saturating_sub(length);
        }
        self.session = Some(session);
        Ok(Wake::TimedOut)
    }
}

/// Whether a sleep was not ended before its time.
fn is_whole(answer: &Answer) -> Result<bool> {
    Ok(match answer.rows.first() {
        Some(row) => Fields::of(row).int_or_null()? == Some(0),
        None => false,
    })
}
