-- Counts a skipped run of a host. A new host is added only below the limit.
-- $1 name, $2 host, $3 reason, $4 how many hosts at most
INSERT INTO {skips} AS s (name, host, count, since, last, reason)
SELECT $1, $2, 1, t.now, t.now, $3 FROM (SELECT timezone('utc', clock_timestamp()) AS now) AS t
 WHERE EXISTS (SELECT FROM {skips} AS k WHERE k.name = $1 AND k.host = $2)
    OR (SELECT count(*) FROM {skips} AS k WHERE k.name = $1) < $4
ON CONFLICT (name, host) DO UPDATE SET count = s.count + 1, last = excluded.last, reason = excluded.reason
