-- What is kept of a lock's runs, the fence, also that of this hold if it was the last, whether the lock is shared or
-- waited for in order, and the time.
-- ?1 namespace, ?2 key, ?3 owner, ?4 hold
SELECT (SELECT record FROM starts WHERE namespace = ?1 AND key = ?2) AS record,
       (SELECT cooldown FROM locks WHERE namespace = ?1 AND key = ?2) AS cooldown,
       (SELECT fence FROM locks WHERE namespace = ?1 AND key = ?2) AS fence,
       (SELECT fence FROM locks WHERE namespace = ?1 AND key = ?2 AND owner = ?3 AND hold = ?4) AS own,
       coalesce((SELECT document IS NOT NULL FROM locks WHERE namespace = ?1 AND key = ?2), 0) AS documented,
       CAST(round(unixepoch('subsec') * 1000) AS INTEGER) AS now_ms
