others AS (
    -- A reader shares the row with other readers.
    SELECT s.pid, s.hold, s.fence, s.since, s.metadata FROM {sessions} AS s, t
     WHERE s.name = $1 AND (s.pid <> $2 OR s.hold <> $6)
       AND NOT ($3 AND s.shared
                AND (s.server = t.server AND EXISTS (SELECT FROM pg_stat_activity AS a
                  WHERE a.pid = s.pid) AND s.pid <> $2 OR {left}))
)
