-- The run record of a lock, and the time.
-- $1 name
SELECT {starts}, (extract(epoch FROM t.now) * 1000)::bigint AS now_ms
  FROM {fences} AS l, (SELECT timezone('utc', clock_timestamp()) AS now) AS t
 WHERE l.name = $1
