-- Writes a row back if it was not changed since it was read and it is not too late. Increments the
-- wake-up counter (bell) if other waiters in its document are to ask again.
UPDATE :table
   SET :recorded locked_by = :is_by, locked_at = :is_at, lock_until = :is_until, layout = :layout,
     owner = :owner, fence = :fence,
       renewed_at = :renewed, document = :document, mode = :mode, bell = bell + :ring, revision = revision + 1
 WHERE name = :name AND locked_by = :was_by AND lock_until = :was_until AND revision = :revision
   AND :in_time AND :lasts;
-- A server that can't deliver the statement's result, since the client is gone, forgets the count
-- and goes on: then the row has the answer.
SET @dlock_written = IF(ROW_COUNT() >= 0, ROW_COUNT(),
    (SELECT COUNT(*) FROM :table
      WHERE name = :name AND revision = :revision + 1 AND locked_by = :is_by AND fence = :fence
        AND document <=> :document));
