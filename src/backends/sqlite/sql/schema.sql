-- Layout 1. Times are integer milliseconds since 1970 by this host's clock.

-- One row per key that was ever taken. Rows are never deleted: the fence must not start again.
-- A hold is "attached" (detached = 0) while processes stand behind it: then the lock file says whether it is
-- held, and the row only says by whom. A detached hold lasts until expires_ms.
CREATE TABLE locks (
    namespace       TEXT    NOT NULL,
    key             TEXT    NOT NULL, -- BINARY collation: told apart by bytes
    fence           INTEGER NOT NULL, -- the last one given out
    owner           TEXT,             -- secret; NULL: given back
    hold            TEXT,             -- the owner's first hold; NULL: given back, and nested holds keep the lock
    detached        INTEGER NOT NULL,
    lock_file       INTEGER NOT NULL, -- inode of the lock file that an attached hold is locked in
    since_ms        INTEGER NOT NULL,
    renewed_ms      INTEGER NOT NULL,
    ttl_ms          INTEGER NOT NULL, -- as asked for when it was taken
    hold_expires_ms INTEGER NOT NULL, -- of the first hold
    expires_ms      INTEGER NOT NULL, -- the latest end of all holds of the owner
    metadata        TEXT,             -- JSON
    PRIMARY KEY (namespace, key)
) WITHOUT ROWID;

-- Holds that were entered by the owner of a hold (a nested dlock run of the same key).
CREATE TABLE holds (
    namespace  TEXT    NOT NULL,
    key        TEXT    NOT NULL,
    owner      TEXT    NOT NULL,
    hold       TEXT    NOT NULL,
    ttl_ms     INTEGER NOT NULL,
    expires_ms INTEGER NOT NULL,
    PRIMARY KEY (namespace, key, owner, hold)
) WITHOUT ROWID;

-- Who waits, for people who look. Nobody's turn depends on it; the kernel keeps the queue.
CREATE TABLE waiters (
    place     INTEGER PRIMARY KEY AUTOINCREMENT,
    namespace TEXT    NOT NULL,
    key       TEXT    NOT NULL,
    owner     TEXT    NOT NULL,
    since_ms  INTEGER NOT NULL,
    metadata  TEXT,
    UNIQUE (namespace, key, owner)
);

-- Nested holds and queue places end with what they belong to.
CREATE TRIGGER owner_changed AFTER UPDATE OF owner ON locks
WHEN OLD.owner IS NOT NEW.owner
BEGIN
    DELETE FROM holds WHERE namespace = OLD.namespace AND key = OLD.key AND owner = OLD.owner;
    DELETE FROM waiters WHERE namespace = NEW.namespace AND key = NEW.key AND owner = NEW.owner;
END;

PRAGMA application_id = 1684824939; -- "dlck"
PRAGMA user_version = 1;
