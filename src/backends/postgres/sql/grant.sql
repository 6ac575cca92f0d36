-- Takes a free lock for an exclusive hold, or creates its row. Returns no row if the lock is held
-- or of another layout, if its run record may deny the grant, or if it has a document, whose rules
-- must be checked first. One reading of the server's clock judges and sets the end. If another
-- statement has locked the row, that reading is older than the wait: the lease is then shorter,
-- never longer, than requested. The new holder leaves the queue, and unlocks the advisory lock, so
-- that the next waiter listens before the lock is released. $1 name, $2 locked_by, $3 hold, $4
-- ttl_ms, $5 its document, $6 the first fence that is too high
WITH granted AS (
    INSERT INTO {table} AS l (name, lock_until, locked_at, locked_by, layout, owner, fence,
      renewed_at, revision, document, mode{start_columns})
    SELECT $1, t.now + $4 * interval '1 millisecond', t.now, $2, {layout}, $2,
      (extract(epoch FROM t.now) * 1000000)::bigint, t.now, 1,
           $5, {mode}{start_values}
      FROM (SELECT timezone('utc', clock_timestamp()) AS now) AS t
     WHERE true{lasts}
    ON CONFLICT (name) DO UPDATE SET
        lock_until = excluded.lock_until,
        locked_at = excluded.locked_at,
        locked_by = excluded.locked_by,
        layout = excluded.layout,
        owner = excluded.owner,
        -- At least the time in microseconds, so that a lost table does not repeat fences.
        fence = greatest(l.fence + 1, excluded.fence),
        renewed_at = excluded.renewed_at,
        revision = l.revision + 1,
        document = excluded.document{start_set}
    WHERE l.document IS NULL AND (l.lock_until <= excluded.locked_at OR l.owner = l.locked_by)
      AND l.mode IS NOT DISTINCT FROM {mode}
      AND coalesce(l.layout, {layout}) / 100 = {layout} / 100
      AND l.fence < $6
      {nothing_in_the_way}
    RETURNING l.*
){waited}
SELECT {columns}{gate}
  FROM granted AS l, (SELECT timezone('utc', clock_timestamp()) AS now) AS t
