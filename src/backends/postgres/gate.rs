//! Waiting for a row without polling it.
//!
//! The row is the authority; an advisory lock, the gate, only picks the one waiter that watches it. That waiter
//! listens for the notification that each release sends, and its core's timer covers holders that vanish. All others
//! are blocked on the gate in the server, so that a release wakes one session however many wait.
//!
//! A fair or shared waiter ([`crate::lock::document`]) listens on a channel of its own, and is notified by
//! the step that offers it the lock. Unfair exclusive waiters always wait at the gate: their head represents
//! all of them.
//!
//! A waiter that is frozen with the gate delays the others' wake-up but does not block the lock: each waiter is blocked no longer
//! than its core lets it wait, and then tries the row.

use std::{pin::pin, time::Duration};

use super::{
    checks,
    connection::{CLIENT_CHECK, PostgresSession},
    failure,
    lease::LeaseStore,
    statement::Value,
};
use crate::{
    backends::sql::{Session as _, pause},
    lock::{Key, Notice, Result, Wake},
};

/// The limit of a blocked statement: its snapshot keeps the server from vacuuming.
const BLOCKED: Duration = Duration::from_secs(60);
/// The polling interval where no notification can arrive, less up to a quarter.
const POLL: Duration = Duration::from_millis(250);

/// The state of a session's wait.
#[derive(Default)]
pub(super) struct Gate {
    /// The lock that was found busy over this session, so that waiting for its release misses nothing.
    pub asked: Option<Key>,
    /// The holder announces no release.
    pub foreign: bool,
    /// The channel of the request, if it waits in the document, and how many wake-ups it had there.
    pub own: Option<(String, u64)>,
    /// The channel of that kind to which this session listens.
    listens: Option<String>,
    /// The lock whose gate this session has, and to whose releases it listens.
    kept: Option<Key>,
    /// Whether a pooler between dlock and the server reassigns sessions per transaction, so that neither is possible.
    pooled: Option<bool>,
    told: bool,
}

impl Gate {
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

    /// Notes that the grant released the gate. The session may still listen, but hears only of its own release.
    pub(super) fn is_left(&mut self) {
        (self.asked, self.kept) = (None, None);
    }

    /// Returns the SQL that leaves the gate and stops listening.
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
        (self.is_pooled() && !std::mem::replace(&mut self.told, true)).then(|| Notice {
            warning: false,
            text: "a pooler shares its sessions among clients, so that the lock is looked at four times a second while it is waited for"
                .into(),
            hint: Some("name the server itself in the URL, or a pool in session mode".into()),
        })
    }
}

impl LeaseStore {
    pub(super) async fn await_change(&mut self, key: &Key, name: &str, at_most: Duration) -> Result<Wake> {
        // A release before this session asked would go unnoticed: ask first, then wait.
        if self.gate.asked.as_ref() != Some(key) || !self.client.session.as_ref().is_some_and(PostgresSession::is_open) {
            return Ok(Wake::Changed);
        }
        self.listen(key, name, at_most).await
    }

