-- Writes a row back if it was not changed since it was read and it is not too late. Increments the wake-up counter (bell) if other waiters
-- in its document are to ask again.
UPDATE :table
   SET :recorded locked_by = :is_by, locked_at = :is_at, lock_until = :is_until, layout = :layout, owner = :owner, fence = :fence,
       renewed_at = :renewed, document = :document, bell = bell + :ring, revision = revision + 1
 WHERE name = :name AND locked_by = :was_by AND lock_until = :was_until AND revision = :revision AND :in_time;
SET @dlock_written = ROW_COUNT();
