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
-- at-least, and of the last one with once and what became of it.
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
-- Ended holds of all modes: how each ended, and what else is known of its end, as JSON.
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
