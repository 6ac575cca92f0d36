-- A grant asked for again: moves its end on, and never back, also when the clock was set back. An attached one
-- is asked for again only by the process that has its bytes.
-- ?1 namespace, ?2 key, ?3 owner, ?4 hold, ?5 ttl_ms
UPDATE locks
   SET hold_expires_ms = max(hold_expires_ms, now_ms + ?5),
       expires_ms = max(expires_ms, now_ms + ?5),
       renewed_ms = now_ms
  FROM (SELECT CAST(round(unixepoch('subsec') * 1000) AS INTEGER) AS now_ms)
 WHERE namespace = ?1 AND key = ?2 AND owner = ?3 AND hold = ?4 AND (NOT detached OR expires_ms > now_ms)
RETURNING fence
