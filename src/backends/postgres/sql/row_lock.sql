
     UNION
    -- Another program's: the row names the transaction that locked it last, which keeps a lock on
    -- its own number while it lasts.
    SELECT l.pid, false FROM {rows} AS r JOIN pg_locks AS l
        ON l.locktype = 'transactionid' AND l.granted AND l.mode = 'ExclusiveLock'
       AND l.transactionid = r.xmax
     WHERE r.name = $1
       AND EXISTS (SELECT FROM pg_locks AS has WHERE has.pid = l.pid
         AND has.relation = '{rows}'::regclass)
       AND NOT EXISTS (SELECT FROM pg_locks AS l WHERE l.locktype = 'advisory' AND l.granted
         AND {is_key})
