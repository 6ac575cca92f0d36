-- As vanished.sql, for readers.
INSERT IGNORE INTO :runs (name, fence, since, ended, how, outcome, metadata)
SELECT r.name, r.fence, r.since, LEAST(TIMESTAMPADD(MICROSECOND, r.ttl_ms * 1000, r.renewed_at),
  UTC_TIMESTAMP(6)),
       IF(m.mark IS NULL, 'expired', 'broken'), m.mark, r.metadata
  FROM :readers AS r LEFT JOIN :marks AS m ON m.name = r.name AND m.fence = r.fence
 WHERE r.name = :name AND r.root <> :root AND NOT :left AND :over
   AND COALESCE(:seen = (SELECT s.fence FROM :sessions AS s WHERE s.name = :name), 1);
SET @dlock_vanished = @dlock_vanished + ROW_COUNT();
