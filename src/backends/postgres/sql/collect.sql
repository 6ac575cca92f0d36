-- Removes rows last used longer ago than this, history from before then, and waiters that are gone.
-- $1 seconds, $2 the common prefix of the names of the namespace
WITH t AS (
    SELECT timezone('utc', clock_timestamp()) - $1 * interval '1 second' AS before
), gone AS (
    DELETE FROM {waiters} WHERE seen < clock_timestamp() - interval '1 minute'
), runs AS (
    DELETE FROM {runs} AS r USING t
     WHERE coalesce(r.ended, r.since, timestamp 'epoch' + r.fence * interval '1 microsecond')
       < t.before
), skips AS (
    DELETE FROM {skips} AS s USING t WHERE s.last < t.before
)
DELETE FROM {table} AS l USING t
 WHERE left(l.name, length($2)) = $2 AND l.mode IS NULL
   AND greatest(l.lock_until, l.locked_at, l.renewed_at) < t.before
   AND l.lock_until < timezone('utc', clock_timestamp())
   -- Run records stay as long as later runs depend on them.
   AND coalesce(l.paced_at + greatest(l.guard_ms, l.at_least_ms) * interval '1 millisecond'
     < timezone('utc', clock_timestamp()), true)
   AND coalesce(l.start_at + l.start_window_ms * interval '1 millisecond'
     < timezone('utc', clock_timestamp()), true)
   AND (l.paced_at IS NOT NULL OR l.paced_replaced IS NULL) AND l.start_replaced IS NULL
   AND l.fence < extract(epoch FROM t.before) * 1000000
RETURNING 1
