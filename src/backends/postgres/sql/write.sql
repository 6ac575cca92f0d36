-- Writes a row back if nobody changed it since it was read and it is not too late; wakes who is to be woken, and remembers the holds that
-- are over by that. A waiter that is in the document now is no plain one any more.
-- $1 name; as it was: $2 locked_by, $3 revision, $4 lock_until_us; $5 until when in us or NULL; as it is to be: $6 lock_until_us,
-- $7 locked_at_us, $8 locked_by, $9 root, $10 ttl_ms, $11 holds, $12 fence, $13 renewed_us, $14 document; $15 holds that are over, as JSON,
-- $16 channels, $17 plain waiters
WITH written AS (
    UPDATE {table} AS l
       SET lock_until = timestamp 'epoch' + $6 * interval '1 microsecond',
           locked_at = timestamp 'epoch' + $7 * interval '1 microsecond',
           renewed_at = timestamp 'epoch' + $13 * interval '1 microsecond',
           locked_by = $8, layout = coalesce(l.layout, 100), root = $9, ttl_ms = $10, holds = $11, fence = $12, document = $14,
           revision = l.revision + 1{became}
     WHERE l.name = $1 AND l.locked_by = $2 AND l.revision = $3
       AND (extract(epoch FROM l.lock_until) * 1000000)::bigint = $4
       AND coalesce(timezone('utc', clock_timestamp()) < timestamp 'epoch' + $5 * interval '1 microsecond', true)
    RETURNING 1
), freed AS (
    SELECT p.fence, timestamp 'epoch' + p.since * interval '1 millisecond' AS locked_at,
           timestamp 'epoch' + p.ended * interval '1 millisecond' AS ended, p.how, p.why, p.metadata
      FROM written, json_to_recordset($15::json)
               AS p (fence bigint, since bigint, ended bigint, how text, why text, metadata text)
), remembered AS (
    INSERT INTO {runs} (name, fence, since, ended, how, why, metadata)
    SELECT $1, f.fence, f.locked_at, f.ended, f.how, f.why, f.metadata FROM freed AS f
    ON CONFLICT (name, fence) DO NOTHING
), {trimmed}, absorbed AS (
    DELETE FROM {waiters} USING written WHERE name = $1 AND hold = ANY($17)
)
SELECT (SELECT count(pg_notify(channel, '')) FROM unnest($16) AS channel) FROM written
