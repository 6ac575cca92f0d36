(
    -- The readers that began within the drain delay of a writer which had vanished before them.
    SELECT count(*) FROM {sessions} AS d
     WHERE $3 AND d.name = $1 AND d.shared AND d.hold <> $6 AND d.since > clock_timestamp() - interval '{drain_ms} milliseconds'
       AND (SELECT r.how FROM {runs} AS r WHERE r.name = $1 AND r.fence < d.fence ORDER BY r.fence DESC LIMIT 1)
           IN ('expired', 'lost', 'broken')
)
