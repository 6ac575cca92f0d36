//! Keeps a lock, and gives it back.

use std::time::Duration;

use super::{
    super::{
        checks::is_read_only, connection::Answers, failure, history, starts, statement::Value,
    },
    MysqlLock, ReadMark, first_row, read_mark,
};
use crate::{
    backends::sql::{SqlMode, fence_int, json},
    lock::{Fence, Intent, ReleaseInfo, Result, Token},
};

impl MysqlLock {
    /// Returns the server's time in µs if the session still has the lock, and the mark of a break.
    /// The statement keeps the session for its idle limit, or sets another one.
    pub(in crate::backends::mysql) async fn renew(
        &mut self,
        idle_limit: Option<Duration>,
        hold: (&Token, Fence),
        intent: Option<Intent>,
    ) -> Result<Option<(i64, ReadMark)>> {
        let first = idle_limit
            .map(|limit| self.set_idle_limit(limit))
            .unwrap_or_default();
        let (has, touch) = match self.mode {
            // A proxy may set up another session like the one that it lost.
            SqlMode::Row => (
                format!("CONNECTION_ID() = {}", self.own.number),
                String::new(),
            ),
            _ => (
                format!("IS_USED_LOCK({}) = CONNECTION_ID()", self.own.lock),
                self.touch(hold, self.idle_limit, intent),
            ),
        };
        let at = usize::from(!first.is_empty());
        let batch = format!(
            "{first}SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), @dlock = CONNECTION_ID() AND {has}, \
             @@global.read_only;\n{touch}"
        );
        let Answers {
            answers,
            server_error,
        } = self.session.try_ask(&batch).await?;
        match (answers.len() > at, server_error) {
            // The later statements are only for `inspect`.
            (true, _) => {
                let mut fields = first_row(&answers, at)?;
                let (now, has) = (fields.int()?, fields.int_or_null()? == Some(1));
                // Another server may serve the others by now, and its locks do not exclude this
                // one.
                if has && is_read_only(&fields.text()?) {
                    return Err(failure::read_only());
                }
                Ok(has.then(|| (now, read_mark(&answers, at + 1, intent))))
            }
            (false, Some(server_error)) => Err(failure::refused(&server_error, false)),
            (false, None) => Err(failure::unreadable()),
        }
    }

    /// Returns the SQL that reads the mark of a break, as the intent asks, and records that the
    /// hold was extended, for `inspect`.
    pub(in crate::backends::mysql) fn touch(
        &self,
        (token, fence): (&Token, Fence),
        length: Duration,
        intent: Option<Intent>,
    ) -> String {
        let ttl = i64::try_from(length.as_millis()).unwrap_or(i64::MAX);
        let root = token.hold_text();
        let values = [
            ("name", Value::Bytes(&self.name)),
            ("session", Value::Int(self.own.number)),
            ("root", Value::Text(&root)),
            ("ttl", Value::Int(ttl)),
            ("fence", Value::Int(fence_int(fence))),
            (
                "whatever",
                Value::Int((!matches!(intent, Some(Intent::Extend(_)))).into()),
            ),
        ];
        let fill = |template: &str| self.own.tables.fill(template, &values);
        let (see, read) = (
            include_str!("../sql/see_mark.sql"),
            include_str!("../sql/read_mark.sql"),
        );
        let mark = match intent {
            None | Some(Intent::Probe) => String::new(),
            Some(Intent::Extend(_)) => fill(read),
            Some(Intent::Drain) => fill(see) + &fill(read),
        };
        mark + &fill(if self.shared {
            include_str!("../sql/touch_reading.sql")
        } else {
            include_str!("../sql/touch_hold.sql")
        })
    }

    /// Gives back a lock that was not granted.
    pub(in crate::backends::mysql) async fn let_go(&mut self) -> Result<()> {
        if self.mode == SqlMode::Row {
            self.roll_back().await?;
            if !self.shared {
                return Ok(());
            }
        }
        self.has = false;
        self.session
            .ask(&format!("DO RELEASE_LOCK({})", self.own.lock))
            .await
            .map(|_| ())
    }

    /// Records how the hold ended, and gives back whatever the session has. Returns whether the
    /// session still had the lock.
    pub(in crate::backends::mysql) async fn give_back(
        &mut self,
        (token, fence): (&Token, Fence),
        info: &ReleaseInfo,
    ) -> Result<bool> {
        self.has = false;
        let own = format!(
            "@dlock = CONNECTION_ID() AND CONNECTION_ID() = {}",
            self.own.number
        );
        let (first, ours, free) = match self.mode {
            // In the transaction that has the lock, so that all changes become visible at once.
            SqlMode::Row if self.shared => (
                // Lock the record before reading it: two sessions that each wait for another record
                // would deadlock.
                "SELECT 1 FROM :readers WHERE name = :name AND root = :root FOR UPDATE;\n",
                own,
                format!("COMMIT; DO RELEASE_LOCK({});\n", self.own.lock),
            ),
            SqlMode::Row => ("", own, "COMMIT;\n".to_owned()),
            _ => (
                "START TRANSACTION;\n",
                format!("IS_USED_LOCK({}) = CONNECTION_ID()", self.own.lock),
                format!("COMMIT; DO RELEASE_LOCK({});\n", self.own.lock),
            ),
        };
        let root = token.hold_text();
        let how = info.end.as_ref().map(ToString::to_string);
        let became = starts::outcome(info.run_state);
        let outcome = json(info.outcome.as_ref())?;
        let values = [
            ("name", Value::Bytes(&self.name)),
            ("session", Value::Int(self.own.number)),
            ("root", Value::Text(&root)),
            ("ours", Value::Sql(&ours)),
            ("became", Value::Sql(&became)),
            ("how", Value::text_or_null(how.as_deref())),
            ("outcome", Value::text_or_null(outcome.as_deref())),
        ];
        let fill = |template: &str| self.own.tables.fill(template, &values);
        let (first, remember, end) = if self.shared {
            (
                fill(first),
                include_str!("../sql/remember_reading.sql"),
                include_str!("../sql/end_reading.sql"),
            )
        } else {
            (
                first.to_owned(),
                include_str!("../sql/remember_hold.sql"),
                include_str!("../sql/end_hold.sql"),
            )
        };
        let remember = how.as_ref().map(|_| fill(remember)).unwrap_or_default();
        let end = fill(end);
        // One release in four trims the history.
        let trim = if how.is_some() && fence.0.is_multiple_of(4) {
            history::trim(&self.own.tables, &self.name, "1")
        } else {
            String::new()
        };
        let began = 1 + usize::from(!first.is_empty());
        let freed = began + usize::from(!remember.is_empty()) + 1 + free.matches(';').count();
        let Answers {
            answers,
            server_error,
        } = self
            .session
            .try_ask(&format!(
                "SELECT {ours};\n{first}{remember}{end}{free}{trim}"
            ))
            .await?;
        match server_error {
            Some(server_error) if answers.is_empty() => {
                return Err(failure::refused(&server_error, false));
            }
            Some(server_error) if answers.len() < freed => {
                let rest = match server_error.number {
                    // The server rolled the transaction back.
                    failure::DEADLOCK => remember + &end,
                    // The history entry can't be written.
                    _ if answers.len() == began => end,
                    // The record can't be removed: the next holder waits a moment without need.
                    _ => String::new(),
                };
                if self
                    .session
                    .try_ask(&format!("{rest}{free}"))
                    .await?
                    .server_error
                    .is_some()
                {
                    self.session.ask(&free).await?;
                }
            }
            _ => {}
        }
        Ok(first_row(&answers, 0)?.int_or_null()? == Some(1))
    }
}
