-- Remembers who had the lock before and never gave it back, if somebody did; then takes it if its row is there and free. The end is
-- judged and set by one reading of the server's clock, from when the statement began: if it had to wait for another one on the row,
-- the lease is shorter, never longer, than was asked for. Nor is it taken if a start in its row may be in the way, or others may go first.
INSERT IGNORE INTO :runs (name, fence, since, ended, how, why, metadata)
SELECT l.name, l.fence, l.locked_at, l.lock_until, IF(m.mark IS NULL, 'expired', 'broken'), m.broken, l.metadata
  FROM :table AS l LEFT JOIN :marks AS m ON m.name = l.name AND m.fence = l.fence
 WHERE l.name = :name AND l.owner = l.locked_by AND l.lock_until > '2000-01-02 00:00:00' AND l.lock_until <= UTC_TIMESTAMP(6)
   AND (l.root IS NOT NULL OR l.holds IS NOT NULL);
SET @dlock_gone = ROW_COUNT();
UPDATE :table
   SET :start_set
       fence = GREATEST(fence + 1, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))),
       layout = 100,
       owner = :owner,
       root = :root,
       ttl_ms = :ttl,
       holds = NULL,
       detached = :detached,
       renewed_at = UTC_TIMESTAMP(6),
       metadata = :metadata,
       revision = revision + 1,
       locked_at = UTC_TIMESTAMP(6),
       locked_by = :owner,
       lock_until = TIMESTAMPADD(MICROSECOND, :ttl * 1000, UTC_TIMESTAMP(6)),
       document = :document
 WHERE name = :name AND (lock_until <= UTC_TIMESTAMP(6) OR owner = locked_by AND root IS NULL AND holds IS NULL) AND mode IS NULL
   AND COALESCE(layout, 0) < 200 AND fence < 9007199254740990
   AND :clear AND :nobody_first;
