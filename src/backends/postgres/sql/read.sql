-- One lock's row, with the time.
-- $1 name
SELECT {columns}
  FROM {table} AS l, (SELECT timezone('utc', clock_timestamp()) AS now) AS t
 WHERE l.name = $1
