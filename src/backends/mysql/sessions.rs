//! `mode=row` and `mode=advisory` of MySQL and MariaDB: see [`crate::backends::sql::sessions`].
//!
//! Further interleavings, and why they are harmless:
//! - *Readers come one after the other while a writer waits.* No session shares a row for which a
//!   writer waits, not even a session that would not wait.
//! - *A reader vanishes while others hold the lock.* Its hold counts while its session has its
//!   presence lock ([`readers`](super::readers)). A writer has the row alone, and knows that all
//!   readers are gone.
//! - *The writer's session is not told by the server.* The writer in the document counts while any
//!   session has the row alone. The next one to have it replaces that hold.

use std::time::Duration;

use super::{
    Mysql,
    connection::Connection,
    failure,
    names::{Tables, advisory, advisory_name},
    readers::own_presence,
    session_holders::{MysqlHolders, held, holders},
    session_lock::{MysqlLock, MysqlSessionPart},
    table::MysqlLockTable,
};
use crate::{
    backends::{
        cas::Outside,
        sql::{
            self, Asked, Client, Holders, Server, Session as _, SessionDatabase, SessionLocks,
            SqlMode, foreign_holder, row::Write,
        },
    },
    lock::{
        Capabilities, Effect, Error, Key, Kind, Mode, Progress, Request, Result, Ttl,
        document::{Document, HolderEntry},
    },
};

pub(super) const ROW: Capabilities = Capabilities {
    backend: "mysql mode=row",
    ..sql::SESSIONS
};
pub(super) const ADVISORY: Capabilities = Capabilities {
    shared: false,
    backend: "mysql mode=advisory",
    ..ROW
};

/// Locks that sessions keep.
pub(super) type Sessions = SessionLocks<Mysql>;

impl Holders for MysqlHolders {
    fn has(&self, holder: &HolderEntry, number: i64) -> bool {
        match holder.mode {
            Mode::Shared => self.sharing.contains(&number),
            // If readers are known, no other session has the row. No more readers can lock it while
            // a writer waits.
            _ => self.sharing.is_empty() && self.alone.is_some_and(|it| it == 0 || it == number),
        }
    }

    fn outside(&self, document: &Document, server: &Server) -> Option<Outside> {
        let mut known = document.sessions().filter_map(|it| server.number(it));
        let is_other = match self.alone {
            None => false,
            Some(0) => self.sharing.is_empty() && known.next().is_none(),
            Some(number) => known.all(|known| known != number),
        };
        is_other.then(|| Outside {
            holder: foreign_holder(Mode::Exclusive),
            left: None,
            transient: false,
        })
    }
}

impl SessionDatabase for Mysql {
    type Own = MysqlSessionPart;
    type Table<'a> = MysqlLockTable<'a>;
    type Holders = MysqlHolders;

    fn table<'a>(
        session: &'a mut Connection,
        tables: &'a Tables,
        evidence: Option<(String, String)>,
    ) -> MysqlLockTable<'a> {
        MysqlLockTable {
            evidence,
            ..MysqlLockTable::over(session, tables)
        }
    }

    fn evidence(lock: &MysqlLock) -> Option<(String, String)> {
        lock.evidence()
    }

    fn advisory_name(client: &Client<Self>, key: &Key) -> String {
        advisory_name(&client.options, key, &client.names.of(key))
    }

    fn is_usable(session: &Connection) -> bool {
        session.is_alive()
    }

    async fn open_lock(
        client: &mut Client<Self>,
        request: &Request,
        _: Option<&mut Connection>,
        _: bool,
    ) -> Result<MysqlLock> {
        let (name, shared) = (client.names.of(&request.key), request.mode == Mode::Shared);
        let (options, tables) = (&client.options, &client.tables);
        let lock = if client.mode() == SqlMode::Row {
            own_presence(tables, &name, &request.token.hold_text())
        } else {
            advisory(options, &request.key, &name)
        };
        let lock = MysqlLock::open(options, tables, name, lock, shared).await?;
        client.notices = lock.session.server.notices();
        Ok(lock)
    }

    async fn attempt(lock: &mut MysqlLock, request: &Request) -> Result<bool> {
        lock.attempt(request).await
    }

    fn answered(lock: &mut MysqlLock) -> Option<Asked> {
        lock.own.asked.take()
    }

    async fn block(lock: &mut MysqlLock, ttl: Ttl, at_most: Duration) -> Result<bool> {
        lock.wait(ttl, at_most).await
    }

    async fn keep(lock: &mut MysqlLock, limit: Option<Duration>) -> Result<bool> {
        lock.keep(limit).await
    }

    async fn let_go(lock: &mut MysqlLock) -> Result<()> {
        (lock.found, lock.own.asked) = (None, None);
        lock.let_go().await
    }

    async fn give_back(lock: &mut MysqlLock, tables: &Tables, write: &Write) -> Result<bool> {
        let mut table = MysqlLockTable {
            gives_back: Some(lock.giving_back()),
            ..MysqlLockTable::over(&mut lock.session, tables)
        };
        table.write_back(write).await
    }

    async fn holders(
        client: &Client<Self>,
        table: &mut Self::Table<'_>,
        key: &Key,
        document: &Document,
    ) -> Result<(Server, MysqlHolders)> {
        holders(client, table.session, key, document).await
    }

    async fn held(
        client: &Client<Self>,
        table: &mut Self::Table<'_>,
        start: &str,
        progress: &Progress,
    ) -> Result<Vec<String>> {
        held(client, table.session, start, progress).await
    }

    async fn end_holder(
        _: &Client<Self>,
        table: &mut Self::Table<'_>,
        _: &Key,
        session: &str,
    ) -> Result<()> {
        let Some(number) = table.session.served_by()?.number(session) else {
            return Ok(());
        };
        let denial = table.session.kill(number).await?;
        if let Some(denial) = denial.filter(|denial| denial.number != failure::NO_SESSION) {
            return Err(failure::refused(&denial, false));
        }
        if table.session.outlast(number).await? {
            return Ok(());
        }
        Err(Error::new(
            Kind::Unavailable,
            "the server has not ended the holder's session yet",
        )
        .effect(Effect::Unknown))
    }
}
