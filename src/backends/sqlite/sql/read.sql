-- One lock with the time and the layout; always one row.
-- ?1 namespace, ?2 key
SELECT (SELECT user_version FROM pragma_user_version) AS layout, now_ms, key, revision, fence, lock_file, changed_ms, document
  FROM (SELECT CAST(round(unixepoch('subsec') * 1000) AS INTEGER) AS now_ms)
  LEFT JOIN locks ON namespace = ?1 AND key = ?2
