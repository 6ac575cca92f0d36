-- Extends an exclusive hold, unless the row was changed since this client wrote it, or the hold
-- would end sooner.
UPDATE :table
   SET renewed_at = UTC_TIMESTAMP(6),
       revision = revision + 1,
       lock_until = TIMESTAMPADD(MICROSECOND, :ttl * 1000, UTC_TIMESTAMP(6))
 WHERE name = :name AND locked_by = :owner AND revision = :revision
   AND lock_until > UTC_TIMESTAMP(6) AND :lasts
   AND lock_until <= TIMESTAMPADD(MICROSECOND, :ttl * 1000, UTC_TIMESTAMP(6));
