-- Removes the rows of locks that were last used so long ago, unless a holder, a reader, a waiter in order or a run record needs them. Fences are
-- never below the time, so that those of a row that is made anew rise.
-- ?1 namespace, ?2 for how many ms
DELETE FROM locks
 WHERE namespace = ?1 AND (owner IS NULL OR detached AND expires_ms < (unixepoch('subsec') * 1000) - ?2) AND document IS NULL
   AND max(since_ms, renewed_ms, fence / 1000) < (unixepoch('subsec') * 1000) - ?2
   AND (cooldown IS NULL OR (cooldown ->> '$.s') + max(cooldown ->> '$.g', cooldown ->> '$.l') < unixepoch('subsec') * 1000)
   AND NOT EXISTS (SELECT 1 FROM starts AS s
                    WHERE s.namespace = locks.namespace AND s.key = locks.key
                      AND (s.record ->> '$.o.s') + (s.record ->> '$.o.w') >= unixepoch('subsec') * 1000)
RETURNING key
