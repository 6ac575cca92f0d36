-- Which session keeps the row locked, and what it said of it. The row names the transaction that locked it last, which
-- keeps a lock on its own number for as long as it lasts. Who waited for the row got it in a part of a transaction, whose
-- number is locked no more; but its session has the table, said that it has the row, and never locks another.
-- $1 name
SELECT coalesce(l.pid, w.pid) AS pid, false AS shared, s.fence, s.metadata,
       (extract(epoch FROM clock_timestamp() - s.since) * 1000000)::bigint AS held_us,
       -- A session that is just ending keeps its locks for an instant longer than its place among the others.
       CASE WHEN a.pid IS NULL THEN s.ttl_ms * 1000
            ELSE (extract(epoch FROM clock_timestamp() - a.state_change) * 1000000)::bigint END AS silent_us,
       s.ttl_ms, m.mark, m.seen,
       (SELECT f.fence FROM {fences} AS f WHERE f.name = $1) AS last_fence
  FROM (SELECT 1) AS one
  LEFT JOIN {rows} AS r ON r.name = $1
  LEFT JOIN pg_locks AS l
    ON l.locktype = 'transactionid' AND l.granted AND l.mode = 'ExclusiveLock' AND l.transactionid = r.xmax
  LEFT JOIN (SELECT said.pid FROM {sessions} AS said JOIN pg_locks AS has
                 ON has.pid = said.pid AND has.granted AND has.locktype = 'relation' AND has.mode = 'RowShareLock'
                AND has.relation = '{rows}'::regclass
              WHERE said.name = $1) AS w ON l.pid IS NULL
  LEFT JOIN {sessions} AS s ON s.name = $1 AND s.pid = coalesce(l.pid, w.pid)
  LEFT JOIN {marks} AS m ON m.name = $1 AND m.fence = s.fence
  LEFT JOIN pg_stat_activity AS a ON a.pid = coalesce(l.pid, w.pid)
