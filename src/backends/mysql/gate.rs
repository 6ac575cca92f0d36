//! Waiting for a row without polling it.
//!
//! The row is the authority; an advisory lock of the server, the gate, only picks the one who watches it. A running
//! holder has the gate as well, and lets the next one through after it has freed the row: the waiters are blocked on it
//! in the server, so that a release wakes one session however many wait.
//!
//! A client with the gate but without the row looks at the row every 50 to 250 ms: its holder may be one that runs nowhere
//! (`acquire`), a ShedLock node, or a dlock whose session was ended. One that is frozen with the gate keeps the others from being
//! woken, not from the lock: none is blocked for longer than his core lets him wait (five seconds, or to the lease's
//! end), and then tries the row. The server ends a frozen session after two leases.

use std::time::Duration;

use super::{failure, lease::LeaseStore};
use crate::{
    backends::sql::{Fields, pause},
    lock::{Result, Wake, random},
};

/// The shortest interval at which the gate's holder polls the row; at most 200 ms more.
const LOOK: Duration = Duration::from_millis(50);

impl LeaseStore {
    /// A release wakes; so does each time that the row is to be looked at.
    pub(super) async fn await_change(&mut self, name: &str, at_most: Duration) -> Result<Wake> {
        let mut session = self.client.take().await?;
        if self.gates_fail || !session.server.has_gates() {
            // Nothing is asked of the session meanwhile, and a dropped wait must not cost it.
            self.client.session = Some(session);
            pause(at_most).await;
            return Ok(Wake::TimedOut);
        }
        if session.gates.iter().any(|gate| gate == name) {
            self.client.session = Some(session);
            let look = LOOK + Duration::from_millis(random() % 200);
            pause(at_most.min(look)).await;
            return Ok(if at_most < look { Wake::TimedOut } else { Wake::Changed });
        }
        let (blocked, rest) = if session.server.mariadb {
            (format!("{:.3}", at_most.as_secs_f64()), Duration::ZERO)
        } else {
            // MySQL rounds to whole seconds.
            (at_most.as_secs().to_string(), Duration::from_nanos(at_most.subsec_nanos().into()))
        };
        let gate = self.client.tables.gate(name);
        for (seconds, first) in [(&*blocked, Duration::ZERO), ("0", rest)] {
            if seconds == "0" && !first.is_zero() {
                self.client.session = Some(session);
                pause(first).await;
                session = self.client.take().await?;
            }
            let answers = session.try_ask(&format!("SELECT GET_LOCK({gate}, {seconds})")).await?;
            match answers.server_error {
                None => {}
                // Meant for a sleep in a lock's queue that was over by then.
                Some(denial) if denial.number == failure::INTERRUPTED => {
                    self.client.session = Some(session);
                    return Ok(Wake::Changed);
                }
                Some(_) => {
                    self.gates_fail = true;
                    break;
                }
            }
            let row = answers.answers.first().and_then(|answer| answer.rows.first());
            let got = row.map(|row| Fields::of(row).int_or_null()).transpose()?.flatten();
            if got == Some(1) {
                session.gates.push(name.to_owned());
                self.client.session = Some(session);
                return Ok(Wake::Changed);
            }
            if rest.is_zero() {
                break;
            }
        }
        self.client.session = Some(session);
        Ok(Wake::TimedOut)
    }
}
