-- The lock's holder: the number of its session, or 0 in mode=row, where it is not known; the
-- holder's record, and the mark of a break.
SELECT :holder, s.fence, s.layout, s.session, TIMESTAMPDIFF(MICROSECOND, s.since, UTC_TIMESTAMP(6)),
       TIMESTAMPDIFF(MICROSECOND, s.renewed_at, UTC_TIMESTAMP(6)), s.ttl_ms, s.metadata, m.mark,
         COALESCE(m.seen, 0)
  FROM (SELECT 1) AS one LEFT JOIN :sessions AS s ON s.name = :name LEFT
    JOIN :marks AS m ON m.name = s.name AND m.fence = s.fence;
