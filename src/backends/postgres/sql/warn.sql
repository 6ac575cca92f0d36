-- Claims a warning. A row comes back for the first who asks for this level of this hold, or a higher one.
-- $1 name, $2 fence, $3 level
UPDATE {warned} SET warned_fence = $2, warned_level = $3
 WHERE name = $1 AND (coalesce(warned_fence, 0), coalesce(warned_level, 0)) < ($2, $3)
RETURNING 1
