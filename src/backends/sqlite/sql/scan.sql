-- The locks whose keys start with ?2, by bytes, with the time and the layout.
-- ?1 namespace, ?2 start
SELECT (SELECT user_version FROM pragma_user_version) AS layout, now_ms, key, revision, fence,
  lock_file, changed_ms, document, 1 AS queued
  FROM locks, (SELECT CAST(round(unixepoch('subsec') * 1000) AS INTEGER) AS now_ms)
 WHERE namespace = ?1 AND key >= ?2 AND substr(CAST(key AS BLOB), 1,
   length(CAST(?2 AS BLOB))) = CAST(?2 AS BLOB)
 ORDER BY key
