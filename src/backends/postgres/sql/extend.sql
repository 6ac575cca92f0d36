-- Extends an exclusive hold. Returns no row if the row was changed since this client wrote it, or
-- the hold is over, or the hold would end sooner. $1 name, $2 locked_by, $3 revision, $4 ttl_ms
UPDATE {table} AS l
   SET lock_until = t.now + $4 * interval '1 millisecond', renewed_at = t.now,
     revision = l.revision + 1
  FROM (SELECT timezone('utc', clock_timestamp()) AS now) AS t
 WHERE l.name = $1 AND l.locked_by = $2 AND l.revision = $3
   AND l.lock_until > timezone('utc', clock_timestamp())
   AND l.lock_until <= t.now + $4 * interval '1 millisecond'
RETURNING (extract(epoch FROM l.lock_until) * 1000000)::bigint AS lock_until_us,
  (extract(epoch FROM t.now) * 1000000)::bigint AS now_us
