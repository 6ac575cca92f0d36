-- Counts the fence of a hold that was just taken, and says whose it is, unless a start of a run before may be in the way, or a hold of a
-- server that was restarted or took over since, whose lease may not be over, or the lock may be kept in another mode: then nothing is done.
-- It is committed by itself, while the lock is held by another transaction or by the session, so that it survives however the
-- hold ends. Also how many holders before vanished without a word, since who gives a lock back takes his row out first; they are
-- remembered, except for this hold itself under an older process. Who has the lock waits no more.
-- $1 name, $2 pid, $3 shared, $4 ttl_ms, $5 metadata, $6 hold, $7 mode, $8 locked_by of a free row, $9 and so on see starts.rs
WITH t AS (
    SELECT timezone('utc', clock_timestamp()) AS now, {server} AS server
), claimed AS (
    INSERT INTO {table} (name, lock_until, locked_at, locked_by, layout, owner, mode, revision)
    SELECT $1, '2000-01-01', t.now, $8, {layout}, $8, $7, 1 FROM t
    ON CONFLICT (name) DO NOTHING
    RETURNING 1
), f AS (
    INSERT INTO {fences} AS l (name, fence{start_columns})
    SELECT $1, (extract(epoch FROM t.now) * 1000000)::bigint{start_values} FROM t
     WHERE (EXISTS (SELECT FROM claimed) OR EXISTS (SELECT FROM {table} AS k WHERE k.name = $1 AND k.mode = $7))
       AND NOT EXISTS (SELECT FROM {sessions} AS s WHERE s.name = $1 AND s.hold <> $6 AND NOT ($3 AND s.shared) AND {left})
    ON CONFLICT (name) DO UPDATE SET fence = greatest(l.fence + 1, excluded.fence){start_set}
    WHERE true {nothing_in_the_way}
    RETURNING l.fence
), others AS (
    -- Beside a reader there can be others.
    SELECT s.pid, s.hold, s.fence, s.since, s.metadata FROM {sessions} AS s, f, t
     WHERE s.name = $1 AND (s.pid <> $2 OR s.hold <> $6)
       AND NOT ($3 AND s.shared
                AND (s.server = t.server AND EXISTS (SELECT FROM pg_stat_activity AS a WHERE a.pid = s.pid) AND s.pid <> $2 OR {left}))
), gone AS (
    SELECT * FROM others WHERE hold <> $6
), forgotten AS (
    DELETE FROM {sessions} AS s USING others AS o WHERE s.name = $1 AND s.pid = o.pid AND o.pid <> $2
), vanished AS (
    INSERT INTO {runs} (name, fence, since, how, why, metadata)
    SELECT $1, g.fence, timezone('utc', g.since), CASE WHEN m.broken IS NULL THEN 'expired' ELSE 'broken' END, m.broken, g.metadata
      FROM gone AS g LEFT JOIN {marks} AS m ON m.name = $1 AND m.fence = g.fence
    ON CONFLICT (name, fence) DO NOTHING
), waited AS (
    DELETE FROM {waiters} USING f WHERE name = $1 AND hold = $6
)
INSERT INTO {sessions} AS s (name, pid, hold, shared, fence, since, ttl_ms, metadata, server)
SELECT $1, $2, $6, $3, f.fence, clock_timestamp(), $4, $5, t.server FROM f, t
ON CONFLICT (name, pid) DO UPDATE SET
    hold = excluded.hold, shared = excluded.shared, fence = excluded.fence, since = excluded.since, ttl_ms = excluded.ttl_ms,
    metadata = excluded.metadata, server = excluded.server, ends = NULL
RETURNING s.fence, (extract(epoch FROM s.since) * 1000000)::bigint AS now_us, (SELECT count(*) FROM gone) AS gone
