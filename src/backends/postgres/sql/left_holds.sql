SELECT 0 AS pid, s.shared, s.fence, s.metadata,
  (extract(epoch FROM clock_timestamp() - s.since) * 1000000)::bigint AS held_us,
       s.ttl_ms * 1000 - (extract(epoch FROM coalesce(s.ends,
         {ends}) - clock_timestamp()) * 1000000)::bigint AS silent_us,
       s.ttl_ms, m.mark, m.seen, NULL::text AS began,
         (SELECT f.fence FROM {fences} AS f WHERE f.name = $1) AS last_fence, s.since
  FROM {sessions} AS s LEFT JOIN {marks} AS m ON m.name = $1 AND m.fence = s.fence
 WHERE s.name = $1 AND {left} AND coalesce(s.ends, {ends}) > clock_timestamp()
