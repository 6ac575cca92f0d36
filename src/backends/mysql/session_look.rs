//! The requests that only read, about locks that sessions keep.

use super::{
    history,
    session_holders::{look_sql, read_holders},
    sessions::MysqlSessions,
    starts,
    statement::{Value, literal},
};
use crate::{
    backends::sql::{Fields, SessionReads, as_fence},
    lock::{History, Key, LockState, Progress, Renewal, Result, Token, Waiter, Which},
};

impl SessionReads for MysqlSessions {
    const HELD_NAMES: &'static str = "SELECT name FROM :sessions WHERE LEFT(name, LENGTH(:start)) = :start AND name >= :start AND (session IS NOT NULL OR name IN (SELECT name FROM :readers)) ORDER BY name;";

    fn known_names(which: Which) -> String {
        starts::known(":sessions", which)
    }

    async fn names(&mut self, sql: &str, start: &str, progress: &Progress) -> Result<Vec<String>> {
        let mut session = self.side().await?;
        let answers = session
            .ask_long(
                &self
                    .client
                    .tables
                    .fill(sql, &[("start", Value::Bytes(start))]),
                progress,
            )
            .await;
        self.client.session = Some(session);
        answers?
            .iter()
            .flat_map(|answer| &answer.rows)
            .map(|row| Fields::of(row).text())
            .collect()
    }

    async fn look(&mut self, key: &Key) -> Result<LockState> {
        let name = self.name_of(key);
        let mut session = self.client.take().await?;
        let values = [("start", Value::Bytes(&name)), ("whole", Value::Int(1))];
        let queue = self
            .client
            .tables
            .fill(include_str!("sql/queue.sql"), &values);
        let stored = if self.is_row() {
            literal(Value::Text(&name))
        } else {
            self.lock_of(key)
        };
        let answers = session
            .ask(&format!(
                "{}SELECT {stored};\n{queue}",
                look_sql(&self.client, key, &session.server)
            ))
            .await;
        self.client.session = Some(session);
        let answers = answers?;
        let (holders, last_fence) = read_holders(&answers, 0)?;
        let rows = answers
            .last()
            .map(|answer| &*answer.rows)
            .unwrap_or_default();
        let waiters = rows
            .iter()
            .map(|row| Ok(Fields::of(row).plain()?.waiter()))
            .collect::<Result<Vec<Waiter>>>()?;
        let stored = answers
            .len()
            .checked_sub(2)
            .and_then(|nth| answers[nth].rows.first());
        let stored_as = stored
            .map(|row| Fields::of(row).text())
            .transpose()?
            .unwrap_or(name);
        Ok(LockState {
            key: key.clone(),
            stored_as,
            holders,
            waiters,
            last_fence,
            nodes: Vec::new(),
        })
    }

    async fn probe(&mut self, key: &Key, token: &Token) -> Result<Renewal> {
        let name = self.name_of(key);
        let mut session = self.client.take().await?;
        // Read last: a hold that is listed first and has a record afterwards lasted all the time.
        let root = token.hold_text();
        let hold = self.client.tables.fill(
            "SELECT fence FROM :sessions WHERE name = :name AND root = :root UNION ALL SELECT fence FROM :readers WHERE name = :name AND root = :root;",
            &[("name", Value::Bytes(&name)), ("root", Value::Text(&root))],
        );
        let answers = session
            .ask(&(look_sql(&self.client, key, &session.server) + &hold))
            .await;
        self.client.session = Some(session);
        let answers = answers?;
        let (holders, _) = read_holders(&answers, 0)?;
        let fence = answers
            .last()
            .and_then(|answer| answer.rows.first())
            .map(|row| Fields::of(row).int())
            .transpose()?;
        let fence = fence.map(as_fence);
        Ok(
            match holders
                .into_iter()
                .find(|holder| !holder.foreign && fence.is_some() && holder.fence == fence)
            {
                Some(holder) => Renewal::Kept {
                    expires_in: holder.expires_in,
                },
                None => Renewal::NotHeld,
            },
        )
    }

    /// Reads the holds' records first, then the holders, then the history: a hold that ends
    /// meanwhile has its history entry.
    async fn history(&mut self, key: &Key) -> Result<History> {
        let name = self.name_of(key);
        let mut session = self.client.take().await?;
        let fill = |template: &str| {
            self.client
                .tables
                .fill(template, &[("name", Value::Bytes(&name))])
        };
        let left = fill(include_str!("sql/left_hold.sql"));
        let starts = fill("SELECT :starts FROM :sessions AS l WHERE l.name = :name;");
        let answers = session
            .ask(&(left + &look_sql(&self.client, key, &session.server) + &starts))
            .await?;
        let (mut past, skips) = history::read(&mut session, &self.client.tables, &name).await?;
        self.client.session = Some(session);
        let (holders, _) = read_holders(&answers, 1)?;
        for row in answers
            .first()
            .map(|answer| &*answer.rows)
            .unwrap_or_default()
        {
            let left = Fields::of(row).history_entry()?;
            if holders.iter().all(|holder| holder.fence != left.fence) {
                past.push(left);
            }
        }
        let record = answers
            .last()
            .and_then(|answer| answer.rows.first())
            .map(|row| Fields::of(row).run_record())
            .transpose()?;
        Ok(History {
            record: record.unwrap_or_default(),
            ..History::new(past, skips)
        })
    }
}
