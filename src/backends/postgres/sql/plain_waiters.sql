-- Who waits for the whole lock in no order, longest first.
-- $1 name
SELECT hold, metadata, (extract(epoch FROM since) * 1000)::bigint AS since_ms, (extract(epoch FROM seen) * 1000)::bigint AS seen_ms
  FROM {waiters} AS w WHERE name = $1 AND seen > clock_timestamp() - interval '15 seconds'
 ORDER BY place
