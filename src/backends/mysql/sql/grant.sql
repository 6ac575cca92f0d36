-- Takes the lock for a hold that has it alone, if its row is there and free. The end is judged and set by one reading of the server's clock,
-- from when the statement began: if it had to wait for another one on the row, the lease is shorter, never longer, than was asked for. Not if
-- a start in its row may be in the way, or it has a document, whose rules must be asked first.
UPDATE :table
   SET :start_set
       fence = GREATEST(fence + 1, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))),
       layout = :layout,
       owner = :owner,
       renewed_at = UTC_TIMESTAMP(6),
       revision = revision + 1,
       locked_at = UTC_TIMESTAMP(6),
       locked_by = :owner,
       lock_until = TIMESTAMPADD(MICROSECOND, :ttl * 1000, UTC_TIMESTAMP(6)),
       document = :document
 WHERE name = :name AND document IS NULL AND (lock_until <= UTC_TIMESTAMP(6) OR owner = locked_by) AND mode IS NULL
   AND COALESCE(layout, :layout) DIV 100 = :layout DIV 100 AND fence < :last AND :clear;
