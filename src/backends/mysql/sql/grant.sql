-- Takes the lock if its row is there and free. The end is judged and set by one reading of the server's clock, from
-- when the statement began: if it had to wait for another one on the row, the lease is shorter, never longer, than was asked for.
UPDATE :table
   SET fence = GREATEST(fence + 1, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))),
       layout = 100,
       owner = :owner,
       root = :root,
       ttl_ms = :ttl,
       holds = NULL,
       detached = :detached,
       renewed_at = UTC_TIMESTAMP(6),
       metadata = :metadata,
       revision = revision + 1,
       locked_at = UTC_TIMESTAMP(6),
       locked_by = :owner,
       lock_until = TIMESTAMPADD(MICROSECOND, :ttl * 1000, UTC_TIMESTAMP(6))
 WHERE name = :name AND lock_until <= UTC_TIMESTAMP(6) AND COALESCE(layout, 0) < 200 AND fence < 9007199254740990;
