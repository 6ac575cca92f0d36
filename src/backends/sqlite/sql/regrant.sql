-- A detached grant asked for again, while others are trying: the row alone says that it is ours.
-- ?1 namespace, ?2 key, ?3 owner, ?4 hold, ?5 ttl_ms
UPDATE locks
   SET hold_expires_ms = max(hold_expires_ms, now_ms + ?5),
       expires_ms = max(expires_ms, now_ms + ?5),
       renewed_ms = now_ms
  FROM (SELECT CAST(round(unixepoch('subsec') * 1000) AS INTEGER) AS now_ms)
 WHERE namespace = ?1 AND key = ?2 AND owner = ?3 AND hold = ?4 AND detached AND expires_ms > now_ms
RETURNING fence
