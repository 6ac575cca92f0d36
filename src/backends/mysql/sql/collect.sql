-- Removes rows last used longer ago than this unless later runs depend on them, history from before
-- then, and waiters that are gone.
DELETE FROM :table
 WHERE LEFT(name, LENGTH(:start)) = :start AND mode IS NULL
   AND GREATEST(lock_until, locked_at, COALESCE(renewed_at, locked_at))
   < TIMESTAMPADD(MICROSECOND, -:age, UTC_TIMESTAMP(6))
   AND lock_until < UTC_TIMESTAMP(6)
   AND COALESCE(TIMESTAMPADD(MICROSECOND, GREATEST(guard_ms, at_least_ms) * 1000, paced_at)
     < UTC_TIMESTAMP(6), 1)
   AND COALESCE(TIMESTAMPADD(MICROSECOND, start_window_ms * 1000, start_at) < UTC_TIMESTAMP(6), 1)
   AND (paced_at IS NOT NULL OR paced_replaced IS NULL) AND start_replaced IS NULL
   AND fence < TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) - :age;
DELETE FROM :waiters WHERE seen < UTC_TIMESTAMP(6) - INTERVAL 60 SECOND;
DELETE FROM :runs
 WHERE COALESCE(ended, since, TIMESTAMPADD(MICROSECOND, fence, '1970-01-01 00:00:00.000000'))
   < TIMESTAMPADD(MICROSECOND, -:age, UTC_TIMESTAMP(6));
DELETE FROM :skips WHERE last < TIMESTAMPADD(MICROSECOND, -:age, UTC_TIMESTAMP(6));
