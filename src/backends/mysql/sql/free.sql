-- Gives the lock back with the hold that it was taken with, if no other is beside it and no document; then lets the next one through the gate, and
-- remembers how it ended, which nobody has to wait for.
-- It ends long ago and not now: free for ShedLock too, wherever the server's clock is set back to; or when the time is over for which its
-- run is to count at least, for which only ShedLock looks at the end.
SELECT fence, locked_at, metadata INTO @dlock_fence, @dlock_since, @dlock_who FROM :table WHERE name = :name;
UPDATE :table
   SET :became root = NULL, holds = NULL, revision = revision + 1,
       renewed_at = UTC_TIMESTAMP(6),
       lock_until = IF(paced_fence = fence, GREATEST(:ended, COALESCE(TIMESTAMPADD(MICROSECOND, at_least_ms * 1000, paced_at), :ended)), :ended)
 WHERE name = :name AND locked_by = :owner AND owner = :owner AND root = :root AND holds IS NULL AND layout < 200 AND document IS NULL
   AND lock_until > UTC_TIMESTAMP(6);
SET @dlock_freed = ROW_COUNT();
DO IF(@dlock_freed > 0, :open, 0);

