-- The history of a lock, the latest entry first, and its skipped runs by host.
SELECT fence, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', since) DIV 1000,
  TIMESTAMPDIFF(MICROSECOND, '1970-01-01', ended) DIV 1000, how, outcome, metadata
  FROM :runs WHERE name = :name ORDER BY fence DESC;
SELECT host, times, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', since) DIV 1000,
  TIMESTAMPDIFF(MICROSECOND, '1970-01-01', last) DIV 1000, reason
  FROM :skips WHERE name = :name;
