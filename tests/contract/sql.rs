//! Statements that cases send to a SQL server themselves, for PostgreSQL or MariaDB.

use std::{sync::Arc, thread::JoinHandle, time::Duration};

use dlock::backends::{mysql, postgres, sql::SqlOptions};

use crate::{
    lab::{Client, Lab},
    support,
};

impl Lab {
    /// Returns the value for the case's server.
    pub fn either<T>(&self, postgres: T, mariadb: T) -> T {
        if self.kind.is_postgres() {
            postgres
        } else {
            mariadb
        }
    }

    /// Returns what is in each statement that writes a lock's row back, and in no other.
    pub fn writes(&self) -> &'static str {
        self.either("WITH written AS", "SET @dlock_written")
    }

    /// Returns the number of the session that has the lock of this row, as SQL.
    pub fn holder(&self) -> &'static str {
        self.either(support::postgres::HOLDER, support::mariadb::HOLDER)
    }

    /// Returns the server's answer to statements in the case's database; NULL as text.
    #[track_caller]
    pub fn sql(&self, statements: &str) -> Vec<Vec<String>> {
        if self.kind.is_postgres() {
            let text = |value: Option<String>| value.unwrap_or_else(|| "NULL".into());
            self.postgres()
                .sql(statements)
                .into_iter()
                .map(|row| row.into_iter().map(text).collect())
                .collect()
        } else {
            self.mariadb().sql(statements)
        }
    }

    /// dlock ends no session that began within two seconds of its MySQL server's start: an earlier
    /// one may have had the same number.
    pub async fn until_sessions_can_be_ended(&self) {
        if self.kind.speaks_mysql() {
            let up = self.sql("SHOW GLOBAL STATUS LIKE 'Uptime'")[0][1]
                .parse()
                .expect("seconds");
            self.pass(Duration::from_secs(3).saturating_sub(Duration::from_secs(up)))
                .await;
        }
    }

    /// Runs statements in the background.
    pub fn meanwhile(&self, statements: &str) -> JoinHandle<()> {
        if self.kind.is_postgres() {
            let (server, database) = (Arc::clone(&self.postgres().server), &self.postgres().name);
            let (database, statements) = (database.clone(), statements.to_owned());
            std::thread::spawn(move || drop(server.sql(&database, &statements)))
        } else {
            let (server, database) = (Arc::clone(&self.mariadb().server), &self.mariadb().name);
            let (database, statements) = (database.clone(), statements.to_owned());
            std::thread::spawn(move || drop(server.sql(&database, &statements)))
        }
    }

    /// Returns the ids of the client sessions in the case's database of MariaDB.
    pub fn sessions(&self) -> Vec<String> {
        let sql = "SELECT id FROM information_schema.processlist \
                   WHERE db = DATABASE() AND id <> CONNECTION_ID()";
        let rows = self.sql(sql).into_iter();
        rows.map(|row| row[0].clone()).collect()
    }

    /// Returns a client in the case's mode with changed options.
    pub fn client_with(&self, namespace: &str, change: impl FnOnce(&mut SqlOptions)) -> Client {
        Client(if self.kind.is_postgres() {
            let mut options = self.postgres_options(namespace);
            change(&mut options.sql);
            postgres::backend(options)
        } else {
            let mut options = self.mysql_options(namespace);
            change(&mut options.sql);
            mysql::backend(options)
        })
    }

    /// Locks as ShedLock does with `usingDbTime` and this lockAtMostFor. Returns whether ShedLock
    /// took the lock.
    pub fn shedlock(&self, table: &str, name: &str, seconds: u64) -> bool {
        if self.kind.is_postgres() {
            let most = format!("{seconds} seconds");
            let take = format!(
                "INSERT INTO {table}(name, lock_until, locked_at, locked_by) \
                 VALUES('{name}', timezone('utc', CURRENT_TIMESTAMP) + cast('{most}' as interval), timezone('utc', CURRENT_TIMESTAMP), 'web7') \
                 ON CONFLICT (name) DO UPDATE SET lock_until = timezone('utc', CURRENT_TIMESTAMP) + cast('{most}' as interval), \
                 locked_at = timezone('utc', CURRENT_TIMESTAMP), locked_by = 'web7' \
                 WHERE {table}.name = '{name}' AND {table}.lock_until <= timezone('utc', CURRENT_TIMESTAMP) RETURNING 1"
            );
            return !self.sql(&take).is_empty();
        }
        // ShedLock inserts the row, or updates an existing row that is free.
        let until = format!(
            "TIMESTAMPADD(MICROSECOND, {}, UTC_TIMESTAMP(3))",
            seconds * 1_000_000
        );
        let insert = format!(
            "INSERT IGNORE INTO {table}(name, lock_until, locked_at, locked_by) VALUES('{name}', {until}, UTC_TIMESTAMP(3), 'web7'); \
             SELECT ROW_COUNT()"
        );
        let update = format!(
            "UPDATE {table} SET lock_until = {until}, locked_at = UTC_TIMESTAMP(3), locked_by = 'web7' \
             WHERE name = '{name}' AND lock_until <= UTC_TIMESTAMP(3); SELECT ROW_COUNT()"
        );
        [insert, update]
            .iter()
            .any(|sql| self.sql(sql)[0][0] == "1")
    }

    /// Unlocks as ShedLock does without a lockAtLeastFor. Returns whether ShedLock had the lock.
    pub fn shedlock_unlocks(&self, table: &str, name: &str) -> bool {
        if self.kind.is_postgres() {
            let free = format!(
                "UPDATE {table} SET lock_until = CASE WHEN locked_at + cast('0 seconds' as interval) > timezone('utc', CURRENT_TIMESTAMP) \
                 THEN locked_at + cast('0 seconds' as interval) ELSE timezone('utc', CURRENT_TIMESTAMP) END \
                 WHERE name = '{name}' AND locked_by = 'web7' RETURNING 1"
            );
            return !self.sql(&free).is_empty();
        }
        let least = "TIMESTAMPADD(MICROSECOND, 0, locked_at)";
        let free = format!(
            "UPDATE {table} SET lock_until = IF ({least} > UTC_TIMESTAMP(3) , {least}, UTC_TIMESTAMP(3)) \
             WHERE name = '{name}' AND locked_by = 'web7'; SELECT ROW_COUNT()"
        );
        self.sql(&free)[0][0] == "1"
    }
}
