-- Writes a row back if nobody changed it since it was read and it is still held; if it is free by that, lets the next one
-- through the gate.
SELECT fence, locked_at, metadata INTO @dlock_fence, @dlock_since, @dlock_who FROM :table WHERE name = :name;
UPDATE :table
   SET :became root = :root, ttl_ms = :ttl, holds = :holds, revision = revision + 1,
       renewed_at = TIMESTAMPADD(MICROSECOND, :renewed, '1970-01-01 00:00:00.000000'),
       lock_until = :until
 WHERE name = :name AND locked_by = :owner AND owner = :owner AND revision = :revision AND lock_until > UTC_TIMESTAMP(6);
SET @dlock_freed = ROW_COUNT();
DO IF(@dlock_freed > 0, :open, 0);
