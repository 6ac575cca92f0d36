-- Writes a row back if nobody changed it since it was read and it is still held; wakes who waits if it is free by that, and
-- remembers how the hold ended.
-- $1 name, $2 locked_by, $3 revision, $4 lock_until_us, $5 how it ended or NULL to remember nothing, $6 why, $7 holds, $8 root,
-- $9 renewed_us, $10 channel if it is free, $11 ttl_ms
WITH freed AS (
    UPDATE {table} AS l
       SET lock_until = timestamp 'epoch' + $4 * interval '1 microsecond',
           renewed_at = timestamp 'epoch' + $9 * interval '1 microsecond',
           root = $8, ttl_ms = $11, holds = $7, revision = l.revision + 1{became}
     WHERE l.name = $1 AND l.locked_by = $2 AND l.owner = $2 AND l.revision = $3
       AND l.lock_until > timezone('utc', clock_timestamp())
    RETURNING l.fence, l.locked_at, l.renewed_at AS ended, l.metadata
), {remember}
SELECT CASE WHEN $10 IS NULL THEN '' ELSE pg_notify($10, '')::text END FROM freed
