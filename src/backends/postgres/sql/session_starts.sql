-- The starts of a lock's runs, the time, and the fence that was counted for this hold before, if one was.
-- $1 name, $2 hold
SELECT {starts}, (extract(epoch FROM t.now) * 1000)::bigint AS now_ms,
       (SELECT max(s.fence) FROM {sessions} AS s WHERE s.name = $1 AND s.hold = $2) AS own
  FROM {fences} AS l, (SELECT timezone('utc', clock_timestamp()) AS now) AS t
 WHERE l.name = $1
