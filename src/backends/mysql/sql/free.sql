-- Gives the lock back with the hold that it was taken with, if no other is beside it; then lets the next one through the gate.
-- It ends long ago and not now: free for ShedLock too, wherever the server's clock is set back to.
UPDATE :table
   SET root = NULL, holds = NULL, metadata = NULL, revision = revision + 1,
       renewed_at = UTC_TIMESTAMP(6),
       lock_until = :ended
 WHERE name = :name AND locked_by = :owner AND owner = :owner AND root = :root AND holds IS NULL AND layout < 200
   AND lock_until > UTC_TIMESTAMP(6);
DO IF(ROW_COUNT() > 0, :open, 0);
