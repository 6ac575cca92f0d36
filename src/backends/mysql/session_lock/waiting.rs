//! Waits for a lock in the server.

use std::time::Duration;

use super::{
    super::{connection::first_row, failure, statement::Value},
    LOCKED, MysqlLock, UNCLAIMED, found,
};
use crate::{
    backends::sql::{SqlMode, pause},
    lock::{Result, Ttl, random},
};

impl MysqlLock {
    /// Waits in the server for the lock, at most for the given time. Returns true if the session
    /// may have the lock then.
    pub(in crate::backends::mysql) async fn wait(
        &mut self,
        ttl: Ttl,
        at_most: Duration,
    ) -> Result<bool> {
        self.blocked = true;
        let first = self.set_idle_limit(ttl.get().min(UNCLAIMED));
        let mut rest = at_most;
        // Only MariaDB's GET_LOCK waits for parts of a second.
        let blocks = match self.mode {
            SqlMode::Advisory if self.session.server.mariadb => at_most.as_secs_f64(),
            _ => Duration::from_secs(at_most.as_secs()).as_secs_f64(),
        };
        if blocks > 0.0 {
            if self.block(&first, blocks).await? {
                self.blocked = false;
                return Ok(true);
            }
            rest = at_most.saturating_sub(Duration::from_secs_f64(blocks));
        }
        while !rest.is_zero() {
            let slice = rest.min(Duration::from_millis(30 + random() % 20));
            pause(slice).await;
            rest = rest.saturating_sub(slice);
            self.has = if self.mode == SqlMode::Row {
                self.lock_row(&first).await?
            } else {
                self.block(&first, 0.0).await?
            };
            if self.has {
                self.blocked = false;
                return Ok(true);
            }
        }
        self.blocked = false;
        Ok(false)
    }

    pub(in crate::backends::mysql) async fn block(
        &mut self,
        first: &str,
        seconds: f64,
    ) -> Result<bool> {
        if self.mode == SqlMode::Advisory {
            let batch = format!("{first}SELECT GET_LOCK({}, {seconds:.3});", self.own.lock);
            let answers = self.session.ask(&batch).await?;
            self.has = first_row(&answers, 1)?.int_or_null()? == Some(1);
            return Ok(self.has);
        }
        // Both servers know these words.
        let how = if self.shared {
            "LOCK IN SHARE MODE"
        } else {
            "FOR UPDATE"
        };
        let values = [("name", Value::Bytes(&self.name)), ("how", Value::Sql(how))];
        let wait = self.own.tables.fill(
            "START TRANSACTION; SELECT 1 FROM :rows WHERE name = :name :how;",
            &values,
        );
        let usual = "SET SESSION innodb_lock_wait_timeout = 1";
        let batch =
            format!("{first}SET SESSION innodb_lock_wait_timeout = {seconds:.0};\n{wait}{usual}");
        let answers = self.session.try_ask(&batch).await?;
        let got = answers.server_error.is_none() && found(&answers.answers, 3);
        if !got {
            self.session.ask(&format!("ROLLBACK; {usual}")).await?;
        }
        self.has = got;
        match answers.server_error {
            Some(denial) if denial.number != LOCKED => Err(failure::refused(&denial, false)),
            _ => Ok(got),
        }
    }
}
