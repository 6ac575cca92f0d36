//! Opens the database, creates it, and refuses a file that isn't a database of dlock.

use std::{
    ffi::OsString,
    fs::{self, OpenOptions},
    io,
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    time::Duration,
};

use sqlx::{
    ConnectOptions, Connection, Row, SqliteConnection,
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous},
};

use rustix::{
    fs::{Access, CWD, RenameFlags, access, renameat_with},
    io::Errno,
};
use tokio::time::timeout;

use super::{failure, location};
use crate::lock::{Error, Kind, Result, random};

/// The layout that this version writes, kept in `user_version`.
pub(in crate::backends) const LAYOUT: i64 = 10;
/// "dlck", kept in `application_id`.
const APPLICATION: i64 = 0x646c_636b;

const SCHEMA: &str = include_str!("sql/schema.sql");

/// How long SQLite itself waits for another writer, which needs some 0.1 ms unless it is frozen or
/// its disk is.
const BUSY: Duration = Duration::from_secs(1);
/// How long a database may have two names while it is created.
const TWO_NAMES: Duration = Duration::from_millis(100);

/// Opens the database for writing, and creates it if there is none. Also returns whether it was
/// created.
///
/// Does not look at the layout: [`check`] does, and so does the statement that reads a lock.
pub(super) async fn open(path: &Path) -> Result<(SqliteConnection, bool)> {
    let created = !exists(path).await? && create(path).await?;
    Ok((connect(&options(path)?).await?, created))
}

/// Refuses a database of another layout. Creates the tables in an empty one; returns whether it
/// did.
pub(super) async fn check(connection: &mut SqliteConnection) -> Result<bool> {
    if layout(connection).await? == DatabaseKind::Ours {
        return Ok(false);
    }
    fill(connection).await?;
    Ok(true)
}

/// Opens the database for reading; `None` if there is none, or an empty one.
pub(super) async fn open_to_look(path: &Path) -> Result<Option<SqliteConnection>> {
    if !exists(path).await? {
        return Ok(None);
    }
    let looking = async {
        let mut connection = connect(&options(path)?.read_only(true)).await?;
        layout(&mut connection).await.map(|kind| (connection, kind))
    };
    let (connection, kind) = looking.await.map_err(|error| closed(error, path))?;
    match kind {
        DatabaseKind::Ours => Ok(Some(connection)),
        DatabaseKind::Nothing => Ok(None),
    }
}

/// Explains an error of a user who may only look: the last program that closes a database removes
/// files that readers need too.
fn closed(error: Error, path: &Path) -> Error {
    let shown = path.display();
    if error.kind != Kind::Denied
        || access(path, Access::READ_OK).is_err()
        || PathBuf::from(format!("{shown}-shm")).exists()
    {
        return error;
    }
    Error::new(error.kind, format!("the database can't be read without {shown}-wal and {shown}-shm, which this user can't create"))
        .hint("dlock list of a user who may write there leaves these files behind")
        .source(error)
}

/// Whether readers and writers work at the same time. A tool may have changed that, for good.
pub(super) async fn has_log(connection: &mut SqliteConnection) -> Result<bool> {
    let mode = sqlx::query("PRAGMA journal_mode")
        .persistent(false)
        .fetch_one(connection)
        .await
        .map_err(failure::statement)?;
    mode.try_get::<&str, _>(0)
        .map(|mode| mode == "wal")
        .map_err(failure::statement)
}

/// The schema, for people.
pub(super) const fn text() -> &'static str {
    SCHEMA
}

/// Whether there is a file. One that has another name is refused.
async fn exists(path: &Path) -> Result<bool> {
    match fs::metadata(path) {
        Ok(found) if found.is_file() => {
            let mut links = found.nlink();
            if links > 1 {
                // Where a file can't be renamed without replacing another one, `create` has two
                // names for a moment.
                let _ = timeout(TWO_NAMES, std::future::pending::<()>()).await;
                links = fs::metadata(path).map_or(1, |found| found.nlink());
            }
            location::check_single_name(path, links).map(|()| true)
        }
        Ok(_) => Err(
            Error::new(Kind::Config, format!("{} is not a file", path.display()))
                .hint("name a file for the database"),
        ),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(failure::files(&error, path)),
    }
}

fn options(path: &Path) -> Result<SqliteConnectOptions> {
    if path.to_str().is_none() {
        return Err(Error::new(
            Kind::Config,
            format!("{} is not UTF-8, which SQLite needs", path.display()),
        ));
    }
    Ok(SqliteConnectOptions::new()
        .filename(path)
        .busy_timeout(BUSY)
        .foreign_keys(false)
        .synchronous(SqliteSynchronous::Normal)
        .statement_cache_capacity(16)
        .thread_name(|_| "dlock-sqlite".into())
        .disable_statement_logging())
}

