//! Begins a hold of a session: its fence, and the run records that decide about it.
//!
//! The holder is alone with its row of fences, and sees all that was committed before it got the lock: one statement judges,
//! counts and writes. A refused request gives the lock back at once, and keeps the session.
//!
//! Worst cases: the answer is lost and it is asked again (the row says which fence was counted for this hold: its start is no run
//! before it, and counts once); it is given up (the session that counts is ended before what it wrote is taken out); the lock's
//! session ends while the fence is counted over another one (as a holder that vanishes: the start stays).

use std::time::Duration;

use sqlx::Row as _;

use super::{
    connection::Session,
    failure, history,
    keeper::no_row,
    options::Mode,
    sessions::Sessions,
    starts,
    statement::{Value, fill},
    table::{json, part},
};
use crate::{
    backends::sql::{Begin, SHARED_BY, ms, other_mode},
    lock::{Denial, Fence, Key, Mode as How, Request, Result, RunRecord, RunState, Token},
};

/// What a holder whose session was ended may need to find out, which its socket tells it at once, and to kill its command.
/// Of a short lease less, since its command must be started within half of it.
const DRAIN_DELAY: Duration = Duration::from_millis(500);

/// The fence, the server's time in µs, and how long nothing may be started.
type Begun = (Fence, i64, Duration);

/// The outcome for a lock that a session has.
pub(super) enum Beginning {
    /// The lock is held.
    Begun(Begun),
    /// An earlier run denies this one.
    Denied(Box<Denial>),
    /// The server of an earlier hold is gone, and that hold's lease may not be over.
    Left,
}

impl Sessions {
    /// Counts the fence of a lock that is ours.
    pub(super) async fn begin(&mut self, request: &Request, at: usize) -> Result<Beginning> {
        if let Some(begun) = self.count(request, at, None).await? {
            return Ok(Beginning::Begun(begun));
        }
        if self.is_left(request, at).await? {
            return Ok(Beginning::Left);
        }
        if let Some((known, now_ms)) = self.known(request, at).await? {
            if let Some(denial) = known.judge(request.run_policy.as_ref(), &request.token, now_ms) {
                return Ok(Beginning::Denied(Box::new(denial)));
            }
            return self.count(request, at, Some((&known, now_ms))).await?.map(Beginning::Begun).ok_or_else(no_row);
        }
        // No run was before.
        self.count(request, at, None).await?.map(Beginning::Begun).ok_or_else(no_row)
    }

    /// Whether a hold was left by a server that was restarted, or is another one by now, and its lease is not over.
    ///
    /// # Errors
    /// The lock is kept in another mode, which does not exclude this one.
    async fn is_left(&mut self, request: &Request, at: usize) -> Result<bool> {
        let (name, hold) = (self.names.of(&request.key), request.token.hold_text());
        let mode = self.options.mode.name();
        let parameters = [Value::Text(&name), Value::Text(&hold), Value::Bool(request.mode == How::Shared), Value::Text(mode)];
        let sql = fill(&self.tables.fill(include_str!("sql/clear_hold.sql")), &parameters);
        let rows = self.over(at, &sql).await?;
        let row = rows.first().ok_or_else(no_row)?;
        let read = || Ok((row.try_get::<Option<String>, _>("mode")?, row.try_get("waits")?));
        let (kept, waits) = read().map_err(failure::malformed)?;
        match kept {
            Some(kept) if kept != mode => Err(other_mode(&kept)),
            _ => Ok(waits),
        }
    }

    /// Asks over the session that has the lock, or outside its transaction.
    async fn over(&mut self, at: usize, sql: &str) -> Result<Vec<sqlx::postgres::PgRow>> {
        if self.options.mode == Mode::Row {
            return self.aside(async |table| table.session.run(sql).await).await;
        }
        self.tries[at].2.session.run(sql).await
    }

