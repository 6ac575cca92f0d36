-- What is kept of a lock's runs, and the time.
-- ?1 namespace, ?2 key
SELECT (SELECT record FROM starts WHERE namespace = ?1 AND key = ?2) AS record,
       (SELECT fence FROM locks WHERE namespace = ?1 AND key = ?2) AS fence,
       CAST(round(unixepoch('subsec') * 1000) AS INTEGER) AS now_ms
