//! The lock table in PostgreSQL's SQL: each statement by itself, in autocommit, one round trip each.
//!
//! All of them judge by `clock_timestamp()`, since `now()` stands still in a transaction, as UTC without a time zone, which is
//! what ShedLock compares with. Nothing here waits but for another statement on the same row.

use async_trait::async_trait;
use tokio_postgres::{Row, types::Type};

use super::{connection::Session, failure, names::Tables};
use crate::{
    backends::sql::{self, Record, locked_by, micros},
    lock::{Error, Fence, Kind, Metadata, Request, Result, Token, Ttl, Waiter},
};

/// A lock table over a session.
pub(super) struct LockTable<'a> {
    pub session: &'a mut Session,
    pub tables: &'a Tables,
}

#[async_trait(?Send)]
impl sql::Table for LockTable<'_> {
    async fn grant(&mut self, name: &str, request: &Request) -> Result<Option<Fence>> {
        let (by, root, ttl) = (locked_by(&request.token), request.token.hold_text(), sql::ms(request.ttl));
        let metadata = json(request.metadata.as_ref())?;
        let sql = self.tables.fill(include_str!("sql/grant.sql"));
        // An acquire that is given up must not arrive when nobody waits for its answer any more; a release may.
        self.session.drop_unsent = true;
        let rows = self
            .session
            .query(
                &sql,
                &[
                    (&name, Type::TEXT),
                    (&by, Type::TEXT),
                    (&root, Type::TEXT),
                    (&ttl, Type::INT8),
                    (&request.detached, Type::BOOL),
                    (&metadata, Type::TEXT),
                ],
            )
            .await;
        self.session.drop_unsent = false;
        rows?.first().map(|row| fence(row).map_err(failure::malformed)).transpose()
    }

    async fn extend(&mut self, name: &str, token: &Token, ttl: Option<Ttl>) -> Result<Option<(Ttl, Fence)>> {
        let (by, root, ttl) = (locked_by(token), token.hold_text(), ttl.map(sql::ms));
        let sql = self.tables.fill(include_str!("sql/extend.sql"));
        let rows = self.session.query(&sql, &[(&name, Type::TEXT), (&by, Type::TEXT), (&root, Type::TEXT), (&ttl, Type::INT8)]).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let read = || Ok((row.try_get::<_, i64>("ttl_ms")?, fence(row)?));
        let (ttl, fence) = read().map_err(failure::malformed)?;
        Ok(Some((Ttl::new(micros(ttl * 1000)).unwrap_or(Ttl::DEFAULT), fence)))
    }

    async fn free(&mut self, name: &str, token: &Token) -> Result<bool> {
        let (by, root, channel) = (locked_by(token), token.hold_text(), self.tables.channel(name));
        let sql = self.tables.fill(include_str!("sql/free.sql"));
        let rows = self.session.query(&sql, &[(&name, Type::TEXT), (&by, Type::TEXT), (&root, Type::TEXT), (&channel, Type::TEXT)]).await?;
        Ok(!rows.is_empty())
    }

    async fn read(&mut self, name: &str) -> Result<Option<Record>> {
        let rows = self.session.query(&self.tables.fill(include_str!("sql/read.sql")), &[(&name, Type::TEXT)]).await?;
        rows.first().map(|row| record(row).map_err(failure::malformed)).transpose()
    }

    async fn write(&mut self, record: &Record) -> Result<bool> {
        let channel = (!record.is_held()).then(|| self.tables.channel(&record.name));
        let sql = self.tables.fill(include_str!("sql/write.sql"));
        let rows = self
            .session
            .query(
                &sql,
                &[
                    (&record.name, Type::TEXT),
                    (&record.locked_by, Type::TEXT),
                    (&record.revision, Type::INT8),
                    (&record.lock_until_us, Type::INT8),
                    (&record.root, Type::TEXT),
                    (&record.ttl_ms, Type::INT8),
                    (&record.holds, Type::TEXT),
                    (&record.metadata, Type::TEXT),
                    (&record.renewed_us, Type::INT8),
                    (&channel, Type::TEXT),
                ],
            )
            .await?;
        Ok(!rows.is_empty())
    }
}

