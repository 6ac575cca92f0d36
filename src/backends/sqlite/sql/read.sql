-- One lock with the time, the layout, and whether waiters of its queue are outside of the document;
-- always one row. ?1 namespace, ?2 key
SELECT (SELECT user_version FROM pragma_user_version) AS layout, now_ms, key, revision, fence,
  lock_file, changed_ms, document,
       EXISTS (SELECT 1 FROM waiters AS w WHERE w.namespace = ?1 AND w.key = ?2
         AND w.queued IS NOT NULL) AS queued
  FROM (SELECT CAST(round(unixepoch('subsec') * 1000) AS INTEGER) AS now_ms)
  LEFT JOIN locks ON namespace = ?1 AND key = ?2
