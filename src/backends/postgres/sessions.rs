//! `mode=row` and `mode=advisory` of PostgreSQL: see [`crate::backends::sql::sessions`].
//!
//! In `mode=row` each session also has an advisory lock, alone or shared as the row. The server
//! tells who has that lock, and lets no reader in while a writer waits for it.

use std::time::Duration;

use super::{
    Postgres, checks,
    connection::PostgresSession,
    names::Tables,
    session_holders::{HolderSession, holders_sql, is_locked},
    session_lock::{PostgresLock, PostgresSessionPart},
    sharing::advisory_name,
    statement::Value,
    table::PostgresLockTable,
};
use crate::{
    backends::{
        cas::Outside,
        sql::{self, Client, Fields, Holders, Server, SessionDatabase, SessionLocks, row::Write},
    },
    lock::{
        Capabilities, Error, Key, Kind, Mode, Progress, Request, Result, Ttl,
        document::{Document, HolderEntry},
    },
};

pub(super) const ROW: Capabilities = Capabilities {
    backend: "postgres mode=row",
    // The server's timeouts are milliseconds in 31 bits.
    ttl_max: Duration::from_secs(24 * 24 * 3600),
    ..sql::SESSIONS
};
pub(super) const ADVISORY: Capabilities = Capabilities {
    backend: "postgres mode=advisory",
    ..ROW
};

/// Locks that sessions keep.
pub(super) type Sessions = SessionLocks<Postgres>;

impl Holders for Vec<HolderSession> {
    fn has(&self, holder: &HolderEntry, number: i64) -> bool {
        self.iter()
            .any(|one| one.pid == number && one.shared == (holder.mode == Mode::Shared))
    }

    fn outside(&self, document: &Document, server: &Server) -> Option<Outside> {
        let known: Vec<_> = document
            .sessions()
            .filter_map(|session| server.number(session))
            .collect();
        self.iter().find_map(|one| one.outside(&known))
    }
}

impl SessionDatabase for Postgres {
    type Own = PostgresSessionPart;
    type Table<'a> = PostgresLockTable<'a>;
    type Holders = Vec<HolderSession>;

    fn table<'a>(
        session: &'a mut PostgresSession,
        tables: &'a Tables,
        evidence: Option<(String, String)>,
    ) -> PostgresLockTable<'a> {
        PostgresLockTable {
            evidence,
            ..PostgresLockTable::over(session, tables)
        }
    }

    fn evidence(lock: &PostgresLock) -> Option<(String, String)> {
        lock.evidence()
    }

    fn advisory_name(client: &Client<Self>, key: &Key) -> String {
        advisory_name(&client.options, key)
    }

    async fn read_anywhere<T>(
        table: &mut Self::Table<'_>,
        question: impl AsyncFn(&mut Self::Table<'_>) -> Result<T>,
    ) -> Result<T> {
        table.read_anywhere(question).await
    }

    async fn open_lock(
        client: &mut Client<Self>,
        request: &Request,
        side: Option<&mut PostgresSession>,
        checked: bool,
    ) -> Result<PostgresLock> {
        let (name, shared) = (client.names.of(&request.key), request.mode == Mode::Shared);
        let mut lock = PostgresLock::open(&client.options, &client.tables, name, shared).await?;
        if !checked && checks::is_pooled(&mut lock.session, side, &client.options).await? {
            return Err(Error::new(Kind::Config, "a pooler shares its sessions among clients, which ends the locks that they have")
                .hint("name the server itself in the URL, or a pool in session mode; ?mode=lease works with any"));
        }
        Ok(lock)
    }

    async fn attempt(lock: &mut PostgresLock, request: &Request) -> Result<bool> {
        Ok(lock.attempt(request).await? || lock.make_row().await? && lock.attempt(request).await?)
    }

    async fn block(lock: &mut PostgresLock, ttl: Ttl, at_most: Duration) -> Result<bool> {
        // The server ends it by itself. However late its answer comes on a machine that is busy,
        // breaking the session off would only make it busier: each of many would log in again.
        lock.wait(ttl, at_most).await
    }

    async fn keep(lock: &mut PostgresLock, limit: Option<Duration>) -> Result<bool> {
        lock.keep(limit).await
    }

    async fn let_go(lock: &mut PostgresLock) -> Result<()> {
        lock.found = None;
        lock.give_back().await
    }

    async fn give_back(lock: &mut PostgresLock, tables: &Tables, write: &Write) -> Result<bool> {
        let within = lock.giving_back();
        PostgresLockTable::over(&mut lock.session, tables)
            .give_back(write, &within)
            .await
    }

    async fn holders(
        client: &Client<Self>,
        table: &mut Self::Table<'_>,
        key: &Key,
        _: &Document,
    ) -> Result<(Server, Vec<HolderSession>)> {
        let name = client.names.of(key);
        let sql = holders_sql(client, &name);
        let rows = table.session.query(&sql, &[Value::Text(&name)]).await?;
        HolderSession::read(&rows)
    }

    async fn held(
        client: &Client<Self>,
        table: &mut Self::Table<'_>,
        start: &str,
        progress: &Progress,
    ) -> Result<Vec<String>> {
        let is_locked = is_locked(client);
        let sql = format!(
            "SELECT l.name FROM {{table}} AS l WHERE left(l.name, length($1)) = $1 AND l.mode IS NOT DISTINCT FROM {{mode}}
             AND (NOT {{unheld}} OR {is_locked}) ORDER BY l.name COLLATE \"C\""
        );
        let (sql, start) = (table.tables.fill(&sql), [Value::Text(start)]);
        let rows = table.session.query_long(&sql, &start, progress).await?;
        rows.iter().map(|row| Fields::of(row).text()).collect()
    }

    async fn end_holder(
        client: &Client<Self>,
        table: &mut Self::Table<'_>,
        key: &Key,
        session: &str,
    ) -> Result<()> {
        let known = Document::default();
        let (server, holders) = Self::holders(client, table, key, &known).await?;
        let Some(pid) = server.number(session) else {
            return Ok(());
        };
        let has = |holders: &[HolderSession]| holders.iter().position(|one| one.pid == pid);
        let Some(at) = has(&holders) else {
            return Ok(());
        };
        if let Some(began) = &holders[at].began {
            let still = format!("backend_start = '{began}'");
            table.session.end_process(pid, &still).await?;
        }
        let (_, holders) = Self::holders(client, table, key, &known).await?;
        if has(&holders).is_none() {
            return Ok(());
        }
        Err(Error::new(
            Kind::Denied,
            "the session that has the lock could not be ended",
        )
        .hint("its user may end it, or a member of pg_signal_backend and pg_read_all_stats"))
    }
}
