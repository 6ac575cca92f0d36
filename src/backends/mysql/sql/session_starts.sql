-- The run record of a lock, and the time in ms.
SELECT :starts, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) DIV 1000
  FROM :sessions AS l WHERE l.name = :name;
