-- What is written of a hold that was not given back, whether or not it lasts.
SELECT s.fence, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', s.since) DIV 1000,
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01', LEAST(TIMESTAMPADD(MICROSECOND, s.ttl_ms * 1000, s.renewed_at), UTC_TIMESTAMP(6))) DIV 1000,
       IF(m.mark IS NULL, 'expired', 'broken'), m.broken, s.metadata
  FROM :sessions AS s LEFT JOIN :marks AS m ON m.name = s.name AND m.fence = s.fence
 WHERE s.name = :name AND s.session IS NOT NULL;
