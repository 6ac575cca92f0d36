-- Gives the whole lock back with the owner's first hold, if no nested hold is left that must keep it.
-- ?1 namespace, ?2 key, ?3 owner, ?4 hold, ?5 nested holds don't count, ?6 the lock file's bytes are locked, ?7 lock_file,
-- ?8 how it ended, ?9 why
UPDATE locks
   SET owner = NULL, hold = NULL, metadata = NULL, mark = NULL, broken = NULL, seen = 0, ended = ?8, why = ?9
  FROM (SELECT CAST(round(unixepoch('subsec') * 1000) AS INTEGER) AS now_ms)
 WHERE namespace = ?1 AND key = ?2 AND owner = ?3 AND hold = ?4
   AND iif(detached OR lock_file <> ?7, expires_ms > now_ms, ?6)
   AND (?5 OR NOT EXISTS (SELECT 1 FROM holds AS h
                           WHERE h.namespace = ?1 AND h.key = ?2 AND h.owner = ?3 AND h.expires_ms > now_ms))
