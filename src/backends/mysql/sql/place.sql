-- A waiter's place, from 1. Who has the lock waits no more, though it may stand there still.
SELECT COUNT(*) FROM :waiters AS me JOIN :waiters AS other ON other.name = me.name AND ABS(TIMESTAMPDIFF(SECOND, other.seen, UTC_TIMESTAMP(6))) < 15
   AND (other.since < me.since OR (other.since = me.since AND other.hold <= me.hold))
   AND NOT EXISTS (SELECT 1 FROM :table AS l WHERE l.name = other.name AND l.root = other.hold)
   AND NOT EXISTS (SELECT 1 FROM :sessions AS s WHERE s.name = other.name AND s.root = other.hold)
 WHERE me.name = :name AND me.hold = :root;
