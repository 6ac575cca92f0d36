-- Counts a skipped run of a host, and forgets the hosts beyond the limit whose last skip is longest
-- ago. ?1 namespace, ?2 key, ?3 host, ?4 reason, ?5 the most hosts
INSERT INTO skips (namespace, key, host, count, since_ms, last_ms, reason)
SELECT ?1, ?2, ?3, 1, now_ms, now_ms, ?4
  FROM (SELECT CAST(round(unixepoch('subsec') * 1000) AS INTEGER) AS now_ms)
 WHERE TRUE
ON CONFLICT DO UPDATE SET count = count + 1, last_ms = excluded.last_ms, reason = excluded.reason;
DELETE FROM skips
 WHERE namespace = ?1 AND key = ?2 AND host IN (
    SELECT host FROM skips WHERE namespace = ?1 AND key = ?2 AND host <> ?3 ORDER BY last_ms DESC
      LIMIT -1 OFFSET ?5 - 1
 )
