//! `mode=row` and `mode=advisory` of MySQL and MariaDB: see [`crate::backends::sql::sessions`].
//!
//! Further interleavings, and why they are harmless:
//! - *The reply to a release is lost.* The release removed and recorded its hold in one step: a
//!   retry finds nothing to record.
//! - *The release can't be recorded.* dlock gives the lock back without a history entry.
//! - *A grant is undone whose answer was lost.* dlock deletes its rows, over its session if that
//!   session still answers. If the grant runs later, the grant finds that its hold was undone, and
//!   writes nothing.
//! - *A mark can't be read.* The holder continues, and the breaking client ends its session when
//!   its lease is over. dlock notes a mark as seen before it extends the hold for the drain.
//! - *A hold is evicted that just ended.* Its session never keeps another lock: what the session
//!   does for its client is asked again.
//! - *Readers come one after the other while a writer waits.* No session shares a row for which a
//!   writer waits, not even a session that would not wait.
//! - *A reader vanishes while others hold the lock.* Its row counts while its session has its
//!   presence lock ([`readers`](super::readers)): the next holder of the row writes it to the
//!   history. A writer has the row alone, and knows that all readers are gone.
//! - *A vanished hold's lease ends, or a reader vanishes, during the next grant.* The grant
//!   replaces no record whose history entry it has not written, and is repeated.

use std::time::Duration;

