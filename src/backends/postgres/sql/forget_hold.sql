-- Deletes the row of a hold, and writes the outcome of its run.
-- $1 name, $2 hold; with a history entry: $3 how, $4 outcome
WITH freed AS (
    DELETE FROM {sessions} AS s WHERE s.name = $1 AND s.hold = $2 {which}
    RETURNING s.fence, timezone('utc', s.since) AS locked_at,
      timezone('utc', clock_timestamp()) AS ended, s.metadata
){remembered}
UPDATE {fences} AS l SET fence = l.fence{became} FROM freed AS f
 WHERE l.name = $1 AND f.fence IN (l.start_fence, l.paced_fence)
