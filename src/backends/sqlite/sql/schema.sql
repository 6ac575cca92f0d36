-- Layout 4. Times are integer milliseconds since 1970 by this host's clock. Comments stand outside of the
-- statements, whose text SQLite keeps and reads again each time that the database is opened.

-- One row per key that was ever taken; rows are never deleted, since the fence must not start again. A hold is
-- attached (detached = 0) while processes stand behind it: then the lock file says whether it is held, and the row
-- only says by whom. A detached hold lasts until expires_ms.
--   namespace, key   told apart by bytes (BINARY collation)
--   fence            the last one given out
--   owner            secret; NULL: given back
--   hold             the owner's first hold; NULL: given back, and nested holds keep the lock
--   lock_file        inode of the lock file that an attached hold is locked in
--   ttl_ms           as asked for when it was taken
--   hold_expires_ms  end of the first hold's lease
--   expires_ms       the latest end of all holds of the owner
--   metadata         JSON, for people
--   mark, seen       who is breaking the hold, as JSON, and whether its holder knows; broken: the same for the history
--   ended, why       how the last hold that was given back ended; '' for one that nothing was done under
CREATE TABLE locks (
    namespace       TEXT    NOT NULL,
    key             TEXT    NOT NULL,
    fence           INTEGER NOT NULL,
    owner           TEXT,
    hold            TEXT,
    detached        INTEGER NOT NULL,
    lock_file       INTEGER NOT NULL,
    since_ms        INTEGER NOT NULL,
    renewed_ms      INTEGER NOT NULL,
    ttl_ms          INTEGER NOT NULL,
    hold_expires_ms INTEGER NOT NULL,
    expires_ms      INTEGER NOT NULL,
    metadata        TEXT,
    mark            TEXT,
    broken          TEXT,
    seen            INTEGER NOT NULL DEFAULT 0,
    ended           TEXT,
    why             TEXT,
    UNIQUE (namespace, key)
);

-- Holds that the owner of a hold has entered (a nested dlock run of the same key). Those of former owners mean
-- nothing and are swept when the next one enters.
CREATE TABLE holds (
    namespace  TEXT    NOT NULL,
    key        TEXT    NOT NULL,
    owner      TEXT    NOT NULL,
    hold       TEXT    NOT NULL,
    ttl_ms     INTEGER NOT NULL,
    expires_ms INTEGER NOT NULL,
    PRIMARY KEY (namespace, key, owner, hold)
) WITHOUT ROWID;

-- Who waits, for people who look. Nobody's turn depends on it: the kernel keeps the queue. Whoever has no byte
-- in the lock file is not there any more, and is swept by the next who waits.
CREATE TABLE waiters (
    place     INTEGER PRIMARY KEY,
    namespace TEXT    NOT NULL,
    key       TEXT    NOT NULL,
    owner     TEXT    NOT NULL,
    since_ms  INTEGER NOT NULL,
    metadata  TEXT,
    UNIQUE (namespace, key, owner)
);

