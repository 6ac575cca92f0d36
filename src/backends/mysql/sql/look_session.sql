-- Who has the lock: the number of the session, or 0 if somebody has it who can't be told; and what its holder wrote.
SELECT :holder, s.fence, s.layout, s.session, TIMESTAMPDIFF(MICROSECOND, s.since, UTC_TIMESTAMP(6)),
       TIMESTAMPDIFF(MICROSECOND, s.renewed_at, UTC_TIMESTAMP(6)), s.ttl_ms, s.metadata
  FROM (SELECT 1) AS one LEFT JOIN :sessions AS s ON s.name = :name;
