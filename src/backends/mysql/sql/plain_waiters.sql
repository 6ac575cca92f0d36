-- Who waits for the whole lock in no order, longest first.
SELECT hold, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', since) DIV 1000, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', seen) DIV 1000, metadata
  FROM :waiters WHERE name = :name AND ABS(TIMESTAMPDIFF(SECOND, seen, UTC_TIMESTAMP(6))) < 15 ORDER BY since, hold;
