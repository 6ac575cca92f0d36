-- Marks the hold with this fence as to be broken, if it has the lock. One that was marked before keeps whether it was seen.
-- $1 name, $2 fence, $3 mark, $4 the same as the history has it
WITH old AS (
    -- Of holds that are over; a table has locks of one mode only, as a rule.
    DELETE FROM {marks} AS m WHERE m.name = $1 AND m.fence <> $2
       AND NOT EXISTS (SELECT FROM {table} AS l WHERE l.name = $1 AND l.fence = m.fence)
       AND NOT EXISTS (SELECT FROM {sessions} AS s WHERE s.name = $1 AND s.fence = m.fence)
)
INSERT INTO {marks} AS m (name, fence, mark, broken)
SELECT l.name, l.fence, $3, $4 FROM {table} AS l
 WHERE l.name = $1 AND l.fence = $2 AND l.owner = l.locked_by AND (l.root IS NOT NULL OR l.holds IS NOT NULL) AND l.lock_until > timezone('utc', clock_timestamp())
ON CONFLICT (name, fence) DO UPDATE SET mark = excluded.mark, broken = excluded.broken
RETURNING 1
