//! The database and the lock file as one store: a row is read with the kernel's word on which
//! processes live, and swapped.
//!
//! Nothing here locks or unlocks the bytes of holds: [`super::Sqlite`] does that around each step.

mod store;

use std::{
    collections::HashMap, fs::DirBuilder, os::unix::fs::DirBuilderExt, path::PathBuf, sync::Arc,
};

use super::{
    SqliteOptions,
    database::{Database, ListedWaiter, StoredRow},
    failure, location,
    lock_file::{Bytes, LockFile},
    lock_file_watch::LockFileWatch,
    ours,
    slot::Slot,
    watch::PathWatch,
};
use crate::{
    backends::cas::{Base, Outside, Snapshot, in_order},
    lock::{
        Entry, Error, Holder, Key, Kind, Mode, Progress, Request, Result, Token,
        document::{Document, QueueEntry},
    },
};

/// How soon a request with a position in the queue asks again for a lock that another process is
/// about to have. A grant takes less.
const PASSING_MS: u64 = 20;

/// One client of a database and its lock file.
pub(super) struct SqliteClient {
    pub options: SqliteOptions,
    /// The canonical path, once its directory exists.
    resolved: Option<PathBuf>,
    pub file: Option<Arc<LockFile>>,
    /// The lock file is open in a guardian and a command too, so that no other one will do.
    pub prepared: bool,
    pub database: Option<Database>,
    pub slots: HashMap<Key, Slot>,
    pub lock_file_watch: Option<LockFileWatch>,
    pub watch: Option<PathWatch>,
    /// Other processes were in the way, and so are likely to wait.
    pub contended: bool,
    /// Watchers of the lock file must be woken.
    notify_watchers: bool,
}

/// What a write depends on.
pub(super) struct SqliteVersion {
    revision: i64,
    /// The lock file that tells which processes live.
    lock_file: i64,
    /// The rows of waiters that the document has taken in.
    absorbed: Vec<i64>,
}

/// The kernel's word on which processes live. What it can't say counts as alive.
#[derive(Clone, Copy)]
enum LiveProcesses<'a> {
    /// For a process that may have bytes of its own, whose lock file is the one that other
    /// processes take.
    Slot(&'a Slot),
    /// For other processes. Without a file no byte is locked.
    File(Option<&'a LockFile>, Bytes),
}

impl LiveProcesses<'_> {
    fn has_process(self, hold: &str) -> bool {
        match self {
            Self::Slot(slot) => slot.has_process(hold).unwrap_or(true),
            Self::File(file, bytes) => file.is_some_and(|file| {
                file.others_write(bytes.of_hold(hold).first())
                    .unwrap_or(true)
            }),
        }
    }

    fn has_waiter(self, hold: &str) -> bool {
        match self {
            Self::Slot(slot) => slot.has_waiter(hold).unwrap_or(true),
            Self::File(file, bytes) => file.is_some_and(|file| {
                file.others_write(bytes.of_hold(hold).alive())
                    .unwrap_or(true)
            }),
        }
    }

    fn is_locked_alone(self) -> Result<bool> {
        let locked = match self {
            Self::Slot(slot) => slot.is_locked_alone(),
            Self::File(file, bytes) => {
                file.map_or(Ok(false), |file| file.others_have_it_alone(bytes))
            }
        };
        locked.map_err(|error| ours(&error))
    }

    /// Which lock file it speaks of; zero, which no file has, if there is none.
    fn file(self) -> i64 {
        match self {
            Self::Slot(slot) => slot.file.id(),
            Self::File(file, _) => file.map_or(0, LockFile::id),
        }
    }
}

impl SqliteClient {
    pub(super) fn new(options: SqliteOptions) -> Self {
        Self {
            options,
            resolved: None,
            file: None,
            prepared: false,
            database: None,
            slots: HashMap::new(),
            lock_file_watch: None,
            watch: None,
            contended: false,
            notify_watchers: false,
        }
    }

