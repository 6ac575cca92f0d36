-- The sessions that have the advisory lock, and their records.
-- $1 name
SELECT l.pid, l.mode = 'ShareLock' AS shared, s.fence, s.metadata,
       (extract(epoch FROM clock_timestamp() - s.since) * 1000000)::bigint AS held_us,
       -- An ending session keeps its locks for an instant longer than its entry in
       -- pg_stat_activity.
       CASE WHEN a.pid IS NULL THEN s.ttl_ms * 1000
            ELSE (extract(epoch FROM clock_timestamp() - a.state_change) * 1000000)::bigint END AS silent_us,
       s.ttl_ms, m.mark, m.seen, a.backend_start::text AS began,
       (SELECT f.fence FROM {fences} AS f WHERE f.name = $1) AS last_fence, s.since
  FROM (SELECT 1) AS one
  LEFT JOIN pg_locks AS l
    ON l.locktype = 'advisory' AND l.granted AND l.database = (SELECT oid FROM pg_database
      WHERE datname = current_database())
   AND {is_key}
  LEFT JOIN {sessions} AS s ON s.name = $1 AND s.pid = l.pid AND s.server = {server}
  LEFT JOIN {marks} AS m ON m.name = $1 AND m.fence = s.fence
  LEFT JOIN pg_stat_activity AS a ON a.pid = l.pid
UNION ALL
{left_holds} ORDER BY since
