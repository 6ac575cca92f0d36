-- Writes a row back if nobody changed it since it was read and it is not too late; wakes who is to be woken, and remembers the holds that
-- are over by that. A waiter that is in the document now, or has the lock, is no plain one any more.
-- $1 name; as it was: $2 locked_by, $3 revision, $4 lock_until_us; $5 until when in us or NULL; as it is to be: $6 lock_until_us,
-- $7 locked_at_us, $8 locked_by, $9 owner, $10 fence, $11 renewed_us or NULL for now, $12 document; $13 plain waiters, $14 other starts to
-- record, $15 holds that are over, $16 whom to wake. A part with nothing to do is left out: the server plans the whole statement each time.
WITH written AS (
    UPDATE {table} AS l
       SET lock_until = timestamp 'epoch' + $6 * interval '1 microsecond',
           locked_at = timestamp 'epoch' + $7 * interval '1 microsecond',
           locked_by = $8, layout = {layout}, owner = $9, fence = $10,
           renewed_at = coalesce(timestamp 'epoch' + $11 * interval '1 microsecond', timezone('utc', clock_timestamp())),
           document = $12, revision = l.revision + 1$14
     WHERE l.name = $1 AND l.locked_by = $2 AND l.revision = $3
       AND (extract(epoch FROM l.lock_until) * 1000000)::bigint = $4
       AND coalesce(timezone('utc', clock_timestamp()) < timestamp 'epoch' + $5 * interval '1 microsecond', true)
    RETURNING 1
){past}{trimmed}{absorbed}
SELECT 1$16{gate} FROM written