use super::{
    Mysql,
    connection::{Answer, Connection},
    history,
    life::Life,
    names::advisory,
    options::MysqlOptions,
    readers::own_presence,
    schema,
    session_holders::{left_for, look_sql, read_holders},
    session_lock::{MysqlLock, MysqlSessionPart, ReadMark, first_row, read_mark},
    starts,
    statement::Value,
    table::{join, leaving, position},
};
use crate::{
    backends::sql::{
        self, Begun, Client, Fields, HasClient, Over, Session as _, SessionLocks, SessionStore,
        SqlMode, Tries, json,
    },
    lock::{
        Amendment, Break, Capabilities, Fence, Holder, Intent, Key, Mode, ReleaseInfo, Request,
        Result, RunRecord, RunState, Token, Ttl,
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
pub(super) type Sessions = SessionLocks<MysqlSessions>;

/// A client whose sessions keep locks. The [`Client`]'s own session serves everything else.
pub(in crate::backends) struct MysqlSessions {
    pub(super) client: Client<Mysql>,
}

impl Sessions {
    /// Returns a backend for `options`, without I/O.
    pub fn new(options: MysqlOptions) -> Self {
        Self::of(MysqlSessions {
            client: Client::new(options),
        })
    }
}

impl HasClient for MysqlSessions {
    type Database = Mysql;

    fn client(&self) -> &Client<Mysql> {
        &self.client
    }

    fn client_mut(&mut self) -> &mut Client<Mysql> {
        &mut self.client
    }
}

impl MysqlSessions {
    pub(super) fn is_row(&self) -> bool {
        self.client.mode() == SqlMode::Row
    }

    pub(super) fn name_of(&self, key: &Key) -> String {
        self.client.names.of(key)
    }

    /// Returns the argument of `GET_LOCK` for a key, as SQL.
    pub(super) fn lock_of(&self, key: &Key) -> String {
        advisory(&self.client.options, key, &self.name_of(key))
    }

    /// Runs statements over the client's own session, which may still be busy with a dropped
    /// request.
    pub(super) async fn aside(&mut self, batch: &str) -> Result<Vec<Answer>> {
        let mut session = self.side().await?;
        let answers = session.ask(batch).await;
        self.client.put_back(session, &answers);
        answers
    }

    /// As [`MysqlSessions::aside`], with the answers up to a denial.
    async fn try_aside(&mut self, batch: &str) -> Result<Vec<Answer>> {
        let mut session = self.side().await?;
        let answers = session.try_ask(batch).await;
        self.client.put_back(session, &answers);
        answers.map(|answers| answers.answers)
    }

    /// Runs statements over the session that has the lock, or outside its transaction.
    async fn over(&mut self, lock: &mut MysqlLock, batch: &str) -> Result<Vec<Answer>> {
        if self.is_row() {
            self.aside(batch).await
        } else {
            lock.session.ask(batch).await
        }
    }

    /// Takes the client's own session out, even if it is still busy. A session that is not put back
    /// counts as abandoned.
    pub(super) async fn side(&mut self) -> Result<Connection> {
        let session = match self.client.session.take().filter(Connection::is_alive) {
            Some(session) => session,
            None => self.client.open().await?,
        };
        self.client.abandon_unless_kept(&session);
        Ok(session)
    }

    /// Publishes a renewal, and asks for the mark of a break, over another session than the one in
    /// the transaction, so that the change is committed. A failure or delay must not stop the
    /// renewal.
    async fn publish(
        &mut self,
        lock: &MysqlLock,
        hold: (&Token, Fence),
        length: Ttl,
        intent: Option<Intent>,
    ) -> ReadMark {
        let touch = lock.touch(hold, length.get(), intent);
        let patience = (length.get() / 30).clamp(Duration::from_millis(50), Duration::from_secs(1));
        match tokio::time::timeout(patience, self.try_aside(&touch)).await {
            Ok(Ok(answers)) => read_mark(&answers, 0, intent),
            _ => ReadMark::default(),
        }
    }

    /// Gives back whatever a session has of a lock, as if it had never had it.
    fn letting_go(&self, key: &Key, token: &Token, lock: &MysqlLock, undo: &str) -> String {
        if lock.shares_row() {
            // Without the presence lock nothing more is written of the hold.
            let presence =
                own_presence(&self.client.tables, &self.name_of(key), &token.hold_text());
            return format!("DO RELEASE_LOCK({presence});\n{undo}COMMIT;\n");
        }
        if self.is_row() {
            format!("{undo}COMMIT;\n")
        } else {
            format!("{undo}DO RELEASE_LOCK({});\n", self.lock_of(key))
        }
    }

    /// Removes the rows of an unused grant. With `permanently`, no request repeats the grant, and a
    /// late grant writes nothing.
    fn undoing(&self, key: &Key, token: &Token, permanently: bool) -> String {
        let undo = if permanently {
            include_str!("sql/undo_permanently.sql")
        } else {
            include_str!("sql/forget_hold.sql")
        };
        self.removing(undo, key, token, Some(RunState::Cancelled), "1")
    }

    fn removing(
        &self,
        undo: &str,
        key: &Key,
        token: &Token,
        run_state: Option<RunState>,
        which: &str,
    ) -> String {
        let (name, root, outcome) = (
            self.name_of(key),
            token.hold_text(),
            starts::outcome(run_state),
        );
        let values = [
            ("name", Value::Bytes(&name)),
            ("root", Value::Text(&root)),
            ("became", Value::Sql(&outcome)),
            ("which", Value::Sql(which)),
        ];
        let read = if self.is_row() {
            "\nDELETE FROM :readers WHERE name = :name AND root = :root AND :which;"
        } else {
            ""
        };
        self.client.tables.fill(&format!("{undo}{read}"), &values)
    }

    /// Removes the records of a hold that ended with its server, or that dlock ends, and was given
    /// back since: the next holder need not wait. Its history entry is written as if it had been
    /// released.
    async fn forget_over(
        &mut self,
        key: &Key,
        token: &Token,
        info: &ReleaseInfo,
        over: Over,
    ) -> Result<()> {
        let session = self.client.lend().await?;
        let gone = if over == Over::Silent {
            "1".into()
        } else {
            format!("NOT {}", Life::of(&session.server).lives)
        };
        self.client.put_back(session, &Ok(()));
        let (name, root) = (self.name_of(key), token.hold_text());
        let how = info.end.as_ref().map(ToString::to_string);
        let outcome = json(info.outcome.as_ref())?;
        let values = [
            ("name", Value::Bytes(&name)),
            ("root", Value::Text(&root)),
            ("session", Value::Sql("session")),
            ("ours", Value::Sql(&gone)),
            ("how", Value::text_or_null(how.as_deref())),
            ("outcome", Value::text_or_null(outcome.as_deref())),
        ];
        let remember = match how {
            Some(_) if self.is_row() => concat!(
                include_str!("sql/remember_hold.sql"),
                include_str!("sql/remember_reading.sql")
            ),
            Some(_) => include_str!("sql/remember_hold.sql"),
            None => "",
        };
        let remember = self.client.tables.fill(remember, &values);
        let forget = self.removing(
            include_str!("sql/forget_hold.sql"),
            key,
            token,
            info.run_state,
            &gone,
        );
        self.aside(&(remember + &forget)).await.map(|_| ())
    }
}

impl SessionStore for MysqlSessions {
    type Own = MysqlSessionPart;
    const GRANT_LEAVES_QUEUE: bool = false;

    async fn open_lock(
        &mut self,
        request: &Request,
        _: Option<&mut Connection>,
    ) -> Result<MysqlLock> {
        let (name, shared) = (self.name_of(&request.key), request.mode == Mode::Shared);
        let tables = &self.client.tables;
        let lock = if shared {
            own_presence(tables, &name, &request.token.hold_text())
        } else {
            self.lock_of(&request.key)
        };
        let lock = MysqlLock::open(&self.client.options, tables, name, lock, shared).await?;
        self.client.notices = lock.session.server.notices();
        Ok(lock)
    }

    async fn attempt(&mut self, lock: &mut MysqlLock, request: &Request) -> Result<bool> {
        // An acquire that is given up must not arrive when its answer is no longer waited for.
        lock.session.drop_unsent_on_close(true);
        lock.attempt(request).await
    }

    async fn count(
        &mut self,
        lock: &mut MysqlLock,
        request: &Request,
        judged: Option<(&RunRecord, u64)>,
    ) -> Result<Option<Begun>> {
        let mut side = if self.is_row() {
            Some(self.client.lend().await?)
        } else {
            None
        };
        let counted = lock.count(request, judged, side.as_mut()).await;
        if let Some(side) = side {
            self.client.put_back(side, &counted);
        }
        let begun = counted?;
        if begun.is_some() {
            lock.session.drop_unsent_on_close(false);
        }
        Ok(begun)
    }

    async fn claim(
        &mut self,
        lock: &mut MysqlLock,
        request: &Request,
    ) -> Result<(Option<String>, bool)> {
        let (root, life) = (request.token.hold_text(), Life::of(&lock.session.server));
        let carry = schema::carry("l", "s");
        let values = [
            ("name", Value::Bytes(&lock.name)),
            ("carry", Value::Sql(&carry)),
            ("root", Value::Text(&root)),
            ("mode", Value::Text(lock.mode.name())),
            ("alone", Value::Int((!lock.shared).into())),
        ];
        let clear = self.client.tables.fill(
            include_str!("sql/clear_hold.sql"),
            &[&values[..], &life.values()].concat(),
        );
        let answers = self.over(lock, &clear).await?;
        let mut fields = first_row(&answers, 4)?;
        Ok((fields.text_or_null()?, fields.int()? != 0))
    }

    async fn run_record(&mut self, lock: &mut MysqlLock) -> Result<Option<(RunRecord, u64)>> {
        let look = self.client.tables.fill(
            include_str!("sql/session_starts.sql"),
            &[("name", Value::Bytes(&lock.name))],
        );
        let answers = self.over(lock, &look).await?;
        let mut fields = first_row(&answers, 0)?;
        Ok(Some((
            fields.run_record()?,
            u64::try_from(fields.int()?).unwrap_or_default(),
        )))
    }

    async fn let_go(lock: &mut MysqlLock) -> Result<()> {
        lock.let_go().await?;
        lock.session.drop_unsent_on_close(false);
        Ok(())
    }

    async fn look_and_queue(
        &mut self,
        lock: &mut MysqlLock,
        request: &Request,
    ) -> Result<(Vec<Holder>, Option<u32>)> {
        let (name, tables) = (self.name_of(&request.key), &self.client.tables);
        let mut batch = look_sql(&self.client, &request.key, &lock.session.server);
        if request.waiting {
            batch += &join(tables, &name, request, false)?;
            batch += &position(tables, &name, request);
        }
        let answers = lock.session.ask(&batch).await?;
        let (holders, _) = read_holders(&answers, 0)?;
        lock.left_for = left_for(&holders);
        let row = answers
            .last()
            .and_then(|answer| answer.rows.first())
            .filter(|_| request.waiting);
        let position = row.map(|row| Fields::of(row).int()).transpose()?;
        Ok((
            holders,
            position
                .and_then(|position| u32::try_from(position).ok())
                .filter(|position| *position > 0),
        ))
    }

    async fn wait(lock: &mut MysqlLock, ttl: Ttl, at_most: Duration) -> Result<bool> {
        lock.wait(ttl, at_most).await
    }

    async fn leave(&mut self, tries: &mut Tries<MysqlLock>, request: &Request) -> Result<()> {
        let (key, token) = (&request.key, &request.token);
        // A lock that the session got meanwhile is released with it, and the next waiter gets it.
        let mut leave = leaving(&self.client.tables, &self.name_of(key), token);
        match self.take_try(tries, key, token) {
            Some(lock) => {
                leave =
                    self.letting_go(key, token, &lock, &self.undoing(key, token, false)) + &leave;
                self.client.session = Some(lock.session);
            }
            None => self.client.end_abandoned().await?,
        }
        let left = self.aside(&leave).await;
        if left.is_err()
            && let Some(session) = self.client.session.take()
        {
            // It may still have the lock.
            self.client.abandon(session);
        }
        left.map(|_| ())
    }

    async fn renew(
        &mut self,
        lock: &mut MysqlLock,
        hold: (&Token, Fence),
        length: Ttl,
        intent: Option<Intent>,
    ) -> Result<Option<(i64, Option<Break>)>> {
        if self.is_row() {
            // First, since the session's silence is counted from what is asked last.
            let read = self.publish(lock, hold, length, intent).await;
            if lock.session.is_alive()
                && let Some(mark) = lock.heed(read, intent)?
            {
                return Ok(Some((0, Some(mark))));
            }
        }
        let Some((now_us, read)) = lock.renew(None, hold, intent).await? else {
            return Ok(None);
        };
        let mark = if self.is_row() {
            None
        } else {
            lock.heed(read, intent)?
        };
        Ok(Some((now_us, mark)))
    }

    async fn change_idle_limit(
        &mut self,
        lock: &mut MysqlLock,
        hold: (&Token, Fence),
        limit: Duration,
    ) -> Result<bool> {
        Ok(lock.renew(Some(limit), hold, None).await?.is_some())
    }

    async fn withdraw(
        &mut self,
        tries: &mut Tries<MysqlLock>,
        key: &Key,
        token: &Token,
        info: &ReleaseInfo,
    ) -> bool {
        // If the session answers, it gives the lock back, in order behind what may still be under
        // way. If not, the session is ended over another one, and the lock with it, and the rows of
        // the grant are removed.
        let Some(mut lock) = self.take_try(tries, key, token) else {
            return false;
        };
        let undo = self.undoing(key, token, info.end.is_none());
        let let_go = self.letting_go(key, token, &lock, &undo);
        let waits = lock.session.is_open();
        self.client.abandon_unless_kept(&lock.session);
        let elsewhere = async {
            if waits {
                std::future::pending::<()>().await;
            }
            self.client.end_abandoned().await?;
            self.aside(&undo).await
        };
        let answered = tokio::select! {
            answer = lock.session.ask(&let_go) => answer.is_ok(),
            undone = elsewhere => return undone.is_ok(),
        };
        if answered {
            self.client.is_kept(&lock.session);
            self.client.session = Some(lock.session);
        }
        answered
    }

    async fn forget(&mut self, key: &Key, token: &Token, info: &ReleaseInfo, over: Over) {
        // The rows must not be taken for a holder that vanished, nor for a start.
        let _: Result<()> = if over == Over::Unused && info.end.is_none() {
            self.aside(&self.undoing(key, token, true))
                .await
                .map(|_| ())
        } else {
            self.forget_over(key, token, info, over).await
        };
    }

    async fn give_back(
        &mut self,
        lock: &mut MysqlLock,
        hold: (&Token, Fence),
        info: &ReleaseInfo,
    ) -> Result<bool> {
        lock.give_back(hold, info).await
    }

    async fn put_away(&mut self, mut lock: MysqlLock, token: &Token, queued: bool) {
        if queued {
            // The lock is given back already: no client waits for this, and nothing depends on it.
            let _ = lock
                .session
                .ask(&leaving(&self.client.tables, &lock.name, token))
                .await;
        }
        self.client.session.get_or_insert(lock.session);
    }

    async fn amend(&mut self, key: &Key, change: Amendment<'_>) -> Result<bool> {
        let name = self.name_of(key);
        match change {
            Amendment::Note(note) => {
                let mut session = self.client.take().await?;
                let noted = history::note(&mut session, &self.client.tables, &name, note).await;
                self.client.session = Some(session);
                noted.map(|()| true)
            }
            Amendment::Warn(fence, level) => {
                let claim = history::claim(&self.client.tables, &name, fence, level);
                self.aside(&claim)
                    .await
                    .map(|answers| history::is_claimed(&answers))
            }
            Amendment::Mark(fence, mark) => self
                .put_mark(key, fence, mark)
                .await
                .map(|found| found.is_some()),
            Amendment::Evict(fence, mark) => self.end_holder(key, fence, mark).await,
        }
    }
}