    /// `None` if something may be in the way, and nothing was done.
    async fn count(&mut self, request: &Request, at: usize, judged: Option<(&RunRecord, u64)>) -> Result<Option<Begun>> {
        // One that is late would count another fence for this hold.
        self.end_counting().await?;
        let begin = Begin::of(request, judged);
        let (metadata, hold) = (json(request.metadata.as_ref())?, request.token.hold_text());
        let name = self.names.of(&request.key);
        let parameters = [
            Value::Text(&name),
            Value::Pid(self.tries[at].2.pid),
            Value::Bool(request.mode == How::Shared),
            Value::Int(ms(request.ttl)),
            Value::Maybe(metadata.as_deref()),
            Value::Text(&hold),
            Value::Text(self.options.mode.name()),
            Value::Text(SHARED_BY),
        ];
        let now = if judged.is_none() { Some("timezone('utc', clock_timestamp())") } else { None };
        let parameters = [&parameters[..], &starts::values(&begin, metadata.as_deref(), &hold)].concat();
        let sql = |beside| fill(&starts::granting(&self.tables.fill(&begin_sql(beside, request.waiting)), &begin, OWN, now), &parameters);
        // The server plans the whole statement each time. Mostly there is no row of another hold, and the short one will do.
        let ways = if request.mode == How::Shared { vec![sql(true)] } else { vec![sql(false), sql(true)] };
        let mut side = if self.options.mode == Mode::Row { Some(self.side().await?) } else { None };
        let counting = side.as_ref().map(Session::known);
        self.counting.extend(counting.clone());
        let mut rows = Ok(Vec::new());
        for sql in ways {
            rows = self.tries[at].2.count(request.ttl, &sql, side.as_mut()).await;
            if !rows.as_ref().is_ok_and(Vec::is_empty) {
                break;
            }
        }
        if side.as_ref().is_some_and(Session::is_open) {
            self.counting.retain(|other| Some(other) != counting.as_ref());
        }
        self.side = side.or_else(|| self.side.take());
        let rows = rows?;
        let Some(row) = rows.first() else { return Ok(None) };
        let read = || Ok((row.try_get::<i64, _>("fence")?, row.try_get("now_us")?, row.try_get::<i64, _>("gone")?));
        let (fence, now, gone) = read().map_err(failure::malformed)?;
        let fence = Fence(u64::try_from(fence).unwrap_or_default());
        if gone > 0 && self.side.is_some() {
            let trimmed: Result<()> = self
                .aside(async |table| {
                    history::trim_at_times(table.session, table.tables, &name, fence).await;
                    Ok(())
                })
                .await;
            drop(trimmed);
        }
        Ok(Some((fence, now, if gone > 0 { DRAIN_DELAY.min(request.ttl.get() / 8) } else { Duration::ZERO })))
    }

    /// The records that judge the request, and when; `None` if the lock had no run.
    async fn known(&mut self, request: &Request, at: usize) -> Result<Option<(RunRecord, u64)>> {
        let name = self.names.of(&request.key);
        let sql = fill(&self.tables.fill(include_str!("sql/session_starts.sql")), &[Value::Text(&name)]);
        let rows = self.over(at, &sql).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let read = || Ok((starts::read(row)?, row.try_get::<i64, _>("now_ms")?));
        let (known, now_ms) = read().map_err(failure::malformed)?;
        Ok(Some((known, u64::try_from(now_ms).unwrap_or_default())))
    }

    /// Takes out what may have been written of a hold that is given up, or over with its server and given back since. That it fails leaves its
    /// start, rather too few runs, and lets the next holder wait.
    pub(super) async fn forget(&mut self, key: &Key, token: &Token, run_state: Option<RunState>) {
        let which = if run_state == Some(RunState::Cancelled) { "" } else { "AND s.server IS DISTINCT FROM {server}" };
        let (name, hold) = (self.names.of(key), token.hold_text());
        let sql = self
            .tables
            .fill(&include_str!("sql/forget_hold.sql").replace("{which}", which))
            .replace("{became}", &starts::became(run_state, "f.fence"));
        if self.end_counting().await.is_ok() {
            let values = [Value::Text(&name), Value::Text(&hold)];
            let forgotten: Result<()> = self.aside(async |table| table.session.query(&sql, &values).await.map(|_| ())).await;
            drop(forgotten);
        }
    }

    /// Ends the side sessions that were asked to count a fence and did not answer.
    async fn end_counting(&mut self) -> Result<()> {
        while let Some(other) = self.counting.last().cloned() {
            self.aside(async |table| table.session.end_other(&other).await).await?;
            self.counting.pop();
        }
        Ok(())
    }

    pub(super) async fn record(&mut self, name: &str) -> Result<RunRecord> {
        let sql = self.tables.fill("SELECT {starts} FROM {fences} AS l WHERE l.name = $1");
        let rows = self.aside(async |table| table.session.query(&sql, &[Value::Text(name)]).await).await?;
        rows.first().map(starts::read).transpose().map(Option::unwrap_or_default).map_err(failure::malformed)
    }

    pub(super) async fn claim(&mut self, key: &Key, fence: Fence, level: u32) -> Result<bool> {
        let name = self.names.of(key);
        self.aside(async |table| table.warn(&name, fence, level).await).await
    }
}

/// How many parameters `begin_hold.sql` has of its own.
const OWN: usize = 8;

/// The statement that begins a hold; `beside`: where there may be rows of other holds.
fn begin_sql(beside: bool, waiting: bool) -> String {
    const IN_THE_WAY: &str = " AND s.hold <> $6 AND NOT ($3 AND s.shared) AND {left}";
    let (in_the_way, gone) = if beside { (IN_THE_WAY, "(SELECT count(*) FROM gone)") } else { ("", "0::bigint") };
    include_str!("sql/begin_hold.sql")
        .replace("{in_the_way}", in_the_way)
        .replace("{gone_holds}", &part(beside, include_str!("sql/begin_hold_gone.sql")))
        .replace("{waited}", &part(waiting, include_str!("sql/begin_hold_waited.sql")))
        .replace("{gone}", gone)
}
