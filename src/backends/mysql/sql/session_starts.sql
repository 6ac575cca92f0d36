-- The starts of a lock's runs, the time in ms, and the fence if it was counted for this hold before.
SELECT :starts, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) DIV 1000, IF(l.root = :root, l.fence, NULL)
  FROM :sessions AS l WHERE l.name = :name;
