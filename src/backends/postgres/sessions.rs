//! `mode=row` and `mode=advisory` of PostgreSQL: see [`crate::backends::sql::sessions`].
//!
//! In `mode=row` the server checks for waiting writers before it lets a reader in by an advisory
//! lock next to the row.
//!
//! Worst cases of a hold's begin: the answer is lost and the request is repeated (the row says
//! which fence was counted for this hold: its start is no run before it, and counts once); the
//! request is given up (the session that counts is ended before its rows are removed); the lock's
//! session ends while the fence is counted over another one (as a holder that vanishes: the start
//! stays), or before (nothing is counted: the lock may have its next holder by then).

use std::time::Duration;

use super::{
    Postgres, checks,
    connection::PostgresSession,
    history,
    options::PostgresOptions,
    schema,
    session_holders::{left_for, look_sql, read_holders},
    session_lock::{PostgresLock, PostgresSessionPart, no_row},
    starts,
    statement::{Value, fill, json},
    table::{PostgresLockTable, part},
};
use crate::{
    backends::sql::{
        self, Begun, Client, Fields, HasClient, Over, Row, SHARED_BY, SessionLocks, SessionStore,
        SqlMode, Tries, as_fence, ms,
    },
    lock::{
        Amendment, Break, Capabilities, DRAIN_DELAY, Error, Fence, Holder, Intent, Key, Kind, Mode,
        ReleaseInfo, Request, Result, RunRecord, RunState, Token, Ttl,
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

/// How many parameters `begin_hold.sql` has of its own.
const OWN: usize = 8;

/// Locks that sessions keep.
pub(super) type Sessions = SessionLocks<PostgresSessions>;

/// A client whose sessions keep locks. The [`Client`]'s own session serves everything else.
pub(in crate::backends) struct PostgresSessions {
    pub(super) client: Client<Postgres>,
    /// No pooler between dlock and the server shares its sessions.
    direct: bool,
}

impl Sessions {
    /// Returns a backend for `options`, without I/O.
    pub fn new(options: PostgresOptions) -> Self {
        Self::of(PostgresSessions {
            client: Client::new(options),
            direct: false,
        })
    }
}

impl HasClient for PostgresSessions {
    type Database = Postgres;

    fn client(&self) -> &Client<Postgres> {
        &self.client
    }

    fn client_mut(&mut self) -> &mut Client<Postgres> {
        &mut self.client
    }
}

impl PostgresSessions {
    pub(super) fn is_row(&self) -> bool {
        self.client.mode() == SqlMode::Row
    }

    pub(super) fn name_of(&self, key: &Key) -> String {
        self.client.names.of(key)
    }

    /// Asks over the client's own session.
    pub(super) async fn aside<T>(
        &mut self,
        question: impl AsyncFnOnce(&mut PostgresLockTable<'_>) -> Result<T>,
    ) -> Result<T> {
        let mut session = self.client.lend().await?;
        let answer = question(&mut PostgresLockTable::over(
            &mut session,
            &self.client.tables,
        ))
        .await;
        self.client.put_back(session, &answer);
        answer
    }

    /// As [`PostgresSessions::aside`], for a question that only reads: a standby can answer it,
    /// too.
    pub(super) async fn read<T>(
        &mut self,
        question: impl AsyncFn(&mut PostgresLockTable<'_>) -> Result<T>,
    ) -> Result<T> {
        self.aside(async |table| table.read_anywhere(&question).await)
            .await
    }

    /// Runs statements over the client's own session.
    pub(super) async fn query(&mut self, sql: &str, values: &[Value<'_>]) -> Result<Vec<Row>> {
        self.aside(async |table| table.session.query(sql, values).await)
            .await
    }

    /// Runs statements over the session that has the lock, or outside its transaction.
    async fn over(
        &mut self,
        lock: &mut PostgresLock,
        sql: &str,
        values: &[Value<'_>],
    ) -> Result<Vec<Row>> {
        if self.is_row() {
            self.query(sql, values).await
        } else {
            lock.session.query(sql, values).await
        }
    }

    /// Records for other clients that the lease has another length. A failure changes nothing else.
    async fn publish(&mut self, lock: &PostgresLock, token: &Token) {
        let sql = self
            .client
            .tables
            .fill("UPDATE {sessions} SET ttl_ms = $4 WHERE name = $1 AND pid = $2 AND hold = $3");
        let (hold, length) = (
            token.hold_text(),
            i64::try_from(lock.idle_limit.as_millis()).unwrap_or(i64::MAX),
        );
        let _: Result<_> = self
            .query(
                &sql,
                &[
                    Value::Text(&lock.name),
                    Value::Pid(lock.own.pid),
                    Value::Text(&hold),
                    Value::Int(length),
                ],
            )
            .await;
    }
}

impl SessionStore for PostgresSessions {
    type Own = PostgresSessionPart;
    const GRANT_LEAVES_QUEUE: bool = true;

    async fn open_lock(
        &mut self,
        request: &Request,
        side: Option<&mut PostgresSession>,
    ) -> Result<PostgresLock> {
        let (name, shared) = (self.name_of(&request.key), request.mode == Mode::Shared);
        let mut lock =
            PostgresLock::open(&self.client.options, &self.client.tables, name, shared).await?;
        if !self.direct && checks::is_pooled(&mut lock.session, side, &self.client.options).await? {
            return Err(Error::new(Kind::Config, "a pooler shares its sessions among clients, which ends the locks that they have")
                .hint("name the server itself in the URL, or a pool in session mode; ?mode=lease works with any"));
        }
        self.direct = true;
        Ok(lock)
    }

    async fn attempt(&mut self, lock: &mut PostgresLock, request: &Request) -> Result<bool> {
        // A wait left the lock in a session that says so if it is over.
        Ok(lock.has
            || lock.attempt(request.ttl).await?
            || lock.make_row().await? && lock.attempt(request.ttl).await?)
    }

    async fn count(
        &mut self,
        lock: &mut PostgresLock,
        request: &Request,
        judged: Option<(&RunRecord, u64)>,
    ) -> Result<Option<Begun>> {
        lock.own.matters = request
            .run_policy
            .as_ref()
            .is_some_and(|run_policy| run_policy.once.is_some());
        let begin = starts::begin(request, judged);
        let (metadata, hold) = (json(request.metadata.as_ref())?, request.token.hold_text());
        // A side session that is late would count another fence for this hold.
        self.client.end_abandoned().await?;
        let parameters = [
            Value::Text(&lock.name),
            Value::Pid(lock.own.pid),
            Value::Bool(lock.shared),
            Value::Int(ms(request.ttl)),
            Value::Maybe(metadata.as_deref()),
            Value::Text(&hold),
            Value::Text(lock.mode.name()),
            Value::Text(SHARED_BY),
        ];
        let now = if judged.is_none() {
            Some("timezone('utc', clock_timestamp())")
        } else {
            None
        };
        let parameters = [
            &parameters[..],
            &starts::values(&begin, metadata.as_deref(), &hold),
        ]
        .concat();
        let tables = &self.client.tables;
        let sql = |others| {
            fill(
                &starts::granting(
                    &tables.fill(&begin_sql(others, request.waiting, lock.own.transaction)),
                    &begin,
                    OWN,
                    now,
                ),
                &parameters,
            )
        };
        // The server plans the whole statement each time. Mostly there is no row of another hold,
        // and the short one will do.
        let ways = if lock.shared {
            vec![sql(true)]
        } else {
            vec![sql(false), sql(true)]
        };
        let mut side = if self.is_row() {
            Some(self.client.lend().await?)
        } else {
            None
        };
        let mut rows = Ok(Vec::new());
        for sql in ways {
            rows = lock.count(request.ttl, &sql, side.as_mut()).await;
            if !rows.as_ref().is_ok_and(Vec::is_empty) {
                break;
            }
        }
        if let Some(side) = side {
            self.client.put_back(side, &rows);
        }
        let rows = rows?;
        let Some(row) = rows.first() else {
            return Ok(None);
        };
        let mut fields = Fields::of(row);
        let (fence, now_us, drains) = (as_fence(fields.int()?), fields.int()?, fields.flag()?);
        if drains && self.client.session.is_some() {
            let trimmed = self.aside(async |table| {
                history::trim_at_times(table.session, table.tables, &lock.name, fence).await;
                Ok(())
            });
            let _: Result<()> = trimmed.await;
        }
        Ok(Some(Begun {
            fence,
            now_us,
            drains,
        }))
    }

    async fn claim(
        &mut self,
        lock: &mut PostgresLock,
        request: &Request,
    ) -> Result<(Option<String>, bool)> {
        let hold = request.token.hold_text();
        let values = [
            Value::Text(&lock.name),
            Value::Text(&hold),
            Value::Bool(lock.shared),
            Value::Text(lock.mode.name()),
        ];
        let sql = fill(
            &self
                .client
                .tables
                .fill(&schema::with_record(include_str!("sql/clear_hold.sql"))),
            &values,
        );
        let rows = self.over(lock, &sql, &[]).await?;
        let mut fields = Fields::of(rows.first().ok_or_else(no_row)?);
        Ok((fields.text_or_null()?, fields.flag()?))
    }

    async fn run_record(&mut self, lock: &mut PostgresLock) -> Result<Option<(RunRecord, u64)>> {
        let sql = fill(
            &self
                .client
                .tables
                .fill(include_str!("sql/session_starts.sql")),
            &[Value::Text(&lock.name)],
        );
        let rows = self.over(lock, &sql, &[]).await?;
        let Some(row) = rows.first() else {
            return Ok(None);
        };
        let mut fields = Fields::of(row);
        Ok(Some((
            fields.run_record()?,
            u64::try_from(fields.int()?).unwrap_or_default(),
        )))
    }

    async fn let_go(lock: &mut PostgresLock) -> Result<()> {
        lock.own.found = None;
        lock.give_back().await
    }

    async fn look_and_queue(
        &mut self,
        lock: &mut PostgresLock,
        request: &Request,
    ) -> Result<(Vec<Holder>, Option<u32>)> {
        let look = look_sql(&self.client);
        let mut position = None;
        if request.waiting {
            position = Some(
                PostgresLockTable::over(&mut lock.session, &self.client.tables)
                    .join_queue(&lock.name, request)
                    .await?,
            );
        }
        if position.is_none_or(|place| place <= crate::backends::sql::NEAR)
            || lock.own.found.is_none()
        {
            // To answer, the server lists every waiter: a waiter far behind looks once.
            let rows = lock
                .session
                .query(&look, &[Value::Text(&lock.name)])
                .await?;
            lock.left_for = left_for(&rows)?;
            lock.own.found = Some(read_holders(&rows)?.0);
        }
        Ok((lock.own.found.clone().unwrap_or_default(), position))
    }

    async fn wait(lock: &mut PostgresLock, ttl: Ttl, at_most: Duration) -> Result<bool> {
        // The server ends it by itself. However late its answer comes on a machine that is busy,
        // breaking the session off would only make it busier: each of many would log in again.
        lock.wait(ttl, at_most).await
    }

    async fn leave(&mut self, tries: &mut Tries<PostgresLock>, request: &Request) -> Result<()> {
        let (key, token) = (&request.key, &request.token);
        if let Some(mut lock) = self.take_try(tries, key, token) {
            // A lock that the session got meanwhile is released with it, and the next waiter gets
            // it.
            self.client.abandon_unless_kept(&lock.session);
            if lock.give_back().await.is_ok() {
                self.client.is_kept(&lock.session);
                self.client.session.get_or_insert(lock.session);
            }
        }
        self.client.end_abandoned().await?;
        let name = self.name_of(key);
        self.aside(async |table| table.leave_queue("", &name, token).await)
            .await
            .map(|_| ())
    }

    async fn renew(
        &mut self,
        lock: &mut PostgresLock,
        (_, fence): (&Token, Fence),
        _: Ttl,
        intent: Option<Intent>,
    ) -> Result<Option<(i64, Option<Break>)>> {
        let Some((now_us, mark)) = lock.extend(fence, None).await? else {
            return Ok(None);
        };
        match (intent, mark) {
            (Some(Intent::Extend(_)), mark) => return Ok(Some((now_us, mark))),
            (Some(_), Some(mark)) if !mark.seen => self.note_seen(&lock.name, fence).await,
            _ => {}
        }
        Ok(Some((now_us, None)))
    }

    async fn change_idle_limit(
        &mut self,
        lock: &mut PostgresLock,
        (token, fence): (&Token, Fence),
        limit: Duration,
    ) -> Result<bool> {
        let lasts = lock.extend(fence, Some(limit)).await?.is_some();
        if lasts {
            self.publish(lock, token).await;
        }
        Ok(lasts)
    }

    async fn withdraw(
        &mut self,
        tries: &mut Tries<PostgresLock>,
        key: &Key,
        token: &Token,
        _: &ReleaseInfo,
    ) -> bool {
        if let Some(lock) = tries.take(key, token) {
            self.client.abandon(lock.session);
        }
        false
    }

    async fn forget(&mut self, key: &Key, token: &Token, info: &ReleaseInfo, over: Over) {
        let which = if over == Over::Silent || info.run_state == Some(RunState::Cancelled) {
            ""
        } else {
            "AND s.server IS DISTINCT FROM {server}"
        };
        let (name, hold) = (self.name_of(key), token.hold_text());
        let how = info.end.as_ref().map(ToString::to_string);
        let remember = include_str!("sql/remember.sql")
            .replace("$4", "$3")
            .replace("$5", "$4");
        let sql = include_str!("sql/forget_hold.sql")
            .replace("{which}", which)
            .replace("{remembered}", &part(how.is_some(), &remember));
        let sql = self
            .client
            .tables
            .fill(&sql)
            .replace("{became}", &starts::outcome(info.run_state, "f.fence"));
        let _: Result<_> = self
            .aside(async |table| {
                let outcome = json(info.outcome.as_ref())?;
                let values = [
                    Value::Text(&name),
                    Value::Text(&hold),
                    Value::Maybe(how.as_deref()),
                    Value::Maybe(outcome.as_deref()),
                ];
                table.session.query(&sql, &values).await
            })
            .await;
    }

    async fn give_back(
        &mut self,
        lock: &mut PostgresLock,
        (token, fence): (&Token, Fence),
        info: &ReleaseInfo,
    ) -> Result<bool> {
        lock.end((&token.hold_text(), fence), info)
            .await
            .map(|()| true)
    }

    async fn put_away(&mut self, lock: PostgresLock, _: &Token, _: bool) {
        drop(lock);
    }

    async fn amend(&mut self, key: &Key, change: Amendment<'_>) -> Result<bool> {
        let name = self.name_of(key);
        match change {
            Amendment::Note(note) => self
                .aside(async |table| history::note(table.session, table.tables, &name, note).await)
                .await
                .map(|()| true),
            Amendment::Warn(fence, level) => {
                self.aside(async |table| table.warn(&name, fence, level).await)
                    .await
            }
            Amendment::Mark(fence, mark) => self.mark_hold(&name, fence, mark).await,
            Amendment::Evict(fence, mark) => self.evict_hold(&name, fence, mark).await,
        }
    }
}

/// Returns the statement that begins a hold; `others`: whether there may be rows of other holds;
/// `transaction`: which one has the lock.
fn begin_sql(others: bool, waiting: bool, transaction: Option<i64>) -> String {
    const IN_THE_WAY: &str = " AND s.hold <> $6 AND NOT ($3 AND s.shared) AND {left}";
    const GONE: &str =
        "CASE WHEN EXISTS (SELECT FROM others AS o WHERE o.hold <> $6) THEN {drained} END";
    let (in_the_way, drains) = if others {
        (IN_THE_WAY, GONE)
    } else {
        ("", "NULL::timestamptz")
    };
    include_str!("sql/begin_hold.sql")
        .replace("{in_the_way}", in_the_way)
        .replace(
            "{lasts}",
            &transaction.map_or_else(String::new, |id| {
                format!("AND txid_status({id}) = 'in progress'")
            }),
        )
        .replace(
            "{others}",
            &part(others, include_str!("sql/begin_hold_others.sql")),
        )
        .replace(
            "{gone_holds}",
            &part(others, include_str!("sql/begin_hold_gone.sql")),
        )
        .replace(
            "{waited}",
            &part(waiting, include_str!("sql/begin_hold_waited.sql")),
        )
        .replace("{drains}", drains)
        .replace(
            "{drained}",
            &format!(
                "clock_timestamp() + interval '{} milliseconds'",
                DRAIN_DELAY.as_millis()
            ),
        )
}
