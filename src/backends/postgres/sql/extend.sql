-- Extends the hold that the lock was taken with, if no other is beside it. No row comes back if it isn't held, or if
-- that would end it sooner, or if somebody is breaking it, unless it is to be stopped, which is noted.
-- $1 name, $2 locked_by, $3 root, $4 ttl_ms or NULL, $5 to be stopped
WITH seen AS (
    UPDATE {marks} AS m SET seen = true FROM {table} AS l
     WHERE $5 AND m.name = $1 AND l.name = $1 AND m.fence = l.fence AND l.locked_by = $2
)
UPDATE {table} AS l
   SET lock_until = t.now + coalesce($4, l.ttl_ms) * interval '1 millisecond',
       renewed_at = t.now,
       revision = l.revision + 1
  FROM (SELECT timezone('utc', clock_timestamp()) AS now) AS t
 WHERE l.name = $1 AND l.locked_by = $2 AND l.owner = $2 AND l.root = $3 AND l.holds IS NULL AND l.layout < 200
   AND l.lock_until > timezone('utc', clock_timestamp())
   AND l.lock_until <= t.now + coalesce($4, l.ttl_ms) * interval '1 millisecond'
   AND ($5 OR NOT EXISTS (SELECT FROM {marks} AS m WHERE m.name = $1 AND m.fence = l.fence))
RETURNING coalesce($4, l.ttl_ms) AS ttl_ms, l.fence
