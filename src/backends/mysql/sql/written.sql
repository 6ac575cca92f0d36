-- Whether write.sql has written the row, if it was not answered: no other client writes the same
-- values.
SELECT COUNT(*) INTO @dlock_written FROM :table
 WHERE name = :name AND revision = :revision + 1 AND locked_by = :is_by AND fence = :fence
   AND document <=> :document;
DO 1;
