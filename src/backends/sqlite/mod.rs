//! SQLite: locks of one host, the embedded default.
//!
//! Two places record the holders of a lock. The **lock file** ([`lock_file`]) is the authority on holds that processes
//! stand behind ("attached", `dlock run`): the kernel keeps them as long as any of those processes lives, however
//! long it is frozen and whatever the clock does, and frees them with the last one. The **database** records the holder, its
//! start and its fence, and is the authority on detached holds (`dlock acquire`), which last until their lease ends by
//! this host's wall clock: a clock that is set forward ends them early, one that is set back keeps them longer.
//!
//! | taking a lock anew | the bytes are free | another process has them |
//! |---|---|---|
//! | no row, or given back, or of an attached hold | granted | busy |
//! | row of a running detached hold | busy | busy |
//!
//! The order is always: bytes, then row; back: row, then bytes. A detached hold has the bytes while its row is written.
//!
//! Holders that **share** a lock ([`share`]) keep its byte locked for reading, so that the kernel keeps them and exclusive holders
//! apart, and a byte for each of their holds, which tells whether it lives. The list of shares, and of the waiters for a share or in order, is one
//! line of JSON in the row ([`document`]). It is empty while all holders and waiters want the lock alone and in no order; their
//! path only checks that.
//!
//! If database and lock file are both replaced under a holder, nothing is left that keeps others out. The holder is notified at once
//! ([`watch`]), and the next one doesn't start before that took effect ([`LockFile::open`]). An exclusive hold outlasts either of them; a share
//! ends with the database, since the lock file can't tell readers from permits, nor count permits.
//!
//! This module may not: sleep (but in `wait`, in `watch`, and while a store is created), retry, read a clock, start a thread or open the database before the first question
//! (the guardian is forked between [`Tether::prepare`] and that), or open the database file by itself (closing it
//! again would drop SQLite's own locks).

mod acquire;
mod alarm;
mod breaking;
mod document;
pub mod examine;
mod failure;
mod history;
mod hold;
mod latch;
mod location;
mod lock_file;
mod look;
mod row;
pub(super) mod schema;
mod share;
mod slot;
mod starts;
mod store;
mod waiting;
mod watch;

#[cfg(test)]
mod tests;

