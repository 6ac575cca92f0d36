-- A waiter's position, from 1. A holder does not wait, although its row may still exist.
SELECT COUNT(*) FROM :waiters AS me JOIN :waiters AS other ON other.name = me.name
  AND ABS(TIMESTAMPDIFF(SECOND, other.seen, UTC_TIMESTAMP(6))) < 15
   AND (other.since < me.since OR (other.since = me.since AND other.hold <= me.hold))
   AND NOT EXISTS (SELECT 1 FROM :table AS l WHERE l.name = :name
     AND l.document LIKE CONCAT('%"', other.hold, '"%') COLLATE utf8mb4_bin)
 WHERE me.name = :name AND me.hold = :root;
