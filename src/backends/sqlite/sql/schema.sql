-- Layout 5. Times are integer milliseconds since 1970 by this host's clock. Comments stand outside of the
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
--   mark, seen       the break of the hold, as JSON, and whether its holder knows; broken: the same for the history
--   ended, why       how the last hold that was given back ended; '' for one that nothing was done under
--   cooldown         the run record that keeps later runs away for a while, as JSON
--   document         readers, permits and fair waiters, as JSON; NULL: none. document_file: inode of their lock file
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
    cooldown           TEXT,
    document        TEXT,
    document_file   INTEGER,
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

-- The waiters, for people only: the kernel keeps the queue. A waiter without a byte in the lock file is gone, and those
-- who come after it remove it.
--   hold   of a waiter that is in the document as well
CREATE TABLE waiters (
    place     INTEGER PRIMARY KEY,
    namespace TEXT    NOT NULL,
    key       TEXT    NOT NULL,
    owner     TEXT    NOT NULL,
    since_ms  INTEGER NOT NULL,
    metadata  TEXT,
    hold      TEXT    NOT NULL,
    UNIQUE (namespace, key, owner)
);

-- Holds that are over. Written by whichever statement takes a lock from its owner: a release, or the next grant.
--   ended   how, in the words of the history; why: in more words
CREATE TABLE runs (
    namespace TEXT    NOT NULL,
    key       TEXT    NOT NULL,
    fence     INTEGER NOT NULL,
    since_ms  INTEGER,
    ended_ms  INTEGER,
    ended     TEXT    NOT NULL,
    why       TEXT,
    metadata  TEXT,
    PRIMARY KEY (namespace, key, fence)
) WITHOUT ROWID;

-- Hosts that found a lock taken, and did without.
CREATE TABLE skips (
    namespace TEXT    NOT NULL,
    key       TEXT    NOT NULL,
    host      TEXT    NOT NULL,
    count     INTEGER NOT NULL,
    since_ms  INTEGER NOT NULL,
    last_ms   INTEGER NOT NULL,
    reason    TEXT    NOT NULL,
    PRIMARY KEY (namespace, key, host)
) WITHOUT ROWID;

-- A holder that reported its own loss knows better than the next grant does. Now and then all but the last hundred go, and
-- all but the last hundred of those that ended badly.
CREATE TRIGGER remember AFTER UPDATE OF owner ON locks
WHEN OLD.owner IS NOT NULL AND NEW.owner IS NOT OLD.owner AND NEW.ended IS NOT ''
BEGIN
    INSERT INTO runs (namespace, key, fence, since_ms, ended_ms, ended, why, metadata)
    SELECT OLD.namespace, OLD.key, OLD.fence, OLD.since_ms, iif(NEW.ended IS NULL, min(OLD.expires_ms, now_ms), now_ms),
           coalesce(NEW.ended, iif(OLD.mark IS NULL, 'expired', 'broken')), iif(NEW.ended IS NULL, OLD.broken, NEW.why), OLD.metadata
      FROM (SELECT CAST(round(unixepoch('subsec') * 1000) AS INTEGER) AS now_ms)
     WHERE NOT EXISTS (SELECT 1 FROM runs WHERE namespace = OLD.namespace AND key = OLD.key AND fence = OLD.fence);
    DELETE FROM runs
     WHERE OLD.since_ms % 4 = 0 AND namespace = OLD.namespace AND key = OLD.key
       AND fence < (SELECT fence FROM runs AS r WHERE r.namespace = OLD.namespace AND r.key = OLD.key
                     ORDER BY fence DESC LIMIT 1 OFFSET 99)
       AND (ended IN ('ok', 'released')
            OR fence < (SELECT fence FROM runs AS r WHERE r.namespace = OLD.namespace AND r.key = OLD.key
                           AND ended NOT IN ('ok', 'released') ORDER BY fence DESC LIMIT 1 OFFSET 99));
END;

-- What else is kept of the runs of a lock beyond their holds.
--   record        the start that is to be the only one for some time, as JSON; NULL: none
--   warned_fence  the hold that was last warned about, and up to which level
CREATE TABLE starts (
    namespace    TEXT    NOT NULL,
    key          TEXT    NOT NULL,
    record       TEXT,
    warned_fence INTEGER NOT NULL DEFAULT 0,
    warned_level INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (namespace, key)
) WITHOUT ROWID;

-- "dlck", and the layout's number.
PRAGMA application_id = 1684824939;
PRAGMA user_version = 6;
