//! The records of earlier runs, next to the lock.
//!
//! They are judged and written in the transaction that grants, and in the one that releases. What keeps other runs out lies in the
//! lock's own row, so that a grant without `--once` or `--once-per` stays one statement.
//!
//! Worst cases: the answer of a grant is lost (asked again by the process that has the bytes: the row is extended, and
//! nothing is judged or counted); it is undone while it may yet be executed (the driver runs the two one after the other);
//! the power fails (a start that later runs depend on is on the disk before the command begins).

use std::time::Duration;

use sqlx::{Connection, Row as _, SqliteConnection};

use super::{
    failure, row,
    store::{GRANT, Query, Store, Whose, bind_name, bind_whose, fence_of, json, ms, run},
};
use crate::lock::{Denial, Fence, Key, Namespace, Request, Result, RunRecord, RunState, whole_ms};

const RECORD: &str = include_str!("sql/record.sql");
const WRITE: &str = include_str!("sql/write_record.sql");
const WARN: &str = include_str!("sql/warn.sql");

/// The answer of the row.
pub(super) enum Taken {
    /// It is ours.
    Granted(Fence),
    /// A hold that the lock file does not speak for is in the way.
    InTheWay,
    /// The lock is free.
    Denied(Box<Denial>),
    /// It is shared, or waited for in order: ask the document.
    Document,
}

/// What is known of a lock's runs.
pub(super) struct Known {
    pub record: RunRecord,
    /// The last fence.
    fence: Option<Fence>,
    /// The same if it is the fence of the token that asks.
    own: Option<Fence>,
    now_ms: u64,
    /// The lock is shared, or waited for in order.
    documented: bool,
}

impl Store {
    /// Takes the lock.
    pub(super) async fn grant(&mut self, whose: Whose<'_>, request: &Request, file: i64) -> Result<Taken> {
        let counts = request.run_policy.as_ref().is_some_and(|run_policy| run_policy.once.is_some() || run_policy.at_least.is_some());
        self.set_durable(request.detached || counts).await?;
        if request.run_policy.as_ref().is_none_or(|run_policy| run_policy.once.is_none()) {
            let first = match self.rows(grant(whose, request, file, false)).await {
                // Perhaps it isn't our database, or has no tables yet.
                Err(error) if error.kind == crate::lock::Kind::Data && !self.checked => None,
                rows => fence_of(&rows?)?,
            };
            if let Some(fence) = first {
                self.checked = true;
                return Ok(Taken::Granted(fence));
            }
        }
        self.check().await?;
        let mut transaction = self.connection()?.begin_with("BEGIN IMMEDIATE").await.map_err(failure::statement)?;
        let known = known(&mut transaction, whose).await?;
        if known.documented {
            return Ok(Taken::Document);
        }
        // A holder comes before what is recorded.
        let Some(fence) = fence_of(&run(&mut transaction, grant(whose, request, file, true)).await?)? else { return Ok(Taken::InTheWay) };
        if let Some(denial) = known.record.judge(request.run_policy.as_ref(), &request.token, known.now_ms) {
            transaction.rollback().await.map_err(failure::statement)?;
            return Ok(Taken::Denied(Box::new(denial)));
        }
        known.begin(&mut transaction, whose, request, fence).await?;
        transaction.commit().await.map_err(failure::statement)?;
        Ok(Taken::Granted(fence))
    }

    /// Whether something is recorded of the hold that the lock was last granted to. If so, what became of it is not to be lost with
    /// the power either.
    pub(super) async fn has_record(&mut self, whose: Whose<'_>) -> Result<bool> {
        self.check().await?;
        let Known { record, fence, .. } = read(self.connection()?, bind_whose(RECORD, whose)).await?;
        let of = |found: Option<Fence>| found.is_some() && found == fence;
        let has = of(record.cooldown.map(|cooldown| cooldown.fence)) || of(record.start.map(|start| start.fence));
        if has {
            self.set_durable(true).await?;
        }
        Ok(has)
    }

    pub(super) async fn record(&mut self, namespace: &Namespace, key: &Key) -> Result<RunRecord> {
        self.check().await?;
        Ok(read(self.connection()?, bind_name(RECORD, namespace, key).bind(None::<String>).bind(None::<String>)).await?.record)
    }

    /// Claims a warning.
    pub(super) async fn warn(&mut self, namespace: &Namespace, key: &Key, fence: Fence, level: u32) -> Result<bool> {
        self.check().await?;
        self.set_durable(false).await?;
        let fence = i64::try_from(fence.0).unwrap_or(i64::MAX);
        Ok(!self.rows(bind_name(WARN, namespace, key).bind(fence).bind(level)).await?.is_empty())
    }
}