    /// Checks the directory, and creates it where that is up to dlock.
    pub(super) fn place(&mut self) -> Result<()> {
        self.follow_link();
        let directory = location::directory(&self.options.path);
        if self.options.create_directory && !directory.exists() {
            let made = DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(directory);
            made.map_err(|error| failure::files(&error, directory))?;
        }
        self.resolved = Some(location::resolved(&self.options.path));
        location::check_file_system(location::directory(&self.options.path))
    }

    /// The lock file lies next to the database itself, not next to one of its names.
    pub(super) fn follow_link(&mut self) {
        if self.options.path.is_symlink()
            && let Ok(target) = self.options.path.canonicalize()
        {
            self.options.path = target;
        }
    }

    pub(super) fn open_lock_file(&mut self, inherited: bool) -> Result<Arc<LockFile>> {
        self.place()?;
        let file = LockFile::open(&self.options.path, inherited);
        file.map(Arc::new)
            .map_err(|error| failure::files(&error, &LockFile::path_for(&self.options.path)))
    }

    /// The lock file for taking locks, opened if need be.
    pub(super) fn lock_file(&mut self) -> Result<Arc<LockFile>> {
        if let Some(file) = &self.file
            && (self.prepared || !self.slots.values().all(Slot::is_idle) || file.is_current())
        {
            return Ok(Arc::clone(file));
        }
        let file = self.open_lock_file(false)?;
        self.slots.clear();
        self.lock_file_watch = None;
        Ok(Arc::clone(self.file.insert(file)))
    }

    /// The lock file that the path names now, if there is one.
    fn file_now(&self) -> Result<Option<Arc<LockFile>>> {
        match &self.file {
            Some(file) if file.is_current() => Ok(Some(Arc::clone(file))),
            _ => {
                let path = &self.options.path;
                let file = LockFile::open_to_look(path)
                    .map_err(|error| failure::files(&error, &LockFile::path_for(path)))?;
                Ok(file.map(Arc::new))
            }
        }
    }

    pub(super) fn slot(&mut self, key: &Key) -> Result<&mut Slot> {
        let file = self.lock_file()?;
        let bytes = self.bytes(key);
        Ok(self
            .slots
            .entry(key.clone())
            .or_insert_with(|| Slot::new(&file, bytes)))
    }

    pub(super) fn bytes(&self, key: &Key) -> Bytes {
        Bytes::of(&[self.options.namespace.as_str(), key.as_str()])
    }

    /// Whether a hold is one of this process and the kernel confirms its bytes; and whether its
    /// lock file is the one that other processes take.
    pub(super) fn confirm(&self, key: &Key, token: &Token) -> Result<(bool, bool)> {
        match self.slots.get(key) {
            Some(slot) if slot.has(token) => {
                let has_process = slot
                    .has_process(&token.hold_text())
                    .map_err(|error| ours(&error))?;
                Ok((has_process, slot.file.is_current()))
            }
            _ => Ok((false, true)),
        }
    }

    /// The database, opened for writing if need be, and anew if the path names another one by now
    /// or the connection is of no more use. Also returns whether it was created.
    pub(super) async fn open(&mut self) -> Result<(&mut Database, bool)> {
        let path = &self.options.path;
        let useless = match self.database.as_mut().filter(|database| database.writable) {
            Some(database) => !database.is_current(path) || database.is_stuck().await,
            None => false,
        };
        if let Some(old) = self.database.take_if(|_| useless) {
            old.close();
        }
        let mut created = false;
        if !self
            .database
            .as_ref()
            .is_some_and(|database| database.writable)
        {
            let opened = Database::open(path).await?;
            created = opened.1;
            self.database = Some(opened.0);
        }
        let database = self.database.as_mut();
        database
            .map(|database| (database, created))
            .ok_or_else(|| failure::statement(sqlx::Error::WorkerCrashed))
    }

    /// Opens what exists for reading: creates nothing, writes nothing.
    async fn open_to_look(&mut self) -> Result<Option<Arc<LockFile>>> {
        let path = &self.options.path;
        let directory = location::directory(path);
        if !self.options.create_directory {
            directory
                .metadata()
                .map_err(|error| failure::files(&error, path))?;
        }
        location::check_file_system(directory)?;
        if self.database.is_none() {
            self.database = Database::open_to_look(path).await?;
        }
        self.file_now()
    }

