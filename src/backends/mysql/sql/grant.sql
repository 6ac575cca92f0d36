-- Takes the lock for an exclusive hold, if its row exists and is free. One reading of the server's
-- clock, at the statement's start, judges and sets the end: if the statement waited for another one
-- on the row, the lease is shorter, never longer, than requested. Does nothing if the row's run
-- record may deny the grant, or if the row has a document, whose rules must be checked first.
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
       document = :document,
       mode = :mode
 WHERE name = :name AND document IS NULL AND (lock_until <= UTC_TIMESTAMP(6) OR :of_dlock)
   AND mode <=> :mode AND :lasts
   AND COALESCE(layout, :layout) DIV 100 = :layout DIV 100 AND fence < :last AND :clear;