    async fn listen(&mut self, key: &Key, name: &str, at_most: Duration) -> Result<Wake> {
        let end = pin!(pause(at_most));
        if self.gate.pooled.is_none() {
            let mut session = self.take_session().await?;
            let pooled = checks::is_pooled(&mut session, &self.client.options).await?;
            self.client.session = Some(session);
            self.gate.pooled = Some(pooled);
        }
        if self.gate.is_pooled() {
            // Neither the gate nor a notification would reach this client, or a later one would inherit them.
            let spread = Duration::from_millis(crate::lock::random() % 63);
            return Ok(tokio::select! {
                () = end => Wake::TimedOut,
                () = pause(POLL.saturating_sub(spread)) => Wake::Changed,
            });
        }
        if let Some((channel, told)) = self.gate.own.clone() {
            if self.gate.listens.as_ref() != Some(&channel) {
                let mut session = self.take_session().await?;
                let unlock = if self.gate.kept.take().is_some() { "SELECT pg_advisory_unlock_all();" } else { "" };
                // Listen first, then look whether a wake-up came in between.
                let look = format!(
                    "BEGIN; {unlock} UNLISTEN *; LISTEN {channel}; COMMIT; SELECT 1 FROM {{table}} WHERE name = $1 AND coalesce((document::json->>'n')::bigint, 0) = $2 AND document IS NOT NULL"
                );
                let same = session
                    .query(&self.client.tables.fill(&look), &[Value::Text(name), Value::Int(i64::try_from(told).unwrap_or(i64::MAX))])
                    .await?;
                self.client.session = Some(session);
                self.gate.listens = Some(channel);
                if same.is_empty() {
                    return Ok(Wake::Changed);
                }
            }
        } else if self.gate.kept.as_ref() != Some(key) {
            let mut session = self.take_session().await?;
            if self.gate.kept.take().is_some() {
                session.run("SELECT pg_advisory_unlock_all()").await?;
            }
            let number = self.client.tables.gate(name);
            // The server ends it by itself. However late its answer comes on a machine that is busy, breaking the session off
            // would only make it busier: each of many would log in again.
            let line = self.client.tables.line(name, session.pid());
            let queued = stand_in(line, &format!("PERFORM pg_advisory_lock({number});"), at_most.min(BLOCKED), session.version);
            let got = match session.run(&format!("{queued} SELECT pg_try_advisory_lock({number})")).await {
                Ok(rows) => rows.first().is_some_and(|row| row.at(0) == "t"),
                Err(error) if failure::is_cancelled(&error) => {
                    session.run("SELECT pg_advisory_unlock_all()").await?;
                    false
                }
                Err(error) => return Err(error),
            };
            if !got {
                self.client.session = Some(session);
                return Ok(Wake::TimedOut);
            }
            // Listen first, then look: a release in between is heard.
            let look = format!(
                "BEGIN; UNLISTEN *; LISTEN {}; COMMIT; SELECT 1 FROM {{table}} AS l WHERE name = $1 AND NOT {{free}}",
                self.client.tables.channel(name)
            );
            let held = session.query(&self.client.tables.fill(&look), &[Value::Text(name)]).await?;
            self.client.session = Some(session);
            (self.gate.kept, self.gate.listens) = (Some(key.clone()), None);
            if held.is_empty() {
                return Ok(Wake::Changed);
            }
        }
        let Some(session) = &self.client.session else { return Ok(Wake::Changed) };
        let unasked = session.unasked();
        tokio::select! {
            () = unasked.rung.notified() => {}
            () = unasked.ended() => self.client.session = None,
            () = end => return Ok(Wake::TimedOut),
        }
        Ok(Wake::Changed)
    }
}

/// Statements that block in a line first and in `what` as its head, for at most `limit` in all, and leave the line when they are
/// over. Run them in one transaction. A statement that ran out in the instant in which the wait was over by itself fails as
/// cancelled, also where both limits were over at once: only one of them is caught.
pub(super) fn stand_in(line: i64, what: &str, limit: Duration, version: u32) -> String {
    bounded(&block(&format!("PERFORM pg_advisory_xact_lock({line}); {what}"), limit, version), limit)
}

/// As [`stand_in`], where the transaction goes on and must leave the line all the same: it is the session's for as long as that blocks. After
/// a failure, give back all that the session has.
pub(super) fn stand_and_leave(line: i64, what: &str, limit: Duration, version: u32) -> String {
    let blocked = block(&format!("PERFORM pg_advisory_lock({line}); {what}"), limit, version);
    bounded(&format!("{blocked}; DO $$BEGIN PERFORM pg_advisory_unlock_all(); END$$"), limit)
}

/// A waiter that becomes the head waits anew: one limit for each wait, and one for both. Neither is left to a transaction that goes on.
fn bounded(blocked: &str, limit: Duration) -> String {
    let ms = limit.as_millis().max(1);
    format!("SET LOCAL statement_timeout = '{ms}ms'; {blocked}; SET LOCAL statement_timeout = DEFAULT; SET LOCAL lock_timeout = DEFAULT;")
}

/// Statements of which the last blocks, for at most `limit`, without an error in the server's log when that is over.
fn block(what: &str, limit: Duration, version: u32) -> String {
    // Where the server can, it looks whether we are still there: if it was told before the statement began.
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
