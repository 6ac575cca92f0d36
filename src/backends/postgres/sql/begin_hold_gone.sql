others AS (
    -- A reader shares the row with other readers.
    SELECT s.pid, s.hold, s.fence, s.since, s.metadata FROM {sessions} AS s, f, t
     WHERE s.name = $1 AND (s.pid <> $2 OR s.hold <> $6)
       AND NOT ($3 AND s.shared
                AND (s.server = t.server AND EXISTS (SELECT FROM pg_stat_activity AS a WHERE a.pid = s.pid) AND s.pid <> $2 OR {left}))
), gone AS (
    SELECT * FROM others WHERE hold <> $6
), forgotten AS (
    DELETE FROM {sessions} AS s USING others AS o WHERE s.name = $1 AND s.pid = o.pid AND s.hold = o.hold AND o.pid <> $2
), vanished AS (
    INSERT INTO {runs} (name, fence, since, how, why, metadata)
    SELECT $1, g.fence, timezone('utc', g.since), CASE WHEN m.broken IS NULL THEN 'expired' ELSE 'broken' END, m.broken, g.metadata
      FROM gone AS g LEFT JOIN {marks} AS m ON m.name = $1 AND m.fence = g.fence
    ON CONFLICT (name, fence) DO NOTHING
)
