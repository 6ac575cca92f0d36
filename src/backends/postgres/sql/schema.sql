-- Locks: a row per key that was ever taken, never deleted by a release. The first four columns are
-- ShedLock's, in UTC; what follows counts only while owner says what locked_by says.
CREATE TABLE IF NOT EXISTS {table} (
    name       text COLLATE "C" NOT NULL PRIMARY KEY,
    lock_until timestamp NOT NULL,
    locked_at  timestamp NOT NULL,
    locked_by  text NOT NULL
) WITH (fillfactor = 70);
ALTER TABLE {table}
    ADD COLUMN IF NOT EXISTS layout     smallint,
    ADD COLUMN IF NOT EXISTS owner      text,
    ADD COLUMN IF NOT EXISTS mode       text,
    ADD COLUMN IF NOT EXISTS fence      bigint NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS renewed_at timestamp,
    ADD COLUMN IF NOT EXISTS revision   bigint NOT NULL DEFAULT 0,
    -- The holders and the queue, as JSON.
    ADD COLUMN IF NOT EXISTS document   text;
-- Of a layout before this one; a lock that has a holder is left to it.
UPDATE {table} SET layout = {layout}, document = NULL WHERE layout < {layout} AND lock_until
  <= timezone('utc', clock_timestamp());
-- What is kept of the runs of a lock beyond their holds: of the last one with a skew guard or
-- at-least, of the last one with once and what became of it, and which hold was last warned about.
ALTER TABLE {table}
{starts_schema}-- Names are told apart by bytes, and are longer than ShedLock's 64 characters.
ALTER TABLE {table} ALTER COLUMN name TYPE text COLLATE "C", ALTER COLUMN locked_by TYPE text;

-- The waiters, for people only: no turn depends on them, so the table needs no log.
CREATE UNLOGGED TABLE IF NOT EXISTS {waiters} (
    place    bigint GENERATED ALWAYS AS IDENTITY,
    name     text COLLATE "C" NOT NULL,
    hold     text NOT NULL,
    since    timestamptz NOT NULL,
    seen     timestamptz NOT NULL,
    metadata text,
    PRIMARY KEY (name, hold)
);

-- What mode=row locks.
CREATE TABLE IF NOT EXISTS {rows} (
    name text COLLATE "C" NOT NULL PRIMARY KEY
);
-- The last fence of each lock of mode=row and mode=advisory, never deleted, and when the holders
-- that vanished have stopped.
CREATE TABLE IF NOT EXISTS {fences} (
    name  text COLLATE "C" NOT NULL PRIMARY KEY,
    fence bigint NOT NULL
);
-- The same of their runs.
ALTER TABLE {fences}
    ADD COLUMN IF NOT EXISTS drains timestamptz,
{starts_schema}-- Ended holds of all modes: how each ended, and what else is known of its end, as JSON.
CREATE TABLE IF NOT EXISTS {runs} (
    name     text COLLATE "C" NOT NULL,
    fence    bigint NOT NULL,
    since    timestamp,
    ended    timestamp,
    how      text NOT NULL,
    metadata text,
    PRIMARY KEY (name, fence)
);
ALTER TABLE {runs}
    ADD COLUMN IF NOT EXISTS outcome text,
    DROP COLUMN IF EXISTS why;
-- Hosts that found a lock taken, and did without.
CREATE TABLE IF NOT EXISTS {skips} (
    name   text COLLATE "C" NOT NULL,
    host   text COLLATE "C" NOT NULL,
    count  bigint NOT NULL,
    since  timestamp NOT NULL,
    last   timestamp NOT NULL,
    reason text NOT NULL,
    PRIMARY KEY (name, host)
);
-- Breaks of holds: the operator and the reason as JSON, and whether the holder knows. The history
-- has that JSON as the outcome of a hold that is never released.
CREATE TABLE IF NOT EXISTS {marks} (
    name   text COLLATE "C" NOT NULL,
    fence  bigint NOT NULL,
    mark   text NOT NULL,
    seen   boolean NOT NULL DEFAULT false,
    PRIMARY KEY (name, fence)
);
ALTER TABLE {marks} DROP COLUMN IF EXISTS broken;
-- What is known of their holds: of one that a server left behind when it was restarted, or another
-- one took over, the next holder must know when its lease is over.
CREATE TABLE IF NOT EXISTS {sessions} (
    name     text COLLATE "C" NOT NULL,
    pid      integer NOT NULL,
    hold     text NOT NULL,
    shared   boolean NOT NULL,
    fence    bigint NOT NULL,
    since    timestamptz NOT NULL,
    ttl_ms   bigint NOT NULL,
    metadata text,
    PRIMARY KEY (name, pid)
);
ALTER TABLE {sessions} SET LOGGED;
ALTER TABLE {sessions}
    -- Which server, since when, and when its lease is over if that server is gone.
    ADD COLUMN IF NOT EXISTS server text,
    ADD COLUMN IF NOT EXISTS ends   timestamptz;
