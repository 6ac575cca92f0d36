-- Claims a warning while the hold exists. Returns a row for the first client that asks for this
-- level or a higher one. $1 name, $2 fence, $3 level
UPDATE {fences} SET warned_fence = $2, warned_level = $3
 WHERE name = $1 AND (coalesce(warned_fence, 0), coalesce(warned_level, 0)) < ($2, $3)
   AND EXISTS (SELECT FROM {sessions} AS s WHERE s.name = $1 AND s.fence = $2)
RETURNING 1
