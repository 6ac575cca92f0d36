-- The keys that start with ?2, by bytes; with ?3 only those whose run records may keep other runs away.
-- ?1 namespace, ?2 start, ?3 whether only those
SELECT key FROM locks, (SELECT CAST(round(unixepoch('subsec') * 1000) AS INTEGER) AS now_ms)
 WHERE namespace = ?1 AND key >= ?2 AND substr(CAST(key AS BLOB), 1, length(CAST(?2 AS BLOB))) = CAST(?2 AS BLOB)
   AND (NOT ?3 OR (cooldown ->> '$.s') + max(cooldown ->> '$.g', cooldown ->> '$.l') > now_ms)
 ORDER BY key
