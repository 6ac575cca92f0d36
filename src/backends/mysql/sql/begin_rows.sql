-- Creates the missing rows of a lock.
INSERT IGNORE INTO :table (name, lock_until, locked_at, locked_by, layout, owner, mode, revision)
SELECT :name, '2000-01-01 00:00:00.000000', UTC_TIMESTAMP(6), :shared, :layout, :shared, :mode, 1
  FROM DUAL
 WHERE :has AND NOT EXISTS (SELECT 1 FROM :table AS k WHERE k.name = :name);
INSERT INTO :sessions (name, layout, fence, session, root, since, renewed_at, ttl_ms)
SELECT :name, 100, 0, NULL, NULL, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6), 0 FROM DUAL WHERE :has
    ON DUPLICATE KEY UPDATE layout = layout;