async fn connect(options: &SqliteConnectOptions) -> Result<SqliteConnection> {
    let connected = options.connect().await;
    connected.map_err(|error| failure::opening(error, options.get_filename()))
}

/// The kind of a database.
#[derive(Clone, Copy, PartialEq, Eq)]
enum DatabaseKind {
    /// Of this layout.
    Ours,
    /// Empty.
    Nothing,
}

/// Checks the layout.
async fn layout(connection: &mut SqliteConnection) -> Result<DatabaseKind> {
    if number(connection, "PRAGMA user_version").await? == LAYOUT {
        return Ok(DatabaseKind::Ours);
    }
    // The rare case: looks more closely, and again, since another process may have created it
    // meanwhile.
    let application = number(connection, "PRAGMA application_id").await?;
    let tables = number(connection, "SELECT count(*) FROM sqlite_schema").await?;
    match number(connection, "PRAGMA user_version").await? {
        LAYOUT => Ok(DatabaseKind::Ours),
        0 if application == 0 && tables == 0 => Ok(DatabaseKind::Nothing),
        other if application == APPLICATION => Err(other_layout(other)),
        _ => Err(failure::not_ours("it belongs to another program")),
    }
}

/// The error for a database of dlock with a layout that is not this one.
pub(super) fn other_layout(found: i64) -> Error {
    let (age, hint) = if found > LAYOUT {
        ("newer", "use the dlock that created it, or a newer one")
    } else {
        (
            "older",
            "once no lock in it is held, remove the file and run dlock init",
        )
    };
    Error::new(
        Kind::Layout,
        format!("the database has layout {found}, {age} than this dlock's {LAYOUT}"),
    )
    .hint(hint)
}

async fn number(connection: &mut SqliteConnection, sql: &'static str) -> Result<i64> {
    let rows = sqlx::query(sql)
        .persistent(false)
        .fetch_all(connection)
        .await
        .map_err(failure::statement)?;
    rows.first()
        .ok_or(sqlx::Error::RowNotFound)
        .and_then(|row| row.try_get(0))
        .map_err(failure::statement)
}

/// Creates the database under another name and renames it, so that no process opens half of one,
/// and processes that start at once don't lock each other out. Returns whether this process created
/// it.
async fn create(path: &Path) -> Result<bool> {
    let draft = draft(path);
    let files = |error: &io::Error| failure::files(error, path);
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&draft)
        .map_err(|error| files(&error))?;
    let draft = Draft(draft);
    // Small pages: the first process to open the database reads the whole log, and each change logs
    // whole pages.
    let options = options(&draft.0)?
        .page_size(1024)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full);
    let mut connection = connect(&options).await?;
    fill(&mut connection).await?;
    connection.close().await.map_err(failure::statement)?;
    match put_in_place(&draft.0, path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(files(&error)),
    }
}

/// Gives the draft its name, unless another file has it.
fn put_in_place(draft: &Path, path: &Path) -> io::Result<()> {
    match renameat_with(CWD, draft, CWD, path, RenameFlags::NOREPLACE) {
        // The file system does not have that.
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => fs::hard_link(draft, path),
        renamed => Ok(renamed?),
    }
}

/// Creates the tables in an empty database, unless another process did so meanwhile.
async fn fill(connection: &mut SqliteConnection) -> Result<()> {
    let run = async |connection: &mut SqliteConnection, sql: &'static str| {
        sqlx::raw_sql(sql)
            .execute(connection)
            .await
            .map(|_| ())
            .map_err(failure::statement)
    };
    run(connection, "PRAGMA journal_mode = WAL").await?;
    let mut transaction = connection
        .begin_with("BEGIN IMMEDIATE")
        .await
        .map_err(failure::statement)?;
    if number(&mut transaction, "PRAGMA user_version").await? != 0 {
        return Ok(());
    }
    run(&mut transaction, SCHEMA).await?;
    transaction.commit().await.map_err(failure::statement)
}

fn draft(path: &Path) -> PathBuf {
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(format!(".{:016x}.new", random()));
    path.with_file_name(name)
}

/// A file that is removed at the end, with those that SQLite creates next to it.
struct Draft(PathBuf);

impl Drop for Draft {
    fn drop(&mut self) {
        for end in ["", "-wal", "-shm", "-journal"] {
            let mut name = self.0.clone().into_os_string();
            name.push(end);
            // A file that is left does no harm.
            let _ = fs::remove_file(name);
        }
    }
}
