-- Puts a waiter into the queue, or confirms its entry, and returns its position, from 1. Silent
-- waiters are swept. The queue only informs: no grant depends on it. $1 name, $2 hold, $3 metadata
WITH swept AS (
    DELETE FROM {waiters} WHERE name = $1 AND hold <> $2 AND seen
      < clock_timestamp() - interval '20 seconds'
), me AS (
    INSERT INTO {waiters} AS w (name, hold, since, seen, metadata)
      VALUES ($1, $2, clock_timestamp(), clock_timestamp(), $3)
    ON CONFLICT (name, hold) DO UPDATE SET seen = excluded.seen
    RETURNING w.place)
SELECT count(o.place) + 1 AS position
  FROM me LEFT JOIN {waiters} AS o
    ON o.name = $1 AND o.place < me.place AND o.seen > clock_timestamp() - interval '15 seconds'
