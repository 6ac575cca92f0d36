-- Counts a skipped run of a host, and forgets the hosts beyond the limit whose last skip is longest
-- ago. $1 name, $2 host, $3 reason, $4 how many hosts at most
WITH forgotten AS (
    DELETE FROM {skips}
     WHERE name = $1 AND host <> $2
       AND last <= (SELECT k.last FROM {skips} AS k WHERE k.name = $1 AND k.host <> $2
         ORDER BY k.last DESC LIMIT 1 OFFSET $4 - 1)
)
INSERT INTO {skips} AS s (name, host, count, since, last, reason)
SELECT $1, $2, 1, t.now, t.now, $3 FROM (SELECT timezone('utc', clock_timestamp()) AS now) AS t
ON CONFLICT (name, host) DO UPDATE SET count = s.count + 1, last = excluded.last,
  reason = excluded.reason
