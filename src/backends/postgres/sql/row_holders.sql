-- The sessions that keep the row locked, and their records. The row names the transaction that
-- locked it last, which keeps a lock on its own number while it lasts. A session that waited locked
-- the row in a subtransaction, whose number is not locked any more, and several readers share a
-- number of another kind. But such a session has the table locked, has a record, and never locks
-- another row. Process numbers are reused: a record counts only if this very session wrote it. $1
-- name
SELECT held.pid, coalesce(s.shared, false) AS shared, s.fence, s.metadata,
       (extract(epoch FROM clock_timestamp() - s.since) * 1000000)::bigint AS held_us,
       -- An ending session keeps its locks for an instant longer than its entry in
       -- pg_stat_activity.
       CASE WHEN a.pid IS NULL THEN s.ttl_ms * 1000
            ELSE (extract(epoch FROM clock_timestamp() - a.state_change) * 1000000)::bigint END AS silent_us,
       s.ttl_ms, m.mark, m.seen, a.backend_start::text AS began,
       (SELECT f.fence FROM {fences} AS f WHERE f.name = $1) AS last_fence, s.since
  FROM (SELECT 1) AS one
  LEFT JOIN (
    WITH named AS (
        SELECT l.pid FROM {rows} AS r JOIN pg_locks AS l
            ON l.locktype = 'transactionid' AND l.granted AND l.mode = 'ExclusiveLock'
              AND l.transactionid = r.xmax
         WHERE r.name = $1 AND EXISTS (SELECT FROM pg_locks AS has WHERE has.pid = l.pid
           AND has.relation = '{rows}'::regclass)
    ), told AS (
        SELECT said.pid, said.shared FROM {sessions} AS said JOIN pg_locks AS has
            ON has.pid = said.pid AND has.granted AND has.locktype = 'relation'
              AND has.mode = 'RowShareLock'
           AND has.relation = '{rows}'::regclass
          LEFT JOIN pg_stat_activity AS lives ON lives.pid = said.pid
         WHERE said.name = $1 AND said.server = {server}
           AND coalesce(lives.backend_start, said.since) <= said.since
    )
    SELECT pid FROM named
    UNION SELECT pid FROM told WHERE shared OR NOT EXISTS (SELECT FROM named)
  ) AS held ON true
  LEFT JOIN {sessions} AS s ON s.name = $1 AND s.pid = held.pid AND s.server = {server}
  LEFT JOIN {marks} AS m ON m.name = $1 AND m.fence = s.fence
  LEFT JOIN pg_stat_activity AS a ON a.pid = held.pid
UNION ALL
{left_holds} ORDER BY since
