-- Takes the lock if it is free, creating its row if need be. No row comes back if it is held, or of a newer layout, or if a start
-- in its row may be in the way, or others may go first.
-- The end is judged and set by one reading of the server's clock. If the row is locked by another statement, that reading
-- is older than the wait: the lease is then shorter, never longer, than was asked for. Who was granted it waits no more, and
-- lets the next one through the gate, who so listens before the lock is given back.
-- $1 name, $2 locked_by, $3 root, $4 ttl_ms, $5 detached, $6 metadata, $7 whether it may have waited,
-- $8 whether this session has the gate, $9 whether to remember who vanished, $10 and so on see starts.rs,
-- $17 its document
WITH granted AS (
    INSERT INTO {table} AS l (name, lock_until, locked_at, locked_by, layout, owner, root, ttl_ms, holds, fence, detached,
                              renewed_at, metadata, revision, document{start_columns})
    SELECT $1, t.now + $4 * interval '1 millisecond', t.now, $2, 100, $2, $3, $4, NULL,
           (extract(epoch FROM t.now) * 1000000)::bigint, $5, t.now, $6, 1, $17{start_values}
      FROM (SELECT timezone('utc', clock_timestamp()) AS now) AS t
    ON CONFLICT (name) DO UPDATE SET
        lock_until = excluded.lock_until,
        locked_at = excluded.locked_at,
        locked_by = excluded.locked_by,
        layout = excluded.layout,
        owner = excluded.owner,
        root = excluded.root,
        ttl_ms = excluded.ttl_ms,
        holds = NULL,
        -- Never below the time in microseconds, so that a lost table does not repeat fences.
        fence = greatest(l.fence + 1, excluded.fence),
        detached = excluded.detached,
        renewed_at = excluded.renewed_at,
        metadata = excluded.metadata,
        document = excluded.document,
        revision = l.revision + 1{start_set}
    WHERE (l.lock_until <= excluded.locked_at OR l.owner = l.locked_by AND l.root IS NULL AND l.holds IS NULL)
      AND l.mode IS NULL
      AND coalesce(l.layout, 0) < 200
      AND l.fence < 9007199254740990
      {nobody_first}
      {nothing_in_the_way}
    RETURNING l.fence
), waited AS (
    DELETE FROM {waiters} USING granted WHERE $7 AND name = $1 AND hold = $3
), old AS (
    -- Who had it before and never gave it back, if somebody did.
    SELECT l.fence, l.locked_at, l.lock_until, l.metadata, m.broken
      FROM {table} AS l LEFT JOIN {marks} AS m ON m.name = l.name AND m.fence = l.fence
     WHERE l.name = $1 AND l.owner = l.locked_by AND l.lock_until > timestamp '2000-01-02'
       AND (l.root IS NOT NULL OR l.holds IS NOT NULL)
), vanished AS (
    INSERT INTO {runs} (name, fence, since, ended, how, why, metadata)
    SELECT $1, o.fence, o.locked_at, o.lock_until, CASE WHEN o.broken IS NULL THEN 'expired' ELSE 'broken' END, o.broken, o.metadata
      FROM old AS o, granted WHERE $9
    ON CONFLICT (name, fence) DO NOTHING
    RETURNING 1
)
SELECT fence, EXISTS (SELECT FROM vanished) AS vanished, CASE WHEN $8 THEN pg_advisory_unlock_all()::text END FROM granted
