-- Layout 10. Times are integer milliseconds since 1970 by this host's clock. Comments stand outside
-- of the statements, whose text SQLite keeps and parses again each time that the database is
-- opened.

-- One row per key that was ever taken.
--   namespace, key   compared by bytes (BINARY collation)
--   revision         from a random number on, counts the changes of the row
--   fence            the last one that was granted
--   lock_file        inode of the lock file that tells which holders' processes are alive
--   changed_ms       when the row was last changed
--   document         holders, queue, run records and warnings, as JSON; NULL: none of these
--   ended            the holds that the last change ended, as a JSON array, for the trigger; NULL:
--                    none
CREATE TABLE locks (
    namespace  TEXT    NOT NULL,
    key        TEXT    NOT NULL,
    revision   INTEGER NOT NULL,
    fence      INTEGER NOT NULL,
    lock_file  INTEGER NOT NULL,
    changed_ms INTEGER NOT NULL,
    document   TEXT,
    ended      TEXT,
    UNIQUE (namespace, key)
);

-- Waiters that no document has. A waiter whose byte in the lock file is free is gone, and later
-- waiters remove its row.
--   queued   the waiter as an entry of the document's queue, as JSON, which the next change of the
--            document takes in;
--            NULL: an unfair exclusive one, listed for people only, since the kernel keeps their
--            queue
CREATE TABLE waiters (
    place     INTEGER PRIMARY KEY,
    namespace TEXT    NOT NULL,
    key       TEXT    NOT NULL,
    hold      TEXT    NOT NULL,
    since_ms  INTEGER NOT NULL,
    metadata  TEXT,
    queued    TEXT,
    UNIQUE (namespace, key, hold)
);

-- A request that is not in the queue only asks whether there is one.
CREATE INDEX queued ON waiters (namespace, key) WHERE queued IS NOT NULL;

-- Ended holds. With a row ID, since entries are too long for the pages of a table without.
--   entry   the history entry, as JSON
CREATE TABLE runs (
    namespace TEXT    NOT NULL,
    key       TEXT    NOT NULL,
    fence     INTEGER NOT NULL,
    entry     TEXT    NOT NULL,
    UNIQUE (namespace, key, fence)
);

-- Hosts that skipped runs.
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

-- Writes the history in the step that ends a hold. An entry that the holder wrote itself stays.
-- About every fourth time the trigger removes all but the last hundred entries, and all but the
-- last hundred of those that ended badly.
CREATE TRIGGER remember AFTER UPDATE OF ended ON locks WHEN NEW.ended IS NOT NULL
BEGIN
    INSERT INTO runs (namespace, key, fence, entry)
    SELECT NEW.namespace, NEW.key, value ->> '$.f', value FROM json_each(NEW.ended) WHERE true
      ON CONFLICT DO NOTHING;
    DELETE FROM runs
     WHERE NEW.changed_ms % 4 = 0 AND namespace = NEW.namespace AND key = NEW.key
       AND fence < (SELECT fence FROM runs AS r WHERE r.namespace = NEW.namespace
         AND r.key = NEW.key
                     ORDER BY fence DESC LIMIT 1 OFFSET 99)
       AND (entry ->> '$.x' IN ('ok', 'released')
            OR fence < (SELECT fence FROM runs AS r WHERE r.namespace = NEW.namespace
              AND r.key = NEW.key
                           AND entry ->> '$.x' NOT IN ('ok', 'released') ORDER BY fence DESC
                             LIMIT 1 OFFSET 99));
END;

-- "dlck", and the layout's number.
PRAGMA application_id = 1684824939;
PRAGMA user_version = 10;
