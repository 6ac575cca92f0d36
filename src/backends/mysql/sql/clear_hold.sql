-- Checks what may deny a hold besides run records, for a lock that was just taken: notes the end of
-- the leases of holds whose server was restarted or is another one by now; claims the lock for this
-- mode if it is free in mode=lease, with its run record. Returns the mode that keeps the lock, and
-- whether such a lease is not over.
UPDATE :sessions SET ends = :ends WHERE name = :name AND session IS NOT NULL AND root <> :root
  AND NOT :lives
   AND (ends IS NULL OR ends > TIMESTAMPADD(MICROSECOND, ttl_ms * 1000, UTC_TIMESTAMP(6)));
UPDATE :readers SET ends = :ends WHERE name = :name AND root <> :root AND NOT :lives
   AND (ends IS NULL OR ends > TIMESTAMPADD(MICROSECOND, ttl_ms * 1000, UTC_TIMESTAMP(6)));
INSERT IGNORE INTO :sessions (name, layout, fence, session, root, since, renewed_at, ttl_ms)
SELECT name, 100, 0, NULL, NULL, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6), 0 FROM :table
  WHERE name = :name AND mode IS NULL;
UPDATE :table AS l JOIN :sessions AS s ON s.name = l.name SET :carry l.mode = :mode,
  l.revision = l.revision + 1
 WHERE l.name = :name AND l.mode IS NULL AND (l.lock_until <= UTC_TIMESTAMP(6) OR :of_dlock
   AND l.document IS NULL);
SELECT (SELECT COALESCE(mode, 'lease') FROM :table WHERE name = :name),
       EXISTS (SELECT 1 FROM :sessions WHERE name = :name AND session IS NOT NULL AND root <> :root
         AND :left)
       OR :alone AND EXISTS (SELECT 1 FROM :readers WHERE name = :name AND root <> :root AND :left);
