-- Extends the owner's first hold. No row comes back if it isn't held, or if the TTL would end it sooner, or if it is marked.
-- ?1 namespace, ?2 key, ?3 owner, ?4 hold, ?5 ttl_ms or NULL, ?6 the lock file's bytes are locked, ?7 lock_file,
-- ?8 stopping: a marked hold is extended too
UPDATE locks
   SET hold_expires_ms = max(hold_expires_ms, now_ms + coalesce(?5, ttl_ms)),
       expires_ms = max(expires_ms, now_ms + coalesce(?5, ttl_ms)),
       renewed_ms = now_ms,
       seen = (mark IS NOT NULL AND ?8)
  FROM (SELECT CAST(round(unixepoch('subsec') * 1000) AS INTEGER) AS now_ms)
 WHERE namespace = ?1 AND key = ?2 AND owner = ?3 AND hold = ?4
   AND iif(detached OR lock_file <> ?7, expires_ms > now_ms, ?6)
   AND (mark IS NULL OR ?8)
   AND now_ms + coalesce(?5, ttl_ms) >= hold_expires_ms
RETURNING fence, coalesce(?5, ttl_ms) AS ttl_ms
