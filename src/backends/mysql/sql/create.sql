-- Creates a free row for a lock that was never taken.
INSERT IGNORE INTO :table (name, lock_until, locked_at, locked_by, layout, owner, mode, revision)
VALUES (:name, '2000-01-01 00:00:00.000000', UTC_TIMESTAMP(6), :shared, :layout, :shared, :mode, 1);
