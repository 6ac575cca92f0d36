-- The history of a lock, the latest entry first.
-- $1 name
SELECT fence, (extract(epoch FROM since) * 1000)::bigint AS since_ms,
  (extract(epoch FROM ended) * 1000)::bigint AS ended_ms, how, outcome,
       metadata
  FROM {runs} WHERE name = $1 ORDER BY fence DESC
