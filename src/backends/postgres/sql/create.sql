-- Creates a free row for a lock that was never taken.
-- $1 name, $2 locked_by
INSERT INTO {table} (name, lock_until, locked_at, locked_by, layout, owner, mode, revision)
VALUES ($1, '2000-01-01', timezone('utc', clock_timestamp()), $2, {layout}, $2, {mode}, 1)
ON CONFLICT (name) DO NOTHING