impl LockTable<'_> {
    /// Every held lock whose name starts with `start`, by name.
    pub(super) async fn list(&mut self, start: &str) -> Result<Vec<Record>> {
        let rows = self.session.query(&self.tables.fill(include_str!("sql/list.sql")), &[(&start, Type::TEXT)]).await?;
        rows.iter().map(|row| record(row).map_err(failure::malformed)).collect()
    }

    /// Puts a waiter into the queue; its place.
    pub(super) async fn join_queue(&mut self, name: &str, request: &Request) -> Result<u32> {
        let (hold, metadata) = (request.token.hold_text(), json(request.metadata.as_ref())?);
        let sql = self.tables.fill(include_str!("sql/join.sql"));
        let row = self.session.query_one(&sql, &[(&name, Type::TEXT), (&hold, Type::TEXT), (&metadata, Type::TEXT)]).await?;
        let place: i64 = row.try_get("position").map_err(failure::malformed)?;
        Ok(u32::try_from(place).unwrap_or(u32::MAX))
    }

    /// Takes a waiter out of the queue, after what `first` does.
    pub(super) async fn leave_queue(&mut self, first: &str, name: &str, token: &Token) -> Result<()> {
        let sql = self.tables.fill(include_str!("sql/leave.sql"));
        let hold = token.hold_text();
        self.session.run_then_query(first, &sql, &[(&name, Type::TEXT), (&hold, Type::TEXT)]).await.map(|_| ())
    }

    /// Who waits for the lock `name`, or for all whose names start with it, longest first.
    pub(super) async fn queue(&mut self, name: &str, whole: bool) -> Result<Vec<(String, Waiter)>> {
        let sql = self.tables.fill(include_str!("sql/queue.sql"));
        let rows = self.session.query(&sql, &[(&name, Type::TEXT), (&whole, Type::BOOL)]).await?;
        let read = |row: &Row| {
            let metadata: Option<String> = row.try_get("metadata")?;
            let waiter = Waiter {
                metadata: metadata.and_then(|json| serde_json::from_str(&json).ok()),
                waiting_for: Some(micros(row.try_get("waited_us")?)),
            };
            Ok((row.try_get("name")?, waiter))
        };
        rows.iter().map(|row| read(row).map_err(failure::malformed)).collect()
    }
}

/// What people say of themselves, as columns have it.
pub(super) fn json(metadata: Option<&Metadata>) -> Result<Option<String>> {
    let write = |metadata| serde_json::to_string(metadata);
    metadata.map(write).transpose().map_err(|error| Error::new(Kind::Internal, "the metadata can't be written").source(error))
}

fn fence(row: &Row) -> Result<Fence, tokio_postgres::Error> {
    let fence: i64 = row.try_get("fence")?;
    Ok(Fence(u64::try_from(fence).unwrap_or_default()))
}

fn record(row: &Row) -> Result<Record, tokio_postgres::Error> {
    Ok(Record {
        name: row.try_get("name")?,
        now_us: row.try_get("now_us")?,
        lock_until_us: row.try_get("lock_until_us")?,
        locked_at_us: row.try_get("locked_at_us")?,
        locked_by: row.try_get("locked_by")?,
        layout: row.try_get("layout")?,
        owner: row.try_get("owner")?,
        root: row.try_get("root")?,
        ttl_ms: row.try_get("ttl_ms")?,
        holds: row.try_get("holds")?,
        fence: row.try_get("fence")?,
        detached: row.try_get("detached")?,
        renewed_us: row.try_get("renewed_us")?,
        metadata: row.try_get("metadata")?,
        revision: row.try_get("revision")?,
    })
}
