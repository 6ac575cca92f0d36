-- Takes a lock that was never taken before. That its row is there already is an error with a number of its own.
INSERT INTO :table (name, lock_until, locked_at, locked_by, layout, owner, root, ttl_ms, fence, detached, renewed_at, metadata, revision:start_columns)
VALUES (:name, TIMESTAMPADD(MICROSECOND, :ttl * 1000, UTC_TIMESTAMP(6)), UTC_TIMESTAMP(6), :owner, 100, :owner, :root, :ttl,
        TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), :detached, UTC_TIMESTAMP(6), :metadata, 1:start_values);