    /// Closes the database after an error that leaves its state unknown.
    pub(super) fn give_up_on(&mut self, error: &Error) {
        if error.effect == crate::lock::Effect::Unknown
            && let Some(database) = self.database.take()
        {
            database.close();
        }
    }

    /// Wakes the watchers of the lock file if a step asked for it.
    pub(super) fn notify_watchers(&mut self) {
        if std::mem::take(&mut self.notify_watchers)
            && let Ok(Some(file)) = self.file_now()
        {
            file.notify_watchers();
        }
    }

    pub(super) fn wake_watchers(&mut self) {
        self.notify_watchers = true;
    }

    /// The lock file that other processes take now, and what this process has in it.
    fn witness<'a>(&'a self, key: &Key, file: Option<&'a LockFile>) -> LiveProcesses<'a> {
        match self.slots.get(key) {
            Some(slot) if file.is_some_and(|file| file.id() == slot.file.id()) => {
                LiveProcesses::Slot(slot)
            }
            _ => LiveProcesses::File(file, self.bytes(key)),
        }
    }

    /// A row as the kernel sees it: holds without a process are over, holds with one are not,
    /// whatever their times say.
    fn snapshot(
        &self,
        key: &Key,
        row: StoredRow,
        listed: Vec<ListedWaiter>,
        file: Option<&LockFile>,
    ) -> Snapshot<SqliteVersion> {
        let witness = self.witness(key, file);
        let (mut document, now) = (row.document, row.now);
        if row.lock_file != witness.file() {
            // Nothing is known of processes that have bytes of another file: their leases are what
            // is left.
            document.detach();
        }
        let mut absorbed = Vec::new();
        for waiter in listed {
            absorbed.push(waiter.place);
            // A hold is granted before its row goes.
            if document.has_hold(&waiter.hold) || !witness.has_waiter(&waiter.hold) {
                continue;
            }
            let since = waiter.since_ms.min(now);
            match waiter.queued {
                Some(queued) => document.enqueue(QueueEntry {
                    since,
                    seen: now,
                    ..queued
                }),
                None => document.absorb(waiter.hold, waiter.metadata, since, now),
            }
        }
        document.witness(
            now,
            |hold| witness.has_process(hold),
            |hold| witness.has_waiter(hold),
        );
        let version = SqliteVersion {
            revision: row.revision,
            lock_file: witness.file(),
            absorbed,
        };
        Snapshot {
            document,
            now_us: now * 1000,
            fence: row.fence,
            outside: None,
            base: Base::Document,
            apart: false,
            version,
        }
    }

    /// Adds what the bytes say to the document, for a request.
    fn read_for_request(
        &mut self,
        request: &Request,
        snapshot: &mut Snapshot<SqliteVersion>,
    ) -> Result<()> {
        let Some(slot) = self.slots.get_mut(&request.key) else {
            return Err(lost_slot());
        };
        let (token, now) = (&request.token, snapshot.now());
        let mut document = snapshot.document.clone();
        document.expire(now);
        let plain = !in_order(request) && is_plain(&document);
        let waits = request.waiting && request.entry == Entry::Fresh && !plain;
        slot.note_position(token, &document);
        // Waiters join by a row of their own, so that a crowd of them does not change one document
        // at the same time.
        snapshot.apart = plain || waits && document.position(token).is_none();
        let (secured, before) = (slot.ours(token).is_some(), slot.passed.take());
        if !secured && !request.detached && document.fence(token).is_some() {
            return Err(Error::new(
                Kind::Unavailable,
                "another process has this very hold",
            ));
        }
        if !secured && document.has_room(request.mode, None) {
            // Another process is about to have the lock. Earlier waiters outside of the document
            // would lose their position to one in it.
            let passed = !plain
                && !document.has_holders()
                && before != Some(*token)
                && document.position(token).is_none();
            snapshot.apart |= passed;
            slot.passed = passed.then_some(*token);
            let (transient, known) = (!document.has_holders(), document.holders(now).pop());
            let left = passed.then_some(PASSING_MS);
            snapshot.outside = Some(Outside {
                holder: known.unwrap_or_else(unknown_holder),
                left,
                transient,
            });
        }
        slot.granted = None;
        (slot.seen, slot.seen_at) = (document, now);
        Ok(())
    }

