-- Checks what may deny a hold besides run records, for a lock that was just taken: notes the end of
-- the leases of holds whose server was restarted or is another one by now; claims the lock for this
-- mode if it is free in mode=lease, with its run record. Returns the mode that keeps the lock, and
-- whether such a lease is not over. $1 name, $2 hold, $3 shared, $4 mode
UPDATE {sessions} AS s SET ends = {ends}
 WHERE s.name = $1 AND s.hold <> $2 AND s.server IS DISTINCT FROM {server}
   AND (s.ends IS NULL OR s.ends > clock_timestamp() + s.ttl_ms * interval '1 millisecond');
INSERT INTO {fences} AS f (name, fence, {record})
SELECT l.name, l.fence, {record} FROM {table} AS l
 WHERE l.name = $1 AND l.mode IS NULL AND {free}
   AND coalesce(l.paced_at, l.start_at) IS NOT NULL FOR UPDATE
    ON CONFLICT (name) DO UPDATE SET fence = greatest(f.fence, excluded.fence),
      ({record}) = ROW ({new_record});
UPDATE {table} AS l SET mode = $4, revision = l.revision + 1
 WHERE l.name = $1 AND l.mode IS NULL AND {free};
SELECT (SELECT coalesce(l.mode, 'lease') FROM {table} AS l WHERE l.name = $1) AS mode,
       EXISTS (SELECT FROM {sessions} AS s WHERE s.name = $1 AND s.hold <> $2
         AND NOT ($3 AND s.shared) AND {left}) AS waits
