-- Removes a hold's row before the lock is given back: a remaining row shows that its holder
-- vanished. Writes the history entry. $1 name, $2 pid, $3 hold, $4 how it ended, $5 outcome; and the
-- outcome of its run
WITH freed AS (
    DELETE FROM {sessions} AS s WHERE s.name = $1 AND s.pid = $2 AND s.hold = $3
    RETURNING s.fence, timezone('utc', s.since) AS locked_at,
      timezone('utc', clock_timestamp()) AS ended, s.metadata
){remembered}{trimmed}{became}
SELECT 1 FROM freed
