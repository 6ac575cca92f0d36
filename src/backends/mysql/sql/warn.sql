-- Claims a warning for the first client that asks for this level or a higher one, while the hold
-- exists.
UPDATE :sessions SET warned_fence = :fence, warned_level = :level
 WHERE name = :name AND (COALESCE(warned_fence, 0) < :fence
   OR (COALESCE(warned_fence, 0) = :fence AND COALESCE(warned_level, 0) < :level))
   AND (session IS NOT NULL AND fence = :fence
     OR EXISTS (SELECT 1 FROM :readers AS r WHERE r.name = :name AND r.fence = :fence));
