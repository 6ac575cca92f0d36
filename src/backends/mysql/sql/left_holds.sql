-- Holds whose server was restarted or is another one by now, and whose lease is not over.
SELECT 0, fence, TIMESTAMPDIFF(MICROSECOND, since, UTC_TIMESTAMP(6)),
  TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), COALESCE(ends, :ends)), metadata
  FROM :sessions WHERE name = :name AND session IS NOT NULL AND :left AND COALESCE(ends, :ends)
    > UTC_TIMESTAMP(6)
 UNION ALL
SELECT 1, fence, TIMESTAMPDIFF(MICROSECOND, since, UTC_TIMESTAMP(6)),
  TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), COALESCE(ends, :ends)), metadata
  FROM :readers WHERE name = :name AND :left AND COALESCE(ends, :ends) > UTC_TIMESTAMP(6);
