-- Claims a warning, for the first who asks for this level of this hold, or a higher one.
UPDATE :warned SET warned_fence = :fence, warned_level = :level
 WHERE name = :name AND (COALESCE(warned_fence, 0) < :fence OR (COALESCE(warned_fence, 0) = :fence AND COALESCE(warned_level, 0) < :level));
