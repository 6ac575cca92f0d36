-- Deletes a hold that a server left when it was restarted or replaced, and remembers it as broken.
-- $1 name, $2 fence
WITH freed AS (
    DELETE FROM {sessions} AS s WHERE s.name = $1 AND s.fence = $2 AND s.server IS DISTINCT
      FROM {server}
    RETURNING s.fence, timezone('utc', s.since) AS since, s.metadata
)
INSERT INTO {runs} (name, fence, since, how, outcome, metadata)
SELECT $1, f.fence, f.since, 'broken', m.mark, f.metadata
  FROM freed AS f LEFT JOIN {marks} AS m ON m.name = $1 AND m.fence = f.fence
ON CONFLICT (name, fence) DO NOTHING