use std::{
    collections::HashMap,
    fs::DirBuilder,
    os::unix::fs::DirBuilderExt,
    path::{self, Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;

pub use self::location::default_path;
use self::{
    alarm::Alarm,
    lock_file::{Bytes, LockFile, Range},
    slot::Slot,
    store::Store,
    watch::Watch,
};
use crate::lock::{
    Amendment, Attempt, Backend, Capabilities, Error, History, Identity, Intent, Key, Kind, LastResort, LockState, Namespace, Release,
    ReleaseInfo, Renewal, Request, Result, Tether, Token, Wake, Which,
};

pub(super) const CAPABILITIES: Capabilities = Capabilities {
    shared: true,
    permits: true,
    fair: true,
    history: true,
    run_policy: true,
    breakable: true,
    ..Capabilities::usual("sqlite")
};

/// Where the locks are kept.
#[derive(Clone, Debug)]
pub struct Options {
    /// The database; `<path>.lock` next to it is the lock file.
    pub path: PathBuf,
    /// What keys are put under.
    pub namespace: Namespace,
    /// Create the directory, for its owner alone, if it isn't there.
    pub create_directory: bool,
}

impl Options {
    /// A database in a directory that is there.
    pub fn at(path: impl Into<PathBuf>, namespace: Namespace) -> Self {
        Self { path: path.into(), namespace, create_directory: false }
    }

    /// The default database, whose directory is created when it is first used.
    ///
    /// # Errors
    /// As [`default_path`].
    pub fn at_default(namespace: Namespace) -> Result<Self> {
        Ok(Self { path: default_path()?, namespace, create_directory: true })
    }
}

/// A SQLite database and the lock file next to it.
pub struct Sqlite {
    options: Options,
    /// The one spelling of the path, once its directory is there.
    resolved: Option<PathBuf>,
    file: Option<Arc<LockFile>>,
    /// The lock file is open in a guardian and a command too, so that no other one will do.
    prepared: bool,
    store: Option<Store>,
    slots: HashMap<Key, Slot>,
    alarm: Option<Alarm>,
    watch: Option<Watch>,
    /// Others were in the way, and so are likely to wait.
    contended: bool,
}

impl Sqlite {
    /// A backend that has opened nothing yet.
    pub fn new(mut options: Options) -> Self {
        // Another working directory later must not mean another database, and a first `file:` no URI to SQLite.
        if let Ok(absolute) = path::absolute(&options.path) {
            options.path = absolute;
        }
        Self {
            options,
            resolved: None,
            file: None,
            prepared: false,
            store: None,
            slots: HashMap::new(),
            alarm: None,
            watch: None,
            contended: false,
        }
    }

    /// Checks the place, and makes it if it is ours to make.
    fn place(&mut self) -> Result<()> {
        // The lock file lies next to the database itself, not next to one of its names.
        if self.options.path.is_symlink()
            && let Ok(target) = self.options.path.canonicalize()
        {
            self.options.path = target;
        }
        let directory = location::directory(&self.options.path);
        if self.options.create_directory && !directory.exists() {
            let made = DirBuilder::new().recursive(true).mode(0o700).create(directory);
            made.map_err(|error| failure::files(&error, directory))?;
        }
        self.resolved = Some(location::resolved(&self.options.path));
        location::check_file_system(location::directory(&self.options.path))
    }

    fn open_lock_file(&mut self, inherited: bool) -> Result<Arc<LockFile>> {
        self.place()?;
        let file = LockFile::open(&self.options.path, inherited);
        file.map(Arc::new).map_err(|error| failure::files(&error, &LockFile::path_for(&self.options.path)))
    }

    /// The lock file, opened if need be.
    fn lock_file(&mut self) -> Result<Arc<LockFile>> {
        if let Some(file) = &self.file
            && (self.prepared || !self.slots.values().all(Slot::is_idle) || file.is_current())
        {
            return Ok(Arc::clone(file));
        }
        let file = self.open_lock_file(false)?;
        self.slots.clear();
        self.alarm = None;
        Ok(Arc::clone(self.file.insert(file)))
    }

    fn slot(&mut self, key: &Key) -> Result<&mut Slot> {
        let file = self.lock_file()?;
        let bytes = self.bytes(key);
        Ok(self.slots.entry(key.clone()).or_insert_with(|| Slot::new(&file, bytes)))
    }

    fn bytes(&self, key: &Key) -> Bytes {
        Bytes::of(&[self.options.namespace.as_str(), key.as_str()])
    }
}

/// The database, opened for writing if need be, and anew if the path names another one by now or the connection is of no more use. Also
/// whether it was created for it.
async fn opened<'a>(store: &'a mut Option<Store>, path: &Path) -> Result<(&'a mut Store, bool)> {
    let useless = match store.as_mut().filter(|store| store.writable) {
        Some(store) => !store.is_current(path) || store.is_stuck().await,
        None => false,
    };
    if let Some(old) = store.take_if(|_| useless) {
        old.close();
    }
    if store.as_ref().is_some_and(|store| store.writable) {
        // Asked for twice because a borrow that is returned lasts too long otherwise.
        if let Some(store) = store {
            return Ok((store, false));
        }
    }
    let (open, created) = Store::open(path).await?;
    Ok((store.insert(open), created))
}

fn ours(error: &std::io::Error) -> Error {
    Error::new(Kind::Unavailable, format!("the lock file failed: {}", failure::plain(error)))
}

#[async_trait(?Send)]
impl Backend for Sqlite {
    fn identity(&self) -> Identity {
        let path = self.resolved.clone().unwrap_or_else(|| location::resolved(&self.options.path));
        let url = format!("sqlite://{}", self.options.path.display());
        Identity::new(&CAPABILITIES, url, &["sqlite", &path.to_string_lossy(), self.options.namespace.as_str()])
    }

    async fn try_acquire(&mut self, request: &Request) -> Result<Attempt> {
        self.acquire(request).await
    }

    async fn wait(&mut self, request: &Request, at_most: Duration) -> Result<Wake> {
        self.await_change(request, at_most).await
    }

    async fn leave_queue(&mut self, request: &Request) -> Result<()> {
        self.leave(request).await
    }

    async fn renew(&mut self, key: &Key, token: &Token, intent: Intent) -> Result<Renewal> {
        if intent == Intent::Probe { self.look_for(key, token).await } else { self.extend(key, token, intent).await }
    }

    async fn release(&mut self, key: &Key, token: &Token, info: &ReleaseInfo) -> Result<Release> {
        self.hand_back(key, token, info).await
    }

    async fn amend(&mut self, key: &Key, change: Amendment<'_>) -> Result<bool> {
        match change {
            Amendment::Note(note) => self.remember(key, note).await.map(|()| true),
            Amendment::Warn(fence, level) => self.claim(key, fence, level).await,
            Amendment::Mark(fence, mark) => self.mark_hold(key, fence, mark).await,
            Amendment::Evict(fence, mark) => self.evict_hold(key, fence, mark).await,
        }
    }

    async fn inspect(&mut self, key: &Key) -> Result<LockState> {
        self.look_at(key).await
    }

    async fn list(&mut self, start: &str) -> Result<Vec<LockState>> {
        self.look_at_all(start).await
    }

    async fn known(&mut self, start: &str, which: Which) -> Result<Vec<Key>> {
        self.known_keys(start, which).await
    }

    async fn history(&mut self, key: &Key) -> Result<History> {
        self.recall(key).await
    }

    fn tether(&mut self) -> Option<&mut dyn Tether> {
        Some(self)
    }
}

#[async_trait(?Send)]
impl Tether for Sqlite {
    fn prepare(&mut self) -> Result<Option<LastResort>> {
        let file = self.open_lock_file(true)?;
        self.file = Some(Arc::clone(&file));
        self.prepared = true;
        Ok(Some(Box::new(move || {
            file.unlock(Range::EVERYTHING);
            // Nothing else would announce the release of a share.
            file.ring();
        })))
    }

    async fn watch(&mut self, key: &Key, token: &Token) {
        self.await_removal(key, token).await;
    }

    async fn cut(&mut self, key: &Key, token: &Token) -> bool {
        self.let_go_of(key, token)
    }
}
