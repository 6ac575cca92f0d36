-- Counts the fence of a hold that was just taken, and writes its record. Does nothing if an earlier
-- run record may deny the grant, if the lease of a hold whose server was restarted or replaced may
-- not be over, if another mode may keep the lock, or if the transaction that had the lock is over:
-- a late request must not replace the record of the next holder. The fence is committed by itself,
-- while another transaction or the session holds the lock, so that it survives every end of the
-- hold. Also notes when the earlier holders that vanished have stopped, since a release removes its
-- row first, and writes their history entries, except for this hold itself under an older process.
-- This part is left out if there are no rows of other holds. A retry and the next holder have the
-- drain delay, too. It ends no later than if it began now, in case the clock was set back. $1 name,
-- $2 pid, $3 shared, $4 ttl_ms, $5 metadata, $6 hold, $7 mode, $8 locked_by of a free row
WITH t AS (
    SELECT timezone('utc', clock_timestamp()) AS now, {server} AS server
){others}, claimed AS (
    INSERT INTO {table} (name, lock_until, locked_at, locked_by, layout, owner, mode, revision)
    SELECT $1, '2000-01-01', t.now, $8, {layout}, $8, $7, 1 FROM t
    ON CONFLICT (name) DO NOTHING
    RETURNING 1
), f AS (
    INSERT INTO {fences} AS l (name, fence, drains{start_columns})
    SELECT $1, (extract(epoch FROM t.now) * 1000000)::bigint, {drains}{start_values} FROM t
     WHERE (EXISTS (SELECT FROM claimed) OR EXISTS (SELECT FROM {table} AS k WHERE k.name = $1
       AND k.mode = $7))
       AND NOT EXISTS (SELECT FROM {sessions} AS s WHERE s.name = $1{in_the_way}) {lasts}
    ON CONFLICT (name) DO UPDATE SET fence = greatest(l.fence + 1, excluded.fence),
        drains = coalesce(excluded.drains, CASE WHEN l.drains
          > {drained} THEN {drained} ELSE l.drains END){start_set}
    WHERE true {nothing_in_the_way}
    RETURNING l.fence, l.drains
){gone_holds}{waited}
INSERT INTO {sessions} AS s (name, pid, hold, shared, fence, since, ttl_ms, metadata, server)
SELECT $1, $2, $6, $3, f.fence, clock_timestamp(), $4, $5, t.server FROM f, t
ON CONFLICT (name, pid) DO UPDATE SET
    hold = excluded.hold, shared = excluded.shared, fence = excluded.fence, since = excluded.since,
      ttl_ms = excluded.ttl_ms,
    metadata = excluded.metadata, server = excluded.server, ends = NULL
RETURNING s.fence, (extract(epoch FROM s.since) * 1000000)::bigint AS now_us,
  coalesce((SELECT f.drains > s.since FROM f), false) AS drains
