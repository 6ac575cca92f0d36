-- Claims a warning, while there is the hold. A row comes back for the first client that asks for this level of it, or a higher one.
-- ?1 namespace, ?2 key, ?3 fence, ?4 level
INSERT INTO starts (namespace, key, warned_fence, warned_level)
SELECT ?1, ?2, ?3, ?4 FROM locks
 WHERE namespace = ?1 AND key = ?2 AND (owner IS NOT NULL AND fence = ?3 OR document LIKE '%"f":' || ?3 || ',%')
ON CONFLICT DO UPDATE SET warned_fence = excluded.warned_fence, warned_level = excluded.warned_level
 WHERE (warned_fence, warned_level) < (excluded.warned_fence, excluded.warned_level)
RETURNING warned_level
