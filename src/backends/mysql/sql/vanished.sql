-- Writes the history entry of an earlier holder that never released the lock, before its row is
-- taken. A repeated call writes one entry.
INSERT IGNORE INTO :runs (name, fence, since, ended, how, outcome, metadata)
SELECT s.name, s.fence, s.since, LEAST(TIMESTAMPADD(MICROSECOND, s.ttl_ms * 1000, s.renewed_at),
  UTC_TIMESTAMP(6)),
       IF(m.mark IS NULL, 'expired', 'broken'), m.mark, s.metadata
  FROM :sessions AS s LEFT JOIN :marks AS m ON m.name = s.name AND m.fence = s.fence
 WHERE s.name = :name AND s.session IS NOT NULL AND s.root <> :root AND NOT :left AND :has
   AND COALESCE(:seen = s.fence, 1);
SET @dlock_vanished = ROW_COUNT();
