-- The records of holds that were not released, whether or not they last.
SELECT s.fence, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', s.since) DIV 1000,
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01',
         LEAST(TIMESTAMPADD(MICROSECOND, s.ttl_ms * 1000, s.renewed_at),
         UTC_TIMESTAMP(6))) DIV 1000,
       IF(m.mark IS NULL, 'expired', 'broken'), m.mark, s.metadata
  FROM :sessions AS s LEFT JOIN :marks AS m ON m.name = s.name AND m.fence = s.fence
 WHERE s.name = :name AND s.session IS NOT NULL
 UNION ALL
SELECT r.fence, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', r.since) DIV 1000,
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01',
         LEAST(TIMESTAMPADD(MICROSECOND, r.ttl_ms * 1000, r.renewed_at),
         UTC_TIMESTAMP(6))) DIV 1000,
       IF(m.mark IS NULL, 'expired', 'broken'), m.mark, r.metadata
  FROM :readers AS r LEFT JOIN :marks AS m ON m.name = r.name AND m.fence = r.fence
 WHERE r.name = :name;
