//! Breaks a lock that a session has.

use super::{
    connection::{Answer, SessionId},
    failure,
    life::Life,
    readers::reads,
    sessions::MysqlSessions,
    statement::Value,
};
use crate::{
    backends::sql::{Fields, Session as _, SqlMode, fence_int, json},
    lock::{Break, Effect, Error, Fence, Key, Kind, Result},
};

/// A hold that was marked.
pub(super) struct Marked {
    /// The session that has it.
    session: i64,
    /// It was marked before.
    before: bool,
    /// The session over which the server named the holder's session.
    asked_over: SessionId,
}

impl MysqlSessions {
    /// Marks the hold with this fence, if a session has the lock by it.
    pub(super) async fn put_mark(
        &mut self,
        key: &Key,
        fence: Fence,
        mark: &Break,
    ) -> Result<Option<Marked>> {
        let name = self.name_of(key);
        let mark = json(Some(mark))?;
        let mut session = self.client.take().await?;
        // A row that readers can lock has no writer.
        let share = if session.server.mariadb {
            "LOCK IN SHARE MODE"
        } else {
            "FOR SHARE"
        };
        let (look, has, holds) = match self.client.mode() {
            SqlMode::Row => (
                format!(
                    "SELECT COUNT(*) INTO @dlock_free FROM :rows WHERE name = :name {share} SKIP LOCKED;\n"
                ),
                "1".to_owned(),
                "(SELECT name, fence, session FROM :sessions WHERE @dlock_free = 0 AND :lives \
                  UNION ALL SELECT r.name, r.fence, r.session FROM :readers AS r WHERE r.name = :name AND :reads)",
            ),
            _ => (
                "SET @dlock_free = NULL;\n".to_owned(),
                format!("IS_USED_LOCK({}) = s.session", self.lock_of(key)),
                ":sessions",
            ),
        };
        let reads = reads(&self.client.tables, &name);
        let (life, values) = (
            Life::of(&session.server),
            [("name", Value::Bytes(&name)), ("reads", Value::Sql(&reads))],
        );
        let holds = self
            .client
            .tables
            .fill(holds, &[&values[..], &life.values()].concat());
        let values = [
            ("name", Value::Bytes(&name)),
            ("fence", Value::Int(fence_int(fence))),
            ("mark", Value::text_or_null(mark.as_deref())),
            ("has", Value::Sql(&has)),
            ("holds", Value::Sql(holds.trim_end())),
        ];
        let answers = session
            .ask(
                &self
                    .client
                    .tables
                    .fill(&(look + include_str!("sql/mark_hold.sql")), &values),
            )
            .await;
        let asked_over = session.id();
        self.client.session = Some(session);
        let answers = answers?;
        let int = |nth: usize| {
            answers
                .get(nth)
                .and_then(|answer: &Answer| answer.rows.first())
                .map(|row| Fields::of(row).int())
                .transpose()
        };
        let before = int(2)?.ok_or_else(failure::unreadable)? > 0;
        Ok(int(4)?.map(|session| Marked {
            session,
            before,
            asked_over,
        }))
    }

    /// Ends the session that has the lock with this fence. The hold is marked first, so that the
    /// next holder and `inspect` see a broken hold even if this process dies.
    pub(super) async fn end_holder(
        &mut self,
        key: &Key,
        fence: Fence,
        mark: &Break,
    ) -> Result<bool> {
        let Some(Marked {
            session: number,
            before,
            asked_over,
        }) = self.put_mark(key, fence, mark).await?
        else {
            return Ok(false);
        };
        let mut session = self.client.take().await?;
        if session.id() != asked_over {
            // The server may be another one, or number its sessions anew.
            self.client.session = Some(session);
            return Ok(false);
        }
        match session.kill(number).await? {
            Some(denial) if denial.number != failure::NO_SESSION => {
                if !before {
                    // No other client had marked the hold: this mark must not stop it later.
                    let values = [
                        ("name", Value::Bytes(&self.name_of(key))),
                        ("fence", Value::Int(fence_int(fence))),
                    ];
                    session
                        .ask(&self.client.tables.fill("DELETE FROM :marks WHERE name = :name AND fence = :fence AND seen = 0;", &values))
                        .await?;
                }
                self.client.session = Some(session);
                return Err(failure::refused(&denial, false));
            }
            _ => {}
        }
        let gone = session.outlast(number).await;
        self.client.session = Some(session);
        if gone? {
            return Ok(true);
        }
        Err(Error::new(
            Kind::Unavailable,
            "the server has not ended the holder's session yet",
        )
        .effect(Effect::Unknown))
    }
}
