//! Waits for a row without polling it.
//!
//! The row is the authority; an advisory lock of the server only picks the client that watches the
//! row. A running holder has the advisory lock too, and unlocks it after it has freed the row. The
//! waiters are blocked on it in the server, so that a release wakes one session, regardless of the
//! number of waiters.
//!
//! A client with the advisory lock but without the row polls the row every 50 to 250 ms: the holder
//! may be a detached hold, a ShedLock node, or a dlock whose session was ended. A client that is
//! frozen with the advisory lock delays the wake-up of the others but does not block the lock: each
//! waiter is blocked no longer than the core lets it wait (five seconds, or to the lease's end),
//! and then tries the row. The server ends a frozen session after two leases.

use std::time::Duration;

use super::{failure, lease::MysqlLeaseStore};
use crate::{
    backends::sql::{Fields, pause},
    lock::{Result, Wake, random},
};

/// The shortest interval at which the advisory lock's holder polls the row. Jitter adds up to 200
/// ms.
const LOOK: Duration = Duration::from_millis(50);

impl MysqlLeaseStore {
    /// Waits for a release, or for the next time to poll the row.
    pub(super) async fn await_change(&mut self, name: &str, at_most: Duration) -> Result<Wake> {
        let mut session = self.client.take().await?;
        if self.locks_fail || !session.server.has_advisory_locks() {
            // The session is idle meanwhile, and a dropped wait must not lose it.
            self.client.session = Some(session);
            pause(at_most).await;
            return Ok(Wake::TimedOut);
        }
        if session.advisory_locks.iter().any(|held| held == name) {
            self.client.session = Some(session);
            let look = LOOK + Duration::from_millis(random() % 200);
            pause(at_most.min(look)).await;
            return Ok(if at_most < look {
                Wake::TimedOut
            } else {
                Wake::Changed
            });
        }
        let (blocked, rest) = if session.server.mariadb {
            (format!("{:.3}", at_most.as_secs_f64()), Duration::ZERO)
        } else {
            // MySQL rounds to whole seconds.
            (
                at_most.as_secs().to_string(),
                Duration::from_nanos(at_most.subsec_nanos().into()),
            )
        };
        let lock = self.client.tables.advisory_lock(name);
        for (seconds, first) in [(&*blocked, Duration::ZERO), ("0", rest)] {
            if seconds == "0" && !first.is_zero() {
                self.client.session = Some(session);
                pause(first).await;
                session = self.client.take().await?;
            }
            let answers = session
                .try_ask(&format!("SELECT GET_LOCK({lock}, {seconds})"))
                .await?;
            match answers.server_error {
                None => {}
                // A wake-up for a sleep in a lock's queue that was over by then.
                Some(denial) if denial.number == failure::INTERRUPTED => {
                    self.client.session = Some(session);
                    return Ok(Wake::Changed);
                }
                Some(_) => {
                    self.locks_fail = true;
                    break;
                }
            }
            let row = answers
                .answers
                .first()
                .and_then(|answer| answer.rows.first());
            let got = row
                .map(|row| Fields::of(row).int_or_null())
                .transpose()?
                .flatten();
            if got == Some(1) {
                session.advisory_locks.push(name.to_owned());
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
