//! Waits for a row without polling it.
//!
//! The row is the authority; an advisory lock only picks the one waiter that watches the row. That
//! waiter listens for the notification that each release sends, and its core's timer covers holders
//! that vanish. All others are blocked on the advisory lock in the server, so that a release wakes
//! one session, regardless of the number of waiters.
//!
//! A fair or shared waiter ([`crate::lock::document`]) listens on a channel of its own, and is
//! notified by the step that offers it the lock. Unfair exclusive waiters always wait for the
//! advisory lock: the first of them represents all of them.
//!
//! A waiter that is frozen with the advisory lock delays the others' wake-up but does not block the
//! lock: each waiter is blocked no longer than its core lets it wait, and then tries the row.

use std::{pin::pin, time::Duration};

use super::{
    Postgres, checks,
    connection::{CLIENT_CHECK, PostgresSession},
    failure,
    statement::Value,
};
use crate::{
    backends::sql::{Client, Session as _, pause},
    lock::{Key, Notice, Result, Wake},
};

/// The longest time that a statement blocks: its snapshot keeps the server from vacuuming.
const BLOCKED: Duration = Duration::from_secs(60);
/// The polling interval where no notification can arrive. Jitter shortens it by up to a quarter.
const POLL: Duration = Duration::from_millis(250);

/// The state of a session's wait.
#[derive(Default)]
pub(super) struct AdvisoryWait {
    /// The lock that was found busy over this session, so that waiting for its release misses
    /// nothing.
    pub asked: Option<Key>,
    /// The holder announces no release.
    pub foreign: bool,
    /// The channel of the request, if it waits in the document, and how many wake-ups it had there.
    pub own: Option<(String, u64)>,
    /// The request's channel to which this session listens.
    listens: Option<String>,
    /// The lock whose advisory lock this session has, and to whose releases it listens.
    kept: Option<Key>,
    /// Whether a pooler between dlock and the server reassigns sessions per transaction, so that no
    /// waiter can block or listen.
    pooled: Option<bool>,
    reported: bool,
}

impl AdvisoryWait {
    pub(super) fn is_pooled(&self) -> bool {
        self.pooled == Some(true)
    }

    pub(super) fn is_kept(&self) -> bool {
        self.kept.is_some()
    }

    /// Notes a lock to wait for.
    pub(super) fn found_busy(&mut self, key: &Key, foreign: bool) {
        (self.asked, self.foreign, self.own) = (Some(key.clone()), foreign, None);
    }

    /// Notes that the grant released the advisory lock. The session may still listen, but hears
    /// only of its own release.
    pub(super) fn is_left(&mut self) {
        (self.asked, self.kept) = (None, None);
    }

