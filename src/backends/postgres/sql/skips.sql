-- The skipped runs of a lock.
-- $1 name
SELECT host, count, (extract(epoch FROM since) * 1000)::bigint AS since_ms,
  (extract(epoch FROM last) * 1000)::bigint AS last_ms, reason
  FROM {skips} WHERE name = $1
