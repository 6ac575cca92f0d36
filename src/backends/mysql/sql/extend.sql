-- Extends the hold that the lock was taken with, if no other is beside it, unless that would end it sooner, or somebody is breaking it and
-- it is not to be stopped.
UPDATE :table
   SET renewed_at = UTC_TIMESTAMP(6),
       revision = revision + 1,
       lock_until = TIMESTAMPADD(MICROSECOND, COALESCE(:ttl, ttl_ms) * 1000, UTC_TIMESTAMP(6))
 WHERE name = :name AND locked_by = :owner AND owner = :owner AND root = :root AND holds IS NULL AND layout < 200
   AND lock_until > UTC_TIMESTAMP(6)
   AND lock_until <= TIMESTAMPADD(MICROSECOND, COALESCE(:ttl, ttl_ms) * 1000, UTC_TIMESTAMP(6))
   AND (:stopping OR NOT EXISTS (SELECT 1 FROM :marks AS m WHERE m.name = :name AND m.fence = :table.fence));
