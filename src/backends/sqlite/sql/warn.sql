-- Claims a warning. A row comes back for the first who asks for this level of this hold, or a higher one.
-- ?1 namespace, ?2 key, ?3 fence, ?4 level
INSERT INTO starts (namespace, key, warned_fence, warned_level) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT DO UPDATE SET warned_fence = excluded.warned_fence, warned_level = excluded.warned_level
 WHERE (warned_fence, warned_level) < (excluded.warned_fence, excluded.warned_level)
RETURNING warned_level
