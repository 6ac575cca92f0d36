-- Who waits for locks whose names start so, or are so, longest first.
SELECT w.name, w.metadata, TIMESTAMPDIFF(MICROSECOND, w.since, UTC_TIMESTAMP(6)) FROM :waiters AS w
 WHERE w.name >= :start AND IF(:whole, w.name, LEFT(w.name, LENGTH(:start))) = :start AND ABS(TIMESTAMPDIFF(SECOND, w.seen, UTC_TIMESTAMP(6))) < 15
   AND NOT EXISTS (SELECT 1 FROM :table AS l WHERE l.name = w.name AND l.root = w.hold)
   AND NOT EXISTS (SELECT 1 FROM :sessions AS s WHERE s.name = w.name AND s.root = w.hold)
   AND NOT EXISTS (SELECT 1 FROM :readers AS r WHERE r.name = w.name AND r.root = w.hold)
   AND NOT EXISTS (SELECT 1 FROM :table AS l WHERE l.name = w.name AND l.document LIKE CONCAT('%"', w.hold, '"%'))
 ORDER BY w.since, w.hold;
