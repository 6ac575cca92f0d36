-- Every held lock whose name starts with $1, by bytes.
SELECT {columns}
  FROM {table} AS l, (SELECT timezone('utc', clock_timestamp()) AS now) AS t
 WHERE left(l.name, length($1)) = $1 AND l.mode IS NULL AND l.lock_until > t.now AND NOT {free}
 ORDER BY l.name COLLATE "C"
