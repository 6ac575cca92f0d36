-- The readers, longest first: their records, and the marks of a break.
SELECT r.fence, TIMESTAMPDIFF(MICROSECOND, r.since, UTC_TIMESTAMP(6)),
  TIMESTAMPDIFF(MICROSECOND, r.renewed_at, UTC_TIMESTAMP(6)), r.ttl_ms,
       r.metadata, m.mark, COALESCE(m.seen, 0)
  FROM :readers AS r LEFT JOIN :marks AS m ON m.name = r.name AND m.fence = r.fence
 WHERE r.name = :name AND :reads
 ORDER BY r.since, r.fence;
