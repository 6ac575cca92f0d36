-- Counts a skipped run of a host. A new host is counted only below the limit.
-- ?1 namespace, ?2 key, ?3 host, ?4 reason, ?5 the most hosts
INSERT INTO skips (namespace, key, host, count, since_ms, last_ms, reason)
SELECT ?1, ?2, ?3, 1, now_ms, now_ms, ?4
  FROM (SELECT CAST(round(unixepoch('subsec') * 1000) AS INTEGER) AS now_ms)
 WHERE EXISTS (SELECT 1 FROM skips WHERE namespace = ?1 AND key = ?2 AND host = ?3)
    OR (SELECT count(*) FROM skips WHERE namespace = ?1 AND key = ?2) < ?5
ON CONFLICT DO UPDATE SET count = count + 1, last_ms = excluded.last_ms, reason = excluded.reason
