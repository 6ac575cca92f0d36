trimmed AS (
    -- One release in four removes all but the last hundred entries, and all but the last hundred of
    -- those that ended badly.
    DELETE FROM {runs} AS r USING remembered AS f
     WHERE f.fence % 4 = 0 AND r.name = $1
       AND r.fence < (SELECT o.fence FROM {runs} AS o WHERE o.name = $1
         ORDER BY o.fence DESC OFFSET 99 LIMIT 1)
       AND (r.how IN ('ok', 'released')
            OR r.fence < (SELECT o.fence FROM {runs} AS o WHERE o.name = $1
              AND o.how NOT IN ('ok', 'released')
                           ORDER BY o.fence DESC OFFSET 99 LIMIT 1))
)
