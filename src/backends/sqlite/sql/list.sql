-- Every lock that has an owner, or a document, and whose key starts with ?2, by bytes.
-- ?1 namespace, ?2 start
SELECT key, fence, owner, hold, detached, lock_file, since_ms, renewed_ms, ttl_ms, hold_expires_ms, expires_ms, metadata, mark, broken, seen, now_ms,
       document, document_file,
       (SELECT count(*) FROM holds AS h
         WHERE h.namespace = l.namespace AND h.key = l.key AND h.owner = l.owner AND h.expires_ms > now_ms) AS nested
  FROM locks AS l, (SELECT CAST(round(unixepoch('subsec') * 1000) AS INTEGER) AS now_ms)
 WHERE l.namespace = ?1 AND l.key >= ?2 AND (owner IS NOT NULL OR document IS NOT NULL)
   AND substr(CAST(l.key AS BLOB), 1, length(CAST(?2 AS BLOB))) = CAST(?2 AS BLOB)
 ORDER BY l.key
