-- Marks the hold with this fence for a break. A repeated mark keeps whether the holder knows it.
-- $1 name, $2 fence, $3 mark
WITH old AS (
    DELETE FROM {marks} AS m WHERE m.name = $1 AND m.fence <> $2
       AND NOT EXISTS (SELECT FROM {sessions} AS s WHERE s.name = $1 AND s.fence = m.fence)
)
INSERT INTO {marks} AS m (name, fence, mark)
SELECT s.name, s.fence, $3 FROM {sessions} AS s WHERE s.name = $1 AND s.fence = $2
ON CONFLICT (name, fence) DO UPDATE SET mark = excluded.mark
RETURNING 1
