-- Takes a lock that was never taken before. If its row exists already, the statement fails with the
-- error for duplicate keys.
INSERT INTO :table (name, lock_until, locked_at, locked_by, layout, owner, fence, renewed_at,
  revision, document, mode:start_columns)
SELECT :name, TIMESTAMPADD(MICROSECOND, :ttl * 1000, UTC_TIMESTAMP(6)), UTC_TIMESTAMP(6), :owner,
  :layout, :owner,
        TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), UTC_TIMESTAMP(6), 1,
          :document, :mode:start_values
  FROM DUAL WHERE :lasts;
