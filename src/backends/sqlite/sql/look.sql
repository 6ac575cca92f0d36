-- What is known of one lock.
-- ?1 namespace, ?2 key
SELECT key, fence, owner, hold, detached, lock_file, since_ms, renewed_ms, ttl_ms, hold_expires_ms, expires_ms, metadata, mark, broken, seen, now_ms,
       document, document_file,
       (SELECT count(*) FROM holds AS h
         WHERE h.namespace = l.namespace AND h.key = l.key AND h.owner = l.owner AND h.expires_ms > now_ms) AS nested
  FROM locks AS l, (SELECT CAST(round(unixepoch('subsec') * 1000) AS INTEGER) AS now_ms)
 WHERE l.namespace = ?1 AND l.key = ?2