    /// Returns the SQL that unlocks the advisory lock and stops listening.
    pub(super) fn leave(&mut self) -> &'static str {
        self.asked = None;
        match (self.kept.take(), self.listens.take()) {
            (Some(_), _) => "UNLISTEN *; SELECT pg_advisory_unlock_all();",
            (None, Some(_)) => "UNLISTEN *;",
            (None, None) => "",
        }
    }

    /// Returns the notice about a pooler, once.
    pub(super) fn notice(&mut self) -> Option<Notice> {
        (self.is_pooled() && !std::mem::replace(&mut self.reported, true)).then(|| Notice {
            warning: false,
            text: "a pooler shares its sessions among clients, so that the lock is looked at four times a second while it is waited for"
                .into(),
            hint: Some("name the server itself in the URL, or a pool in session mode".into()),
        })
    }

    /// Takes the client's session out. A new session has no advisory lock.
    pub(super) async fn take_session(
        &mut self,
        client: &mut Client<Postgres>,
    ) -> Result<PostgresSession> {
        if !client
            .session
            .as_ref()
            .is_some_and(PostgresSession::is_open)
        {
            *self = Self::default();
        }
        client.take().await
    }

    /// Waits for a release, or for the next time to poll the row.
    pub(super) async fn await_change(
        &mut self,
        client: &mut Client<Postgres>,
        key: &Key,
        name: &str,
        at_most: Duration,
    ) -> Result<Wake> {
        // A release before this session asked would go unnoticed: ask first, then wait.
        if self.asked.as_ref() != Some(key)
            || !client
                .session
                .as_ref()
                .is_some_and(PostgresSession::is_open)
        {
            return Ok(Wake::Changed);
        }
        self.listen(client, key, name, at_most).await
    }

    async fn listen(
        &mut self,
        client: &mut Client<Postgres>,
        key: &Key,
        name: &str,
        at_most: Duration,
    ) -> Result<Wake> {
        let end = pin!(pause(at_most));
        if self.pooled.is_none() {
            let mut session = self.take_session(client).await?;
            let pooled = checks::is_pooled(&mut session, None, &client.options).await?;
            client.session = Some(session);
            self.pooled = Some(pooled);
        }
        if self.is_pooled() {
            // Neither an advisory lock nor a notification would reach this client, or a later
            // client would inherit them.
            let spread = Duration::from_millis(crate::lock::random() % 63);
            return Ok(tokio::select! {
                () = end => Wake::TimedOut,
                () = pause(POLL.saturating_sub(spread)) => Wake::Changed,
            });
        }
        if let Some((channel, notified)) = self.own.clone() {
            if self.listens.as_ref() != Some(&channel) {
                let mut session = self.take_session(client).await?;
                let unlock = if self.kept.take().is_some() {
                    "SELECT pg_advisory_unlock_all();"
                } else {
                    ""
                };
                // Listen first, then check whether a wake-up came in between.
                let look = format!(
                    "BEGIN; {unlock} UNLISTEN *; LISTEN {channel}; COMMIT; SELECT 1 FROM {{table}} WHERE name = $1 AND coalesce((document::json->>'n')::bigint, 0) = $2 AND document IS NOT NULL"
                );
                let same = session
                    .query(
                        &client.tables.fill(&look),
                        &[
                            Value::Text(name),
                            Value::Int(i64::try_from(notified).unwrap_or(i64::MAX)),
                        ],
                    )
                    .await?;
                client.session = Some(session);
                self.listens = Some(channel);
                if same.is_empty() {
                    return Ok(Wake::Changed);
                }
            }
        } else if self.kept.as_ref() != Some(key) {
            let mut session = self.take_session(client).await?;
            if self.kept.take().is_some() {
                session.run("SELECT pg_advisory_unlock_all()").await?;
            }
            let number = client.tables.advisory_lock(name);
            // The server ends the statement. If its answer is late because the machine is busy,
            // dropping the session would make the machine busier: every waiter would log in again.
            let queue_lock = client.tables.queue_lock(name, session.pid());
            let wait = queued(
                queue_lock,
                &format!("PERFORM pg_advisory_lock({number});"),
                at_most.min(BLOCKED),
                session.version,
            );
            let got = match session
                .run(&format!("{wait} SELECT pg_try_advisory_lock({number})"))
                .await
            {
                Ok(rows) => rows.first().is_some_and(|row| row.at(0) == "t"),
                Err(error) if failure::is_cancelled(&error) => {
                    session.run("SELECT pg_advisory_unlock_all()").await?;
                    false
                }
                Err(error) => return Err(error),
            };
            if !got {
                client.session = Some(session);
                return Ok(Wake::TimedOut);
            }
            // Listen first, then read the row: no release in between is missed.
            let look = format!(
                "BEGIN; UNLISTEN *; LISTEN {}; COMMIT; SELECT 1 FROM {{table}} AS l WHERE name = $1 AND NOT {{free}}",
                client.tables.channel(name)
            );
            let held = session
                .query(&client.tables.fill(&look), &[Value::Text(name)])
                .await?;
            client.session = Some(session);
            (self.kept, self.listens) = (Some(key.clone()), None);
            if held.is_empty() {
                return Ok(Wake::Changed);
            }
        }
        let Some(session) = &client.session else {
            return Ok(Wake::Changed);
        };
        let unasked = session.unasked();
        tokio::select! {
            () = unasked.notified.notified() => {}
            () = unasked.ended() => client.session = None,
            () = end => return Ok(Wake::TimedOut),
        }
        Ok(Wake::Changed)
    }
}

/// Returns statements that block for a queue's lock first and then in `what`, for at most `limit`
/// in all, and unlock the queue's lock at their end. Run them in one transaction. A statement fails
/// as cancelled if its time is over in the instant in which its wait ends, and if both limits end
/// at once: only one of them is caught.
pub(super) fn queued(queue_lock: i64, what: &str, limit: Duration, version: u32) -> String {
    bounded(
        &block(
            &format!("PERFORM pg_advisory_xact_lock({queue_lock}); {what}"),
            limit,
            version,
        ),
        limit,
    )
}

/// As [`queued`], for a transaction that goes on after the statements: the session itself has the
/// queue's lock while it blocks. After a failure, give back all that the session has.
pub(super) fn queued_for_row(queue_lock: i64, what: &str, limit: Duration, version: u32) -> String {
    let blocked = block(
        &format!("PERFORM pg_advisory_lock({queue_lock}); {what}"),
        limit,
        version,
    );
    bounded(
        &format!("{blocked}; DO $$BEGIN PERFORM pg_advisory_unlock_all(); END$$"),
        limit,
    )
}

/// Limits both waits together, since the second wait begins anew. Resets all limits for a
/// transaction that goes on.
fn bounded(blocked: &str, limit: Duration) -> String {
    let ms = limit.as_millis().max(1);
    format!(
        "SET LOCAL statement_timeout = '{ms}ms'; {blocked}; SET LOCAL statement_timeout = DEFAULT; SET LOCAL lock_timeout = DEFAULT;"
    )
}

/// Returns statements of which the last blocks, for at most `limit`. The end of the limit is no
/// error in the server's log.
fn block(what: &str, limit: Duration, version: u32) -> String {
    // The server checks whether this client is still connected, if it can and if the setting
    // precedes the statement.
    let look = if version >= CLIENT_CHECK {
        "DO $$BEGIN PERFORM set_config('client_connection_check_interval', '500ms', true); EXCEPTION WHEN OTHERS THEN NULL; END$$;"
    } else {
        ""
    };
    let ms = limit.as_millis().max(1);
    format!(
        "{look} DO $$BEGIN PERFORM set_config('lock_timeout', '{ms}ms', true); {what} EXCEPTION WHEN lock_not_available OR query_canceled THEN NULL; END$$"
    )
}
