-- The waiters for locks whose names have this start, or are equal to it, longest first.
SELECT w.name, w.hold, w.metadata, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', w.since) DIV 1000,
  TIMESTAMPDIFF(MICROSECOND, '1970-01-01', w.seen) DIV 1000,
       TIMESTAMPDIFF(MICROSECOND, w.since, UTC_TIMESTAMP(6))
  FROM :waiters AS w
 WHERE w.name >= :start AND IF(:whole, w.name, LEFT(w.name, LENGTH(:start))) = :start
   AND ABS(TIMESTAMPDIFF(SECOND, w.seen, UTC_TIMESTAMP(6))) < 15
   AND NOT EXISTS (SELECT 1 FROM :table AS l WHERE l.name = w.name
     AND l.document LIKE CONCAT('%"', w.hold, '"%') COLLATE utf8mb4_bin)
 ORDER BY w.since, w.hold;
