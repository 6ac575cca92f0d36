-- The server, and the sessions that have the lock: of its advisory lock, or of the one that each
-- session of mode=row takes next to the row. When the server's process began to serve the session,
-- if this user may see that, and whether it is one of dlock's. A lock without a session has one row
-- without a process.
-- $1 name
SELECT {server}, held.pid, held.shared, a.backend_start::text AS began,
       coalesce(a.application_name LIKE 'dlock %', false) AS ours
  FROM (SELECT 1) AS one LEFT JOIN (
    SELECT l.pid, l.mode = 'ShareLock' AS shared FROM pg_locks AS l
     WHERE l.locktype = 'advisory' AND l.granted
       AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
       AND {is_key}{row_lock}
  ) AS held ON true LEFT JOIN pg_stat_activity AS a ON a.pid = held.pid