/// The statement that takes the lock for one alone.
fn grant(whose: Whose<'_>, request: &Request, file: i64, judged: bool) -> Query {
    let query = bind_whose(GRANT, whose).bind(ms(request.ttl)).bind(request.detached).bind(file);
    let query = query.bind(json(request.metadata.as_ref())).bind(judged);
    let cooldown = request.run_policy.as_ref().filter(|run_policy| run_policy.skew_guard.is_some() || run_policy.at_least.is_some());
    let length = |length: Option<Duration>| length.map_or(0, |length| i64::try_from(whole_ms(length)).unwrap_or(i64::MAX));
    query
        .bind(cooldown.map(|run_policy| run_policy.place.clone()))
        .bind(length(cooldown.and_then(|run_policy| run_policy.skew_guard)))
        .bind(length(cooldown.and_then(|run_policy| run_policy.at_least)))
}

/// What is known of the runs before this one.
pub(super) async fn known(connection: &mut SqliteConnection, whose: Whose<'_>) -> Result<Known> {
    let mut known = read(connection, bind_whose(RECORD, whose)).await?;
    if let Some(own) = known.own {
        // Granted before, and over: no run before it.
        known.record.end(own, RunState::Cancelled);
    }
    Ok(known)
}

/// Takes the lock alone if the records allow it, in their transaction.
pub(super) async fn grant_alone(
    connection: &mut SqliteConnection,
    whose: Whose<'_>,
    request: &Request,
    file: i64,
    known: Known,
) -> Result<Fence> {
    let fence = fence_of(&run(connection, grant(whose, request, file, true)).await?)?;
    let fence = fence.ok_or_else(|| failure::statement(sqlx::Error::RowNotFound))?;
    known.begin(connection, whose, request, fence).await?;
    Ok(fence)
}

impl Known {
    /// Records a start of `--once` or `--once-per`; what keeps other runs out lies in the row already.
    async fn begin(mut self, connection: &mut SqliteConnection, whose: Whose<'_>, request: &Request, fence: Fence) -> Result<()> {
        if request.run_policy.as_ref().is_some_and(|run_policy| run_policy.once.is_some()) {
            self.record.begin(request, fence, self.now_ms);
            write(connection, whose.namespace, whose.key, self.record).await?;
        }
        Ok(())
    }
}

/// Takes down what became of the hold that has the lock.
pub(super) async fn became(connection: &mut SqliteConnection, whose: Whose<'_>, stage: Option<RunState>) -> Result<()> {
    let Some(stage) = stage else { return Ok(()) };
    let mut known = read(connection, bind_whose(RECORD, whose)).await?;
    if known.fence.is_some_and(|fence| known.record.end(fence, stage)) {
        if known.record.cooldown.is_none() {
            let sql = "UPDATE locks SET cooldown = NULL WHERE namespace = ?1 AND key = ?2 AND cooldown IS NOT NULL";
            run(connection, bind_name(sql, whose.namespace, whose.key)).await?;
        }
        write(connection, whose.namespace, whose.key, known.record).await?;
    }
    Ok(())
}

async fn read(connection: &mut SqliteConnection, query: Query) -> Result<Known> {
    let rows = run(connection, query).await?;
    let found = rows.first().ok_or_else(|| failure::statement(sqlx::Error::RowNotFound))?;
    let read = || -> Result<Known, sqlx::Error> {
        let (text, cooldown): (Option<String>, Option<String>) = (found.try_get("record")?, found.try_get("cooldown")?);
        let decode = |error: serde_json::Error| sqlx::Error::Decode(error.into());
        let record: Option<RunRecord> = text.map(|text| serde_json::from_str(&text)).transpose().map_err(decode)?;
        let cooldown = cooldown.map(|text| serde_json::from_str(&text)).transpose().map_err(decode)?;
        let fence = |name: &str| {
            Ok::<_, sqlx::Error>(found.try_get::<Option<i64>, _>(name)?.and_then(|fence| u64::try_from(fence).ok()).map(Fence))
        };
        let now_ms = u64::try_from(found.try_get::<i64, _>("now_ms")?).unwrap_or_default();
        Ok(Known {
            record: RunRecord { cooldown, ..record.unwrap_or_default() },
            fence: fence("fence")?,
            own: fence("own")?,
            now_ms,
            documented: found.try_get("documented")?,
        })
    };
    read().map_err(row::malformed)
}

/// Writes what does not lie in the lock's own row.
async fn write(connection: &mut SqliteConnection, namespace: &Namespace, key: &Key, record: RunRecord) -> Result<()> {
    let record = RunRecord { cooldown: None, ..record };
    let text = (record != RunRecord::default()).then(|| serde_json::to_string(&record).ok()).flatten();
    run(connection, bind_name(WRITE, namespace, key).bind(text)).await.map(|_| ())
}