    /// A process that has the lock alone and is not in the document.
    fn outside(
        &self,
        key: &Key,
        snapshot: &Snapshot<SqliteVersion>,
        file: Option<&LockFile>,
    ) -> Result<Option<Outside>> {
        let mut document = snapshot.document.clone();
        document.expire(snapshot.now());
        let transient = !document.has_holders() && self.witness(key, file).is_locked_alone()?;
        Ok(transient.then(|| Outside {
            holder: unknown_holder(),
            left: None,
            transient: true,
        }))
    }

    /// Lists a waiter, and returns its position in the queue, from 1. Each new waiter removes more
    /// dead ones than it can become itself.
    async fn list_waiter(&mut self, request: &Request) -> Result<Option<u32>> {
        let Self {
            options,
            database,
            slots,
            ..
        } = self;
        let (Some(slot), Some(database)) = (slots.get_mut(&request.key), database.as_mut()) else {
            return Ok(None);
        };
        // A waiter that can't show that it lives gets no position.
        if slot.passed == Some(request.token) || !slot.begin_to_wait(&request.token) {
            return Ok(None);
        }
        let queued = in_order(request).then(|| QueueEntry::new(request, slot.seen_at));
        database
            .add_waiter(&options.namespace, request, queued.as_ref())
            .await?;
        database.prepare_to_take().await?;
        for hold in database
            .first_waiters(&options.namespace, &request.key)
            .await?
        {
            if !slot.has_waiter(&hold).map_err(|error| ours(&error))? {
                database
                    .remove_waiter(&options.namespace, &request.key, &hold)
                    .await?;
            }
        }
        Ok(queued.and_then(|queued| {
            slot.seen.enqueue(queued);
            let before = slot.seen.position(&request.token)?;
            u32::try_from(before + 1).ok()
        }))
    }

    /// Removes locks that were unused for so many ms, and history that is older. Returns the number
    /// of locks.
    pub(super) async fn sweep(&mut self, unused_ms: u64, progress: &Progress) -> Result<u64> {
        let (namespace, file) = (self.options.namespace.clone(), self.file_now()?);
        let rows = self.open().await?.0.scan(&namespace, "", progress).await?;
        let mut unused = Vec::new();
        for row in rows
            .into_iter()
            .filter(|row| row.now.saturating_sub(row.changed_ms) > unused_ms)
        {
            let Ok(key) = Key::new(row.key.clone()) else {
                continue;
            };
            let (revision, name) = (row.revision, row.key.clone());
            let snapshot = self.snapshot(&key, row, Vec::new(), file.as_deref());
            let (now, mut document) = (snapshot.now(), snapshot.document);
            let ended = document
                .ends()
                .is_none_or(|ends| now.saturating_sub(ends) > unused_ms);
            document.expire(now);
            if ended
                && document.queue().is_empty()
                && !document.has_holders()
                && document.run_record().relevant(now).is_zero()
            {
                unused.push(StoredRow {
                    key: name,
                    revision,
                    ..StoredRow::default()
                });
            }
        }
        let unused_ms = i64::try_from(unused_ms).unwrap_or(i64::MAX);
        self.open()
            .await?
            .0
            .collect(&namespace, &unused, unused_ms, progress)
            .await
    }
}

/// Whether no rule concerns any waiter for the whole lock: it has at most an exclusive holder, and
/// no queue.
pub(super) fn is_plain(document: &Document) -> bool {
    document.queue().is_empty() && (document.exclusive_owner().is_some() || !document.has_holders())
}

/// A holder that only the lock file knows.
pub(super) fn unknown_holder() -> Holder {
    Holder::unknown(Mode::Exclusive)
}

fn lost_slot() -> Error {
    Error::new(
        Kind::Internal,
        "the key's place in the lock file is unknown",
    )
}
