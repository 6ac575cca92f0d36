-- The waiters for locks whose names start with $1 (or is $1, if $2), longest first.
SELECT name, hold, metadata, (extract(epoch FROM since) * 1000)::bigint AS since_ms,
  (extract(epoch FROM seen) * 1000)::bigint AS seen_ms,
       (extract(epoch FROM clock_timestamp() - since) * 1000000)::bigint AS waited_us
  FROM {waiters} AS w
 WHERE CASE WHEN $2 THEN name = $1 ELSE left(name, length($1)) = $1 END
   AND seen > clock_timestamp() - interval '15 seconds'
 ORDER BY place
