-- Writes a row back if it has not changed since it was read and it is not too late. Notifies
-- waiters, and archives the holds that this write ends. A waiter that is in the document now, or
-- has the lock, is no longer a plain waiter. $1 name; as it was: $2 locked_by, $3 revision, $4
-- lock_until_us; $5 until when in us or NULL; the new values: $6 lock_until_us, $7 locked_at_us, $8
-- locked_by, $9 owner, $10 fence, $11 renewed_us or NULL for now, $12 document; $13 plain waiters,
-- $14 another run record, $15 ended holds, $16 the waiters to notify. Parts with nothing to do and
-- unchanged columns are left out: the server plans the whole statement each time.
WITH written AS (
    UPDATE {table} AS l
       SET lock_until = timestamp 'epoch' + $6 * interval '1 microsecond',
           renewed_at = coalesce(timestamp 'epoch' + $11 * interval '1 microsecond',
             timezone('utc', clock_timestamp())),
           revision = l.revision + 1{changed}$14
     WHERE l.name = $1 AND l.locked_by = $2 AND l.revision = $3
       AND {until} = $4
       AND coalesce(timezone('utc', clock_timestamp())
         < timestamp 'epoch' + $5 * interval '1 microsecond', true)
       {lasts}
    RETURNING 1
){past}{trimmed}{absorbed}
SELECT {found}$16{gate} FROM written
