-- Deletes the row of a hold, and writes the outcome of its run.
-- $1 name, $2 hold
WITH freed AS (
    DELETE FROM {sessions} AS s WHERE s.name = $1 AND s.hold = $2 {which} RETURNING s.fence
)
UPDATE {fences} AS l SET fence = l.fence{became} FROM freed AS f
 WHERE l.name = $1 AND f.fence IN (l.start_fence, l.paced_fence)
