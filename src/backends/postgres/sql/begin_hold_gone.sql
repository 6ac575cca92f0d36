gone AS (
    SELECT o.* FROM others AS o, f WHERE o.hold <> $6
), forgotten AS (
    DELETE FROM {sessions} AS s USING others AS o, f WHERE s.name = $1 AND s.pid = o.pid
      AND s.hold = o.hold AND o.pid <> $2
), vanished AS (
    INSERT INTO {runs} (name, fence, since, how, outcome, metadata)
    SELECT $1, g.fence, timezone('utc', g.since),
      CASE WHEN m.mark IS NULL THEN 'expired' ELSE 'broken' END, m.mark, g.metadata
      FROM gone AS g LEFT JOIN {marks} AS m ON m.name = $1 AND m.fence = g.fence
    ON CONFLICT (name, fence) DO NOTHING
)
