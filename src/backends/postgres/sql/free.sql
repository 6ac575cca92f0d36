-- Gives the lock back with the hold that it was taken with, if no other is beside it and no document, wakes who waits, and remembers how it ended.
-- It ends long ago and not now: free for ShedLock too, wherever the server's clock is set back to; or when the time is over for which its
-- run is to count at least, for which only ShedLock looks at the end.
-- $1 name, $2 locked_by, $3 root, $4 channel, $5 how it ended or NULL to remember nothing, $6 why
WITH freed AS (
    UPDATE {table} AS l
       SET lock_until = {kept}, renewed_at = t.now, root = NULL, holds = NULL, revision = l.revision + 1{became}
      FROM (SELECT timezone('utc', clock_timestamp()) AS now) AS t
     WHERE l.name = $1 AND l.locked_by = $2 AND l.owner = $2 AND l.root = $3 AND l.holds IS NULL AND l.layout < 200 AND l.document IS NULL
       AND l.lock_until > timezone('utc', clock_timestamp())
    RETURNING l.fence, l.locked_at, l.renewed_at AS ended, l.metadata
), {remember}
SELECT pg_notify($4, '')::text FROM freed
